// Package eventually waits in tests for what no channel announces: a state of another
// process, or one that a package shows but does not report.
//
// It asks every two milliseconds, and gives up after two minutes. That is longer than any
// busy machine takes, so a test that fails here fails for another reason than time.
package eventually

import (
	"context"
	"errors"
	"testing"
	"time"
)

const (
	patience = 2 * time.Minute
	pause    = 2 * time.Millisecond
)

var errFalse = errors.New("it did not come")

// True waits until ok returns true. After two minutes the test fails with what was waited for.
func True(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	NoError(tb, what, func() error {
		if !ok() {
			return errFalse
		}
		return nil
	})
}

// NoError waits until f returns nil. After two minutes the test fails with what was waited
// for and the last error.
func NoError(tb testing.TB, what string, f func() error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	if err := Wait(ctx, f); err != nil {
		tb.Fatalf("%s: %v", what, err)
	}
}

// Wait asks f until it returns nil, or ctx ends: then it returns f's last error. Unlike
// NoError it may be called by any goroutine.
func Wait(ctx context.Context, f func() error) error {
	again := time.NewTicker(pause)
	defer again.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}
