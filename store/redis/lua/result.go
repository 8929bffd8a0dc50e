package lua

import "fmt"

// Result is what a script answers where it may refuse. The same names have the same numbers
// in guard.lua, and docs/redis-schema.md has the table; a test holds the three together.
type Result int64

// The results. Those below Duplicate refuse: the script has done nothing, or nothing for the
// guard that it answers.
const (
	Applied   Result = 1
	Duplicate Result = 0 // it had been applied before

	Fenced       Result = -1 // a writer with a higher fence has taken over
	Ended        Result = -2 // the generation has ended
	Lost         Result = -3 // the server has lost writes of the generation
	Gap          Result = -4 // a part before this one is missing
	Outdated     Result = -5 // holders have other ids than the writer believes
	Late         Result = -6 // a pod's lease has run out, and it must be retired first
	Unregistered Result = -7 // there is no such pod
	Compacted    Result = -8 // another process has compacted the map
)

var resultNames = map[Result]string{
	Applied: "applied", Duplicate: "duplicate", Fenced: "fenced", Ended: "ended", Lost: "lost", Gap: "gap",
	Outdated: "outdated", Late: "late", Unregistered: "unregistered", Compacted: "compacted",
}

// String returns the result's name in guard.lua and the documents, in lower case.
func (r Result) String() string {
	if name, ok := resultNames[r]; ok {
		return name
	}
	return fmt.Sprintf("result %d", int64(r))
}

// Refused reports whether the script has not done what it was asked.
func (r Result) Refused() bool { return r < Duplicate }
