// Package check is the form in which parts of kvatlas say what they have found
// wrong, or right, with what they depend on. It looks at nothing itself.
//
// A check never fails because it is not allowed to look: it then says so.
package check

import (
	"fmt"
	"slices"
)

// Level says how much a finding matters.
type Level int

// The levels, in rising order.
const (
	// OK is as it should be.
	OK Level = iota
	// Info is worth knowing.
	Info
	// Warn will cost something sooner or later.
	Warn
	// Fail does not work, or gives wrong answers.
	Fail
)

var levels = []string{"ok", "info", "warn", "fail"}

// String returns ok, info, warn or fail.
func (l Level) String() string {
	if l < OK || l > Fail {
		return fmt.Sprintf("Level(%d)", int(l))
	}
	return levels[l]
}

// MarshalText implements encoding.TextMarshaler.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Level) UnmarshalText(b []byte) error {
	i := slices.Index(levels, string(b))
	if i < 0 {
		return fmt.Errorf("check: level %q is unknown; there are ok, info, warn and fail", b)
	}
	*l = Level(i)
	return nil
}

// Finding is one thing that was looked at. All texts are for people; only What
// is the same in every release.
type Finding struct {
	Level Level `json:"level"`
	// What was looked at, in a word or three; the name of its paragraph in
	// docs/operations.md.
	What string `json:"what"`
	// Where is the server or file that it is about; empty when there is but one,
	// or when it is about all.
	Where string `json:"where,omitempty"`
	// Found is what is there.
	Found string `json:"found"`
	// Means is what follows from it for the index, Do what to do about it. Both
	// are empty where there is nothing to say.
	Means string `json:"means,omitempty"`
	Do    string `json:"do,omitempty"`
}

// Worst returns the highest level among the findings, OK when there are none.
func Worst(list []Finding) Level {
	worst := OK
	for _, f := range list {
		worst = max(worst, f.Level)
	}
	return worst
}
