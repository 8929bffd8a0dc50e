package proc

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/cputime"
	"github.com/kvatlas/kvatlas/internal/must"
)

func TestCPU(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	before := must.Get(CPU(os.Getpid()))(t)
	const work = 100 * time.Millisecond
	for began := cputime.Process(); cputime.Process()-began < work; {
	}
	after := must.Get(CPU(os.Getpid()))(t)
	// The kernel brings a running thread's up to date with its next tick.
	if got, all := after-before, cputime.Process(); got < work/2 || after > all+work {
		t.Errorf("%v of %v, and %v of %v in all", got, work, after, all)
	}
	if _, err := CPU(1 << 30); err == nil {
		t.Error("a process that is not there has CPU time")
	}
}
