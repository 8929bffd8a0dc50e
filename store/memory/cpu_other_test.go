//go:build !linux

package memory

import (
	"testing"
	"time"
)

// cpu measures time as the clock has it where a thread's own time is not at
// hand.
type cpu struct{ began time.Time }

func startCPU() cpu { return cpu{time.Now()} }

func (c cpu) stop() time.Duration { return time.Since(c.began) }

func report(b *testing.B, d time.Duration, blocks int) {
	b.ReportMetric(float64(d.Nanoseconds())/float64(blocks), "ns/block")
	b.ReportMetric(float64(blocks)/d.Seconds()/1e6, "Mblocks/s")
}
