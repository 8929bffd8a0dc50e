//go:build !linux

package bench

import "time"

// thread measures by the clock here.
type thread struct{ began time.Time }

func startThread() thread { return thread{time.Now()} }

func (t thread) used() time.Duration { return time.Since(t.began) }
func (t thread) end()                {}
