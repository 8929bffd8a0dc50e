package eventually

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWait: f is asked until it succeeds, and no longer than ctx; the last error is the answer.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, last := 0, errors.New("the last")
		f := func() error {
			if asked++; asked == 5 {
				return nil
			}
			return last
		}
		began := time.Now()
		if err := Wait(t.Context(), f); err != nil || asked != 5 || time.Since(began) != 4*pause {
			t.Errorf("%v after %v and %d questions", err, time.Since(began), asked)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Wait(ctx, func() error { return last }); !errors.Is(err, last) || time.Since(began) != 4*pause+time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		n := 0
		True(t, "the third", func() bool { n++; return n == 3 })
		if n != 3 {
			t.Errorf("asked %d times", n)
		}
	})
}
