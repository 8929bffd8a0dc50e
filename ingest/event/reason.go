package event

// Reason is why an event was left out of its batch.
type Reason uint8

// The reasons.
const (
	// UnknownKind: the event says that it is something this package does not know.
	UnknownKind Reason = iota + 1
	// BadField: a field has a type or a value that it cannot have.
	BadField
	// MissingField: a field without which the event means nothing is not there.
	MissingField
	// OverLimit: the event is larger than Limits allow.
	OverLimit
	// NotIndexed: the event is understood and not for an index, such as one of an
	// attention window that is not the engine's largest.
	NotIndexed
	// NumReasons is one more than the highest Reason.
	NumReasons = iota + 1
)

var reasonNames = [NumReasons]string{"none", "unknown_kind", "bad_field", "missing_field", "over_limit", "not_indexed"}

// String returns the reason in words that are joined by underscores, fit for the
// label of a metric.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}
