package memory

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cpu measures the time that the calling thread has run, which is what a
// benchmark means on a machine that others use too.
type cpu struct{ began time.Duration }

func startCPU() cpu {
	runtime.LockOSThread()
	return cpu{threadTime()}
}

// stop returns the time since start.
func (c cpu) stop() time.Duration {
	defer runtime.UnlockOSThread()
	return threadTime() - c.began
}

func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

func report(b *testing.B, d time.Duration, blocks int) {
	b.ReportMetric(float64(d.Nanoseconds())/float64(blocks), "cpu-ns/block")
	b.ReportMetric(float64(blocks)/d.Seconds()/1e6, "Mblocks/cpu-s")
}
