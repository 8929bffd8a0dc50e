package bench

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// thread measures the time that one thread has run, which is what is meant on a
// machine that others use too.
type thread struct{ began time.Duration }

// startThread keeps the goroutine on its thread until end.
func startThread() thread {
	runtime.LockOSThread()
	return thread{threadTime()}
}

func (t thread) used() time.Duration { return threadTime() - t.began }
func (t thread) end()                { runtime.UnlockOSThread() }

func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return time.Duration(time.Now().UnixNano())
	}
	return time.Duration(ts.Nano())
}
