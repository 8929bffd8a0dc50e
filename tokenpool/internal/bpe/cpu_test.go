package bpe

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// cpuOf is the processor time that f takes, in nanoseconds: on its own thread, so that
// what others do meanwhile does not count.
func cpuOf(f func()) int64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var from, to unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &from)
	f()
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &to)
	return to.Nano() - from.Nano()
}
