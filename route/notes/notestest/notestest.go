// Package notestest is the contract of notes.Store as a test suite.
package notestest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/store"
)

// Open makes an empty store with a clock.
type Open func(t *testing.T, now func() time.Time) notes.Store

// Run holds a store to the contract.
func Run(t *testing.T, open Open) {
	for name, run := range map[string]func(*bench){
		"slices end a quarter of a life apart":                              slicesEnd,
		"too many blocks end the oldest slices":                             tooMany,
		"a slice that is too large ends by itself":                          tooLarge,
		"ranks and models have slices of their own":                         apart,
		"a session is where it was bound last":                              sessions,
		"what cannot be asked is refused":                                   refused,
		"sessions beyond their lease make no answer":                        leases,
		"demand is what each process told last":                             demand,
		"demand of more processes pushes out the one that told longest ago": tellers,
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{T: t, now: time.UnixMilli(1_800_000_000_500)}
			b.Store = open(t, func() time.Time { return b.now })
			run(b)
		})
	}
}

type bench struct {
	*testing.T
	notes.Store
	now time.Time
}

func (b *bench) slice(pod string, blocks int64) (until int64, over []int64) {
	b.Helper()
	s, err := b.Slice(b.Context(), notes.Slice{Model: "m", RankRef: store.RankRef{Pod: pod}, Blocks: blocks, TTL: 4 * time.Second, Max: 100, Keep: 80})
	if err != nil {
		b.Fatal(err)
	}
	for _, at := range s.Over {
		over = append(over, at.UnixMilli()-1_800_000_000_000)
	}
	return s.Until.UnixMilli() - 1_800_000_000_000, over
}

func (b *bench) want(blocks, until int64, over ...int64) {
	b.Helper()
	if u, o := b.slice("a", blocks); u != until || !slices.Equal(o, over) {
		b.Fatalf("%d blocks end at %d, and with them end %v; want %d, %v", blocks, u, o, until, over)
	}
}

func slicesEnd(b *bench) {
	b.want(10, 5000)
	b.now = b.now.Add(499 * time.Millisecond)
	b.want(10, 5000)
	b.now = b.now.Add(time.Millisecond) // 1.000
	b.want(10, 6000)
	b.now = b.now.Add(2 * time.Second)
	b.want(10, 8000)
	b.now = b.now.Add(time.Minute)
	b.want(100, 68000) // nothing of before is left
}

func tooMany(b *bench) {
	for i := range int64(4) {
		b.want(25, 5000+1000*i)
		b.now = b.now.Add(time.Second)
	}
	b.want(1, 9000, 5000) // 101 are too many, 76 are kept
	b.want(24, 9000)
	b.want(25, 9000, 6000, 7000) // 125; 100 are still too many to keep
}

func tooLarge(b *bench) {
	b.want(60, 5000)
	b.want(60, 5001, 5000)
	b.want(20, 5001)
	b.now = b.now.Add(time.Second)
	b.want(100, 6000, 5001)
	b.want(100, 6001, 6000)
	b.want(1, 6002, 6001)
}

func apart(b *bench) {
	b.want(100, 5000)
	for _, s := range []notes.Slice{
		{Model: "m", RankRef: store.RankRef{Pod: "a", Rank: 1}},
		{Model: "m", RankRef: store.RankRef{Pod: "b"}},
		{Model: "n", RankRef: store.RankRef{Pod: "a"}},
	} {
		s.Blocks, s.TTL, s.Max = 100, time.Second, 100
		got, err := b.Slice(b.Context(), s)
		if err != nil || len(got.Over) != 0 {
			b.Errorf("%s/%v: ends %v, %v", s.Model, s.RankRef, got.Over, err)
		}
	}
}

func (b *bench) bound(model, session string) string {
	b.Helper()
	at, err := b.Session(b.Context(), model, session)
	if err != nil {
		b.Fatal(err)
	}
	if at.Left == 0 {
		return ""
	}
	return fmt.Sprintf("%v for %v", at.RankRef, at.Left)
}

func (b *bench) bind(session, pod string, rank int, lease time.Duration) {
	b.Helper()
	must.OK(b, b.Bind(b.Context(), "m", session, store.RankRef{Pod: pod, Rank: rank}, lease))
}

func (b *bench) wantBound(model, session, want string) {
	b.Helper()
	if got := b.bound(model, session); got != want {
		b.Errorf("session %s of %s is bound to %q, want %q", session, model, got, want)
	}
}

func sessions(b *bench) {
	b.wantBound("m", "s", "")
	b.bind("s", "a:1", 2, time.Minute)
	b.bind("t", "b", 0, time.Second)
	b.wantBound("m", "s", "a:1/2 for 1m0s")
	b.wantBound("m", "t", "b/0 for 1s")
	b.wantBound("n", "s", "")
	b.now = b.now.Add(30 * time.Second)
	b.wantBound("m", "s", "a:1/2 for 30s")
	b.bind("s", "b", 0, time.Minute)
	b.wantBound("m", "s", "b/0 for 1m0s")
}

func leases(b *bench) {
	for i := range 20 {
		b.bind(fmt.Sprint(i), "a", 0, time.Duration(i+1)*time.Second)
	}
	b.now = b.now.Add(10 * time.Second)
	b.bind("next", "b", 0, time.Second) // and old ones make room
	for i := range 20 {
		want := ""
		if left := i + 1 - 10; left > 0 {
			want = fmt.Sprintf("a/0 for %v", time.Duration(left)*time.Second)
		}
		b.wantBound("m", fmt.Sprint(i), want)
	}
}

func refused(b *bench) {
	at := store.RankRef{Pod: "a"}
	_, session := b.Session(b.Context(), "m", "")
	_, none := b.Slice(b.Context(), notes.Slice{Model: "m", RankRef: at, TTL: time.Second, Max: 1})
	_, many := b.Slice(b.Context(), notes.Slice{Model: "m", RankRef: at, TTL: time.Second, Blocks: 2, Max: 1})
	_, short := b.Slice(b.Context(), notes.Slice{Model: "m", RankRef: at, Blocks: 1, Max: 1})
	for name, err := range map[string]error{
		"no session": session, "no blocks": none, "more blocks than may be": many, "no time": short,
		"no lease":    b.Bind(b.Context(), "m", "s", at, 0),
		"no pod":      b.Bind(b.Context(), "m", "s", store.RankRef{}, time.Second),
		"a long name": b.Bind(b.Context(), "m", string(make([]byte, notes.MaxSession+1)), at, time.Second),
	} {
		if !errors.Is(err, notes.ErrInvalid) {
			b.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
}

func (b *bench) tell(model, process, counted string) {
	b.Helper()
	must.OK(b, b.PutDemand(b.Context(), model, process, []byte(counted)))
}

func (b *bench) told(model string, want map[string]string) {
	b.Helper()
	got, err := b.Demand(b.Context(), model)
	if err != nil {
		b.Fatal(err)
	}
	if len(got) != len(want) {
		b.Fatalf("%d processes have told, want %d", len(got), len(want))
	}
	for process, counted := range want {
		if string(got[process]) != counted {
			b.Errorf("%s told %q, want %q", process, got[process], counted)
		}
	}
}

func demand(b *bench) {
	b.told("m", nil)
	b.tell("m", "one", "1")
	b.tell("other", "one", "of another model")
	b.now = b.now.Add(time.Minute)
	b.tell("m", "two", "2\x00\n 2")
	b.tell("m", "one", "1 again")
	b.told("m", map[string]string{"one": "1 again", "two": "2\x00\n 2"})
	b.told("other", map[string]string{"one": "of another model"})
	b.now = b.now.Add(notes.DemandForget / 2)
	b.tell("m", "two", "")
	b.now = b.now.Add(notes.DemandForget/2 + time.Second)
	b.told("m", map[string]string{"two": ""})
	for _, err := range []error{
		b.PutDemand(b.Context(), "m", "", nil),
		b.PutDemand(b.Context(), "m", strings.Repeat("p", notes.MaxTeller+1), nil),
		b.PutDemand(b.Context(), "m", "p", make([]byte, notes.MaxDemand+1)),
	} {
		if !errors.Is(err, notes.ErrInvalid) {
			b.Errorf("%v, want ErrInvalid", err)
		}
	}
}

func tellers(b *bench) {
	want := map[string]string{}
	for i := range notes.MaxTellers + 5 {
		name := fmt.Sprint("p", i)
		b.tell("m", name, name)
		b.now = b.now.Add(time.Second)
		if i >= 5 {
			want[name] = name
		}
	}
	b.told("m", want)
}
