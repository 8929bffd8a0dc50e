package chat

import (
	"runtime"
	"syscall"
	"testing"
)

// peakBytes returns the most memory that the process has had.
func peakBytes(t testing.TB) int64 {
	t.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "darwin" {
		return int64(r.Maxrss) //nolint:unconvert // narrower on some systems
	}
	return int64(r.Maxrss) << 10 //nolint:unconvert // narrower on some systems
}
