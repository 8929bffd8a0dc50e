package store

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// MarshalJSON writes the duration as a number of seconds.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(s).Seconds())
}

// UnmarshalJSON reads a number of seconds, fractions included. What a
// time.Duration cannot hold is an error.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return fmt.Errorf("%w: a duration is a number of seconds: %w", ErrInvalid, err)
	}
	ns := math.Round(f * float64(time.Second))
	if math.Abs(ns) >= math.MaxInt64 {
		return fmt.Errorf("%w: %v seconds is out of range", ErrInvalid, f)
	}
	*s = Seconds(ns)
	return nil
}
