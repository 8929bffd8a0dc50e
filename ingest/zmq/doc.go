// Package zmq is the part of ZeroMQ that reading engines' events takes. It has a SUB
// socket with one publisher, and the question to a replay socket. It also has the bound
// PULL and ROUTER sockets that LMCache's workers connect to.
//
// It speaks ZMTP 3.0 and 3.1 (https://rfc.zeromq.org/spec/23, /37) over TCP and unix sockets, with the
// mechanisms NULL and CURVE (/25, /26), by itself. The library libzmq costs two to three and a half times
// the CPU, and must be there on every machine. It reports to its monitor alone that a publisher has gone,
// which is what losing nothing begins with. The tests hold it against libzmq; docs/ingest.md has the
// comparison.
//
// A [Listener] takes messages of many peers, and keeps no queue of its own. A peer whose
// messages wait to be handled is not read, so that they stay in its queue.
//
// A [Subscriber] connects for ever, with growing pauses, and reports each new
// connection, since it may be to a new process. It never waits for its reader's
// reader: what is not taken is the handler's to drop. All sizes that a peer states
// are checked before memory is spent on them.
package zmq
