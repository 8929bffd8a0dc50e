package redis

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

func register(tb testing.TB, x *Index, pods ...store.Pod) {
	tb.Helper()
	for _, p := range pods {
		if p.Model == "" {
			p.Model = "m"
		}
		must.Get(x.Register(tb.Context(), p))(tb)
	}
}

// put writes a value as an engine does that knows nothing else.
func put(tb testing.TB, x *Index, plain redis.UniversalClient, k blockkey.Key, text string) {
	tb.Helper()
	must.OK(tb, plain.Set(tb.Context(), nameOf(x, k), text, 0).Err())
}

func TestTexts(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		x := open(t, Config{URL: url, NoSweep: true, SweepDuty: 1})
		plain := x.space.Client
		register(t, x,
			store.Pod{Name: "10.0.0.7:8000"}, store.Pod{Name: "10.0.0.8:8000"},
			store.Pod{Name: "10.0.0.8:8001"}, // a second one of a host
			store.Pod{Name: "llama-0", Address: "10.0.0.9:8000"},
			store.Pod{Name: "llama-1", Address: "http://node.example:8000/v1"},
			store.Pod{Name: "[fd00::1]:8000"}, store.Pod{Name: "ids"},
			store.Pod{Name: "10.0.0.7:8000?model=two", Model: "two", Address: "10.0.0.7:8000"}, // has no texts of its own
		)
		apply(t, x, batchOf("10.0.0.7:8000", store.Add, 100), batchOf("ids", store.Add, 101))
		cases := []struct{ text, want string }{
			{"10.0.0.7:8000", "10.0.0.7:8000"},
			{"10.0.0.7", "10.0.0.7:8000"},
			{"10.0.0.7:8001", ""},
			{"10.0.0.8:8000", "10.0.0.8:8000"},
			{"10.0.0.8", ""},
			{"10.0.0.9:8000", "llama-0"},
			{"10.0.0.9", "llama-0"},
			{"llama-0", "llama-0"},
			{"node.example:8000", "llama-1"},
			{"node.example", "llama-1"},
			{"[fd00::1]:8000", "[fd00::1]:8000"},
			{"[fd00::1]", "[fd00::1]:8000"},
			{"fd00::1", "[fd00::1]:8000"},
			{"10.0.0.8:8000,10.0.0.7", "10.0.0.7:8000 10.0.0.8:8000"},
			{"10.0.0.7:8000,10.0.0.7", "10.0.0.7:8000"},
			{"10.0.0.9:8000,nobody:1", "llama-0"},
			{",10.0.0.7", "10.0.0.7:8000"}, // as APPEND makes it
			{",10.0.0.7,10.0.0.9", "10.0.0.7:8000 llama-0"},
			{"nobody:1", ""},
		}
		var keys []blockkey.Key
		var want []string
		for i, c := range cases {
			keys, want = append(keys, blockkey.Key(i)), append(want, c.want)
			put(t, x, plain, blockkey.Key(i), c.text)
		}
		wantBlocks(t, x, keys, want...)
		if s := x.Stats(); s.Texts != uint64(len(cases)) || s.UnknownTexts != 3 || s.Garbled != 0 {
			t.Errorf("%d texts, %d unknown, %d garbled", s.Texts, s.UnknownTexts, s.Garbled)
		}
		// They are in rank 0 and tier gpu, are no holders, and no pod's ids change.
		r := must.Get(x.Registry(t.Context()))(t)
		if n := len(r.Holders()); n != 2 {
			t.Errorf("%d holders, want 2", n)
		}
		for _, garbage := range []string{"a b", "10.0.0.7:8000,", ",", ",,10.0.0.7", "10.0.0.7:8000,17", "17,10.0.0.7:8000", "\x7f", strings.Repeat("a", 300), strings.Repeat("10.0.0.7:8000,", 400) + "a"} {
			before := x.Stats()
			put(t, x, plain, 99, garbage)
			wantBlocks(t, x, []blockkey.Key{99}, "")
			if s := x.Stats(); s.Garbled != before.Garbled+1 || s.Texts != before.Texts {
				t.Errorf("%q does not count as garbled", redisx.Clip(garbage))
			}
		}
		// A reader is free to take texts for garbled.
		off := open(t, Config{URL: url, NoSweep: true, TextAge: -1})
		wantBlocks(t, off, keys[:2], "", "")
		if s := off.Stats(); s.Garbled != 2 {
			t.Errorf("%d garbled, want 2", s.Garbled)
		}

		// A page has none of them.
		held := 0
		for cursor := ""; ; {
			p := must.Get(x.Page(t.Context(), cursor, 0))(t)
			held += len(p.Blocks)
			if cursor = p.Next; cursor == "" {
				break
			}
		}
		if held != 2 {
			t.Errorf("%d blocks in pages, want 2", held)
		}

		// A sweep with lives to sweep lets those age that count, and deletes the others.
		register(t, x, store.Pod{Name: "ended"})
		apply(t, x, batchOf("ended", store.Add, 102))
		must.Get(x.Retire(t.Context(), "ended"))(t)
		p, err := x.Sweep(t.Context())
		if err != nil || p.Texts != uint64(len(cases)-4) {
			t.Fatalf("%+v, %v", p, err)
		}
		for i, c := range cases {
			ttl := plain.PTTL(t.Context(), nameOf(x, keys[i])).Val()
			counts := c.want != "" && !strings.Contains(c.text, "nobody")
			if counts && (ttl <= 40*time.Minute || ttl > 45*time.Minute) || !counts && ttl != -2 {
				t.Errorf("%q lives for %v", c.text, ttl)
			}
		}
		if ttl := plain.PTTL(t.Context(), nameOf(x, 101)).Val(); ttl != -1 {
			t.Errorf("a block with ids lives for %v", ttl)
		}
		// A write begins anew; a look does not.
		plain.PExpire(t.Context(), nameOf(x, 0), time.Minute)
		put(t, x, plain, 1, cases[1].text)
		must.Get(x.Sweep(t.Context()))(t)
		for k, least := range map[blockkey.Key]time.Duration{0: 0, 1: 40 * time.Minute} {
			if ttl := plain.PTTL(t.Context(), nameOf(x, k)).Val(); ttl <= least || ttl > least+time.Minute+5*time.Minute {
				t.Errorf("block %d lives for %v", k, ttl)
			}
		}
	})
}

// TestTextsAndIds: of the two ways to write a block the last one counts.
func TestTextsAndIds(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	register(t, x, store.Pod{Name: "a:1"}, store.Pod{Name: "b"})
	put(t, x, plain, 1, "a:1")
	must.OK(t, plain.PExpire(t.Context(), nameOf(x, 1), time.Hour).Err())
	apply(t, x, batchOf("b", store.Add, 2))
	apply(t, x, batchOf("b", store.Remove, 1)) // b does not hold it
	wantBlocks(t, x, []blockkey.Key{1}, "a:1")
	apply(t, x, batchOf("b", store.Add, 1))
	wantBlocks(t, x, []blockkey.Key{1}, "b")
	if ttl := plain.PTTL(t.Context(), nameOf(x, 1)).Val(); ttl != -1 {
		t.Errorf("ids that have taken a text's place live for %v", ttl)
	}
	put(t, x, plain, 1, "a:1")
	wantBlocks(t, x, []blockkey.Key{1}, "a:1")
	// Long lists of texts are no lists of ids, whatever their ends look like.
	long := strings.TrimSuffix(strings.Repeat("10.0.0.1:8000,", 20), ",")
	put(t, x, plain, 3, long)
	apply(t, x, batchOf("b", store.Remove, 3))
	if v := plain.Get(t.Context(), nameOf(x, 3)).Val(); v != long {
		t.Errorf("a removal has made %q of a list of texts", v)
	}
	apply(t, x, batchOf("b", store.Add, 3))
	wantBlocks(t, x, []blockkey.Key{3}, "b")
}

// TestTextsOfAFormerLife: a pod that comes back does not inherit what its former
// life has written as text.
func TestTextsOfAFormerLife(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	const pod = "10.0.0.7:8000"
	ends := map[string]func(t *testing.T, x *Index){
		"retired": func(t *testing.T, x *Index) {
			must.Get(x.Retire(t.Context(), pod))(t)
			wantBlocks(t, x, []blockkey.Key{1, 2}, "", "")
			register(t, x, store.Pod{Name: pod})
		},
		"cleared": func(t *testing.T, x *Index) { apply(t, x, batchOf(pod, store.Clear)) },
		"begun":   func(t *testing.T, x *Index) { mustBegin(t, x, pod, 1) },
		"late": func(t *testing.T, x *Index) {
			register(t, x, store.Pod{Name: pod, Lease: store.Seconds(time.Millisecond)})
			waitForLease(t, x, pod)
			register(t, x, store.Pod{Name: pod})
		},
	}
	for name, end := range ends {
		for _, ids := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/ids=%v", name, ids), func(t *testing.T) {
				c := Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true, SweepDuty: 1}
				x, y := open(t, c), open(t, c)
				register(t, x, store.Pod{Name: pod}, store.Pod{Name: "other"})
				if ids {
					apply(t, x, batchOf(pod, store.Add, 50))
				}
				put(t, x, plain, 1, pod)
				put(t, x, plain, 2, "10.0.0.7")
				put(t, x, plain, 3, "other")
				wantBlocks(t, y, []blockkey.Key{1, 2, 3}, pod, pod, "other")
				end(t, x)
				for _, i := range []*Index{x, y, open(t, c)} {
					wantBlocks(t, i, []blockkey.Key{1, 2, 3}, "", "", "other")
				}
				if !x.dueSweep() {
					t.Error("there is nothing to sweep")
				}
				must.Get(x.Sweep(t.Context()))(t)
				for _, i := range []*Index{x, y, open(t, c)} {
					wantBlocks(t, i, []blockkey.Key{1, 2, 3}, "", "", "other")
				}
				// From now on the new life's texts count.
				put(t, x, plain, 2, pod)
				for _, i := range []*Index{x, y, open(t, c)} {
					wantBlocks(t, i, []blockkey.Key{1, 2, 3}, "", pod, "other")
				}
			})
		}
	}
}

// TestTextsAreSweptInTheBackground: without any end of a life, too, once a lookup
// has met one.
func TestTextsAreSweptInTheBackground(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), TextAge: time.Second, SweepInterval: 10 * time.Millisecond, SweepDuty: 1})
	register(t, x, store.Pod{Name: "a:1"})
	put(t, x, plain, 1, "a:1")
	put(t, x, plain, 2, "a:1")
	wantBlocks(t, x, []blockkey.Key{1}, "a:1")
	eventually.NoError(t, "the index", func() error {
		if got := find(t, x, 1, 2); !slices.Equal(got, []string{"", ""}) {
			return fmt.Errorf("found %q", got)
		}
		return nil
	})
	if keys := blockValues(t, x, plain); len(keys) != 0 {
		t.Errorf("%v is left", keys)
	}
}

// TestIsText: no value is both ids and texts, and the script that looks for texts
// takes all of them for such.
func TestIsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.StringOfN(rapid.RuneFrom([]rune("0123456789,,.:-a[] \"\x00é")), 0, 40, -1).Draw(t, "value")
		_, ids := keyspace.AppendHolders(nil, []byte(v))
		text := keyspace.IsText([]byte(v))
		if ids && text {
			t.Fatalf("%q is both", v)
		}
		if text && strings.Trim(v, "0123456789,") == "" {
			t.Fatalf("%q is no text to the script", v)
		}
	})
}
