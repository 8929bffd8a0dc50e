package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/traffic"
)

// tally is what became of requests. It is safe for concurrent use.
type tally struct {
	mu   sync.Mutex // protects the rest
	took []time.Duration
	of   map[string]int
}

func (t *tally) note(what string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]int{}
	}
	t.of[what]++
	t.took = append(t.took, took)
}

func (t *tally) count() int { return len(t.took) }

// quantile is the time below which the part q of all requests were.
func (t *tally) quantile(q float64) time.Duration {
	return traffic.Quantile(t.took, q)
}

// answers lists what came, and how often.
func (t *tally) answers() string {
	var all []string
	for what, n := range t.of {
		all = append(all, fmt.Sprintf("%d x %s", n, what))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// failures are the answers other than a plain 200.
func (t *tally) failures() string {
	rest := tally{of: map[string]int{}}
	for what, n := range t.of {
		if what != "200" {
			rest.of[what] = n
		}
	}
	if len(rest.of) == 0 {
		return "0"
	}
	return rest.answers()
}

// short is a time with as many digits as it is good for.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
