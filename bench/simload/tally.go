package main

import (
	"math/rand/v2"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/traffic"
)

// result is what became of a request.
type result struct {
	late, first, whole time.Duration
	chunks             int
	err                error
}

// tally counts results.
type tally struct {
	sent, answered, failed, chunks int
	late, first, whole             []time.Duration
	err                            error // the first
}

func (t *tally) add(r result) {
	t.sent++
	t.late = append(t.late, r.late)
	if r.err != nil {
		t.failed++
		if t.err == nil {
			t.err = r.err
		}
		return
	}
	t.answered++
	t.chunks += r.chunks
	t.first, t.whole = append(t.first, r.first), append(t.whole, r.whole)
}

func (t *tally) firstError() string {
	if t.err == nil {
		return ""
	}
	return ": " + t.err.Error()
}

// quantile returns the q-th of times, as it is printed.
func quantile(times []time.Duration, q float64) time.Duration {
	return traffic.Quantile(times, q).Round(100 * time.Microsecond)
}

// tokenList is so many tokens by a seed, as JSON has them between brackets.
func tokenList(seed uint64, n int) string {
	rng := rand.New(rand.NewPCG(seed, 1))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rng.Uint32N(100_000)
	}
	return string(traffic.List(tokens))
}

// scanner counts the messages of server-sent events: each ends with an empty line.
type scanner struct {
	messages int
	line     bool // the last byte ended a line
}

func (s *scanner) scan(b []byte) {
	for _, c := range b {
		if c == '\n' && s.line {
			s.messages++
			s.line = false
			continue
		}
		s.line = c == '\n'
	}
}
