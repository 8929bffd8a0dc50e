package chat

import (
	"runtime"
	"syscall"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// peakBytes returns the most memory that the process has had.
func peakBytes(t testing.TB) int64 {
	t.Helper()
	var r syscall.Rusage
	must.OK(t, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	if runtime.GOOS == "darwin" {
		return int64(r.Maxrss) //nolint:unconvert // narrower on some systems
	}
	return int64(r.Maxrss) << 10 //nolint:unconvert // narrower on some systems
}
