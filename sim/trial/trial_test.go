package trial_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/trial"
)

// run has n engines with room for so many blocks of 16 tokens have some of the recorded
// conversations.
func run(t *testing.T, policy string, n, blocks, talks, together int) trial.Result {
	t.Helper()
	s := route.DefaultSettings()
	s.Policy = policy
	c := trial.Config{Settings: &s, Seed: 1, Work: trial.Work{Talks: trial.Recorded((blocks - 1) * 16)[:talks], Together: together}}
	for i := range n {
		c.Pods = append(c.Pods, trial.Pod{Name: fmt.Sprint("p", i), Engine: engine.Config{Blocks: blocks, BlockSize: 16}})
	}
	return must.Get(trial.Run(t.Context(), c))(t)
}

// TestRun: the same trial comes to the same, and its figures agree with each other.
func TestRun(t *testing.T) {
	one := run(t, "eta", 2, 3000, 6, 3)
	if again := run(t, "eta", 2, 3000, 6, 3); !reflect.DeepEqual(again, one) {
		t.Errorf("the same trial came to\n%+v\nand\n%+v", one, again)
	}
	turns := 0
	for _, n := range one.PodTurns {
		turns += n
	}
	if turns != one.Turns || len(one.Firsts) != turns || !slices.IsSorted(one.Firsts) || one.Cached == 0 || one.Cached > one.Prompt ||
		one.MeanFirst() < one.Firsts[0] || one.FirstAt(1) != one.Firsts[turns-1] || one.Length < one.FirstAt(1) || one.Prefilling > one.Busy || one.Prefilling == 0 {
		t.Errorf("%+v", one)
	}
}

// TestETA: where caches evict, eta answers sooner than a policy for the load or for the cache alone. It finds
// about as much in the cache as the latter.
func TestETA(t *testing.T) {
	if testing.Short() {
		t.Skip("it simulates some minutes of four engines")
	}
	eta := run(t, "eta", 4, 4000, 24, 8)
	for _, policy := range []string{"longest_prefix", "least_requests"} {
		other := run(t, policy, 4, 4000, 24, 8)
		t.Logf("%s: %d cached, first token after %v; eta %d, %v", policy, other.Cached, other.MeanFirst(), eta.Cached, eta.MeanFirst())
		if float64(eta.Cached) < 0.97*float64(other.Cached) || eta.MeanFirst() > other.MeanFirst() {
			t.Errorf("%s: %d cached, first token after %v; eta %d, %v", policy, other.Cached, other.MeanFirst(), eta.Cached, eta.MeanFirst())
		}
	}
}

// TestTrace: rows of a session are one talk, what is too long ends it, equal ids are equal
// tokens, and times are scaled.
func TestTrace(t *testing.T) {
	talks := must.Get(trial.ReadTrace(strings.NewReader(`{"timestamp":1000,"input_length":10,"output_length":3,"hash_ids":[1,2,9]}
{"timestamp":2000,"input_length":8,"output_length":0,"hash_ids":[1,3],"session_id":"s","think_ms":70}
{"timestamp":3000,"input_length":11,"output_length":2,"hash_ids":[1,3],"session_id":"s","think_ms":70}
{"timestamp":4000,"input_length":99,"output_length":2,"hash_ids":[1,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25],"session_id":"s"}
{"timestamp":5000,"input_length":4,"output_length":2,"hash_ids":[1],"session_id":"s"}
`), 4, 50, 2))(t)
	if len(talks) != 2 || talks[0].At != 2*time.Second || len(talks[1].Turns) != 2 || talks[1].Turns[1].Think != 140*time.Millisecond || talks[1].Turns[0].Think != 0 || talks[1].Turns[0].Output != 1 {
		t.Fatalf("%+v", talks)
	}
	a, b, c := talks[0].Turns[0].Prompt(), talks[1].Turns[0].Prompt(), talks[1].Turns[1].Prompt()
	if len(a) != 10 || len(b) != 8 || len(c) != 11 || !slices.Equal(a[:4], b[:4]) || slices.Equal(a[4:8], b[4:8]) || !slices.Equal(b, c[:8]) || slices.Equal(a[8:10], c[8:10]) ||
		!slices.Equal(a, talks[0].Turns[0].Prompt()) {
		t.Errorf("%v\n%v\n%v", a, b, c)
	}
	for _, wrong := range []string{`{`, `{"input_length":0}`, `{"input_length":9,"hash_ids":[1]}`, `{"input_length":1,"output_length":-1}`, strings.Repeat("x", 2<<20)} {
		if _, err := trial.ReadTrace(strings.NewReader(wrong), 4, 50, 1); !errors.Is(err, trial.ErrTrace) {
			t.Errorf("%.30s: %v", wrong, err)
		}
	}
}

// TestOpen: talks that are not bound begin at their times, however long the ones before take.
func TestOpen(t *testing.T) {
	talks := trial.Recorded(40_000)[:4]
	for i := range talks {
		talks[i].At, talks[i].Turns = time.Duration(i)*time.Hour, talks[i].Turns[:1]
	}
	c := trial.Config{Pods: []trial.Pod{{Name: "p", Engine: engine.Config{Blocks: 3000, BlockSize: 16}}}, Work: trial.Work{Talks: talks}}
	r, err := trial.Run(t.Context(), c)
	if err != nil || r.Turns != 4 || r.Length < 3*time.Hour || r.Length > 4*time.Hour {
		t.Errorf("%+v, %v", r, err)
	}
	c.Pods = nil
	if _, err := trial.Run(t.Context(), c); err == nil {
		t.Error("a trial without engines runs")
	}
}
