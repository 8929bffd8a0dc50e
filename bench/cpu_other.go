//go:build !unix

package bench

import "time"

// processCPU is not known here; figures of the client's CPU time are 0.
func processCPU() time.Duration { return 0 }
