// Package controller stands in for LMCache's cache controller. LMCache's workers, 0.3.1 to
// 0.5.6 and unpatched, connect to it. What they say they hold goes into the index as chunks
// of the pod that they work for, in the tiers cpu and disk.
//
// # Sockets
//
// A [Controller] binds what LMCache's own binds. A PULL (controller_pull_url, or
// controller_url up to 0.3.5) is for what needs no answer, a ROUTER
// (controller_reply_url) for what does. Another ROUTER is for heartbeats; the answer to
// a registration gives its address. Frames are MessagePack, or JSON when they begin
// with a brace. A message to the PULL has up to 50 of them, each a message of its own.
//
// A frame that cannot be understood is counted, and nothing else: the frames behind it
// and the connection go on. Keys that are bytes, which end the reading of LMCache's own
// controller, are understood.
//
// # Lives
//
// RegisterMsg is sent by a process that has just started and holds nothing: the worker's
// generation begins anew. Any other message of a worker that this process does not know
// is of one that was registered elsewhere. Its generation is taken over (see package
// feed) and it is asked for a full sync. Where nothing tells how far it was written,
// which is so of workers before 0.3.10, it begins anew instead.
//
// A worker lives as long as one of its connections answers ZeroMQ's heartbeats, which
// libzmq does by itself: LMCache's own are off by default. Then its lease runs out. Nothing
// but the lease ends what it holds, so that a replica of kvatlas can be restarted without
// a gap.
//
// A connection speaks for one worker at a time, as LMCache's do: the last that it has named. For the others
// it does not count any more. LMCache's workers register once in their lives, and most send no heartbeats.
// So after a restart any message may be the first sign of a worker, and has to be taken for it. But an
// unknown name, on a connection that speaks for another worker, is refused unless it registers or comes
// twice. So a frame whose name is damaged makes no worker. One that is made all the same, by the first
// frame of a connection, is gone with its lease, since the next frame names another.
//
// A registration is believed: the protocol has no secret. On connections that have spoken for
// the worker before, what comes is of a process that has ended. It does not count: that is
// counted, and reported once for each registration.
//
// # One id, several processes
//
// A process registers on one socket and sends operations on another, and nothing in them
// ties the two but the host that both come from. So the workers of an id are told apart by
// the hosts of their connections, and each works for the pod at its own address. Its
// registration is named by that pod too. At one host two processes have an id when open
// connections report two addresses (ip and port) for it. They also do when it comes over
// two PUSH sockets. Then neither counts until one has gone: credit ends, Observer.Shared
// and the label [feed.LabelShared] name them. The same goes for processes at several
// hosts that the id itself leads to one pod. The exception is when just one of them is at
// that pod's address.
//
// # What was missed
//
// Each location of a worker numbers its operations. A hole in the numbers, and messages
// that found no room here, mean that evictions may have been lost. What can be asked for
// a full sync is asked, in the answer to the next heartbeat, and keeps its credit
// meanwhile. What has not brought one after Config.SyncWait loses the credit of the tier.
// What cannot be asked loses it at once. The worker sends no heartbeats then, or the
// location is not the CPU's, which is all that LMCache syncs. So credit that may be false
// does not outlive SyncWait.
//
// # Full sync
//
// The keys of a full sync are gathered until all of them are there, and then replace the
// tier in one write. That is a clear, which costs O(1) and leaves the other tiers alone,
// the keys, and then the operations that came since the start. Those may have been made
// before the worker listed its keys. Then their outcome is in the list, and to repeat
// the last operations on a key in their order changes nothing. So a healthy worker loses
// no credit but for the time of that write, and what was credited falsely ends with it.
// A diff against what was known would need to know it. It is in the index, under keys
// that cannot be listed by holder, and a process that has just taken over knows none of
// it.
//
// # Bounds
//
// What is not written yet waits in a queue of Config.QueueKeys keys for all workers
// together. When it is full, because the index does not answer, what comes is dropped and
// counted, and the worker's tier is treated as above. Workers, instances, frames,
// connections and keys of full syncs are bounded by the Config as well. One connection can
// make 8 workers in a lease, and at the limit workers without a connection go first.
//
// Each worker is a registration, so none is added to an index that has Config.MaxWorkers of them from all
// processes. Of a worker that finds no room nothing is kept, as of one without a pod.
package controller
