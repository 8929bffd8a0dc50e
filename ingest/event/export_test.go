package event

// What the tests outside use: those that write events as engines do, with
// enginetest, which imports this package.
var (
	Messages = messages
	Packed   = packed
	Same     = same
)
