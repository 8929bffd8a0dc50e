package keyspace

import (
	"fmt"
	"math"
	"strconv"

	"github.com/kvatlas/kvatlas/internal/redisx"
)

// EpochOf reads an epoch; 0 is one that is lost, and one that no script has written.
func (s *Space) EpochOf(text string) uint64 {
	if text == "" {
		return 0 // no pod has registered yet
	}
	e, err := strconv.ParseUint(text, 10, 64)
	if err == nil && e >= MaxEpoch {
		err = fmt.Errorf("it is above %d", uint64(MaxEpoch))
	}
	if err != nil {
		s.Unreadable("the epoch "+strconv.Quote(redisx.Clip(text))+" in "+s.Names.Epoch, text, err)
		return 0
	}
	return e
}

// MaxEpoch is above all epochs: scripts count in doubles.
const MaxEpoch = 1 << 53

// Counter reads one number of an HMGET; what is not there is 0.
func Counter(vals []any, i int) uint64 {
	if i >= len(vals) {
		return 0
	}
	s, _ := vals[i].(string)
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

// Number is a number of a reply, NaN for any other.
func Number(v any) float64 {
	switch v := v.(type) {
	case string:
		f, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return math.NaN()
		}
		return f
	case int64:
		return float64(v)
	}
	return math.NaN()
}

// Word is a string of a reply, "" for none.
func Word(v any) string {
	s, _ := v.(string)
	return s
}

// Words are the strings of a list in a reply.
func Words(v any) []string {
	list, _ := v.([]any)
	out := make([]string, len(list))
	for i := range list {
		out[i] = Word(list[i])
	}
	return out
}

// IsOne reports whether a reply is the number 1.
func IsOne(v any) bool {
	n, ok := v.(int64)
	return ok && n == 1
}

// Flag is how scripts take a bool.
func Flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
