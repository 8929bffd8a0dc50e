// Package rawconn reads and writes connections, of TCP and of Unix sockets, by system calls of
// which the runtime does not know.
//
// Before each call that may block, the runtime wakes its monitor, a thread that looks every 20
// microseconds whether one does. Where a process waits between short requests, the monitor
// sleeps each time and is woken with the next call, which costs more than the call. Sockets of
// package net never block: they say that there is nothing, and the poller waits. So these calls
// are made as the poller's own are.
package rawconn
