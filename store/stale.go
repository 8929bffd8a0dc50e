package store

import (
	"fmt"
	"time"
)

// StaleError is what a Lookup returns that has answered from a copy of an index
// that cannot be reached. The whole answer is as the index was Age ago.
type StaleError struct {
	// Age is how long ago the copy was certainly true.
	Age time.Duration
	// Cause is why the index itself cannot be asked.
	Cause error
}

// Error says how old the answer is.
func (e *StaleError) Error() string {
	return fmt.Sprintf("store: the answer is %v old: %v", e.Age.Round(time.Millisecond), e.Cause)
}

// Unwrap returns the cause.
func (e *StaleError) Unwrap() error { return e.Cause }
