package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startServer starts what Start starts, for the length of a test.
func startServer(tb testing.TB, masters int) *server {
	tb.Helper()
	url := startURL(tb, masters)
	s := must.Get(connect(tb.Context(), url))(tb)
	tb.Cleanup(func() { _ = s.close() })
	return s
}

func startURL(tb testing.TB, masters int) string {
	tb.Helper()
	st := must.Get(Start(tb.Context(), "redis-server", masters))(tb)
	must.End(tb, st.Close)
	return st.URL
}

func smallConfig(url string) RedisConfig {
	return RedisConfig{
		URL: url, Pods: 3, Keys: 2048, MemoryKeys: 2048, Sizes: []int{64, 1024}, Rounds: 2, EventBurst: 384, Track: true,
		settle: 20 * time.Millisecond, idle: 50 * time.Millisecond, usedIDs: 10_500,
	}
}

func wantEmpty(tb testing.TB, url string) {
	tb.Helper()
	s := must.Get(connect(context.WithoutCancel(tb.Context()), url))(tb)
	defer func() { _ = s.close() }()
	if err := s.mustBeEmpty(context.WithoutCancel(tb.Context())); err != nil {
		tb.Error(err)
	}
}

// side finds a side by the beginning of its name.
func side(tb testing.TB, sides []Side, name string) Side {
	tb.Helper()
	for _, s := range sides {
		if strings.HasPrefix(s.Name, name) {
			return s
		}
	}
	tb.Fatalf("there is no side %q in %v", name, sides)
	return Side{}
}

func TestRedis(t *testing.T) {
	url := startURL(t, 1)
	r := must.Get(Redis(t.Context(), smallConfig(url)))(t)
	wantEmpty(t, url)

	if n := len(r.Memory); n != 8 {
		t.Errorf("%d rows of memory, want 8", n)
	}
	for _, m := range r.Memory {
		own := strings.HasPrefix(m.Layout, "kvatlas")
		if m.Bytes <= 0 || m.Usage <= 0 || own && m.Ratio > 0.5 || m.Maps <= 0 {
			t.Errorf("memory that cannot be: %+v", m)
		}
		if own && m.Holders == 1 && m.Usage > 72 {
			t.Errorf("a block of one holder has %v bytes by MEMORY USAGE", m.Usage)
		}
	}
	if n := len(r.Lookup); n != 6 {
		t.Fatalf("%d lookups, want 6", n)
	}
	for _, l := range r.Lookup {
		own, js := side(t, l.Sides, "kvatlas"), side(t, l.Sides, "JSON fields, replies")
		trips := 1.0
		if l.Blocks == 1024 && l.Hit > 0 {
			trips = map[int]float64{50: 3, 100: 3}[l.Hit] // 64, 256, then the rest
		}
		if own.RoundTrips != trips || js.RoundTrips != 1 {
			t.Errorf("%d blocks, %d %%: %v and %v round trips, want %v and 1", l.Blocks, l.Hit, own.RoundTrips, js.RoundTrips, trips)
		}
		if own.Sent <= 0 || own.Sent >= js.Sent {
			t.Errorf("%d blocks, %d %%: %v bytes sent, by the peer %v", l.Blocks, l.Hit, own.Sent, js.Sent)
		}
		if js.Samples != 2 || js.Burst < 1 {
			t.Errorf("%d samples of %d", js.Samples, js.Burst)
		}
	}
	if h := r.Half; h == nil || h.Blocks != 1024 || len(h.Sides) != 2 || h.Sides[1].Received >= h.Sides[0].Received || h.Sides[1].Sent > h.Sides[0].Sent {
		t.Errorf("half a hit: %+v", h)
	}
	if len(r.Ingest) != 2 || len(r.Evict) != 2 {
		t.Fatalf("%d and %d rows of events", len(r.Ingest), len(r.Evict))
	}
	for i, writers := range eventWriters {
		if w := r.Ingest[i].Writers; w != writers {
			t.Errorf("row %d has %d writers", i, w)
		}
		for name, want := range map[string][2]float64{
			"kvatlas": {1. / 16, 1. / 16}, "short fields + ": {1, 48}, "JSON fields + ": {1, 64},
		} {
			in, out := side(t, r.Ingest[i].Sides, name), side(t, r.Evict[i].Sides, name)
			// A further connection costs a trip.
			if math.Abs(in.RoundTrips-want[0]) > 0.05 || math.Abs(out.RoundTrips-want[1]) > 0.05 {
				t.Errorf("%s: %v and %v round trips an event, want %v", name, in.RoundTrips, out.RoundTrips, want)
			}
		}
	}
	if r.Retire.Blocks != 2048 || r.Retire.One.Cleaned != 2048 || r.Retire.All.Cleaned < 2048 || r.Retire.Times != 3 {
		t.Errorf("retirement: %+v", r.Retire)
	}
	if n := len(r.Retire.One.Commands); n != 3 {
		t.Errorf("the times of %d commands, want those of 3", n)
	}
	if p := r.Retire.Peer; p.Blocks != 2000 || p.RoundTrips < 6000 {
		t.Errorf("the peer's clear: %+v", p)
	}

	var text bytes.Buffer
	must.OK(t, r.Write(&text))
	for _, want := range []string{"### Memory", "### Lookup", "### Half a hit", "1,024 blocks, half held", "### Ingest", "### Evict", "### Ingest of a full cache", "### Retire", "1,024 blocks, 100 % held: JSON fields, decoded"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report has no %q:\n%s", want, &text)
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestRedisCluster(t *testing.T) {
	url := startURL(t, 3)
	c := smallConfig(url) // what is measured of one server is not looked at again
	c.Sizes, c.Keys, c.MemoryKeys, c.EventBurst = []int{64}, 512, 512, 256
	r := must.Get(Redis(t.Context(), c))(t)
	wantEmpty(t, url)
	if !strings.Contains(r.Server, "cluster of 3 masters") {
		t.Errorf("the server is %s", r.Server)
	}
	if s := side(t, r.Lookup[len(r.Lookup)-1].Sides, "kvatlas"); s.RoundTrips != 1 {
		t.Errorf("%v round trips", s.RoundTrips)
	}
}

// TestRefuses runs on a database that has keys.
func TestRefuses(t *testing.T) {
	url := startURL(t, 1)
	s := must.Get(connect(t.Context(), url))(t)
	defer func() { _ = s.close() }()
	s.client.Set(t.Context(), "mine", 1, 0)
	if _, err := Redis(t.Context(), smallConfig(url)); !errors.Is(err, errNotEmpty) {
		t.Errorf("on a database with a key: %v", err)
	}
	if n := s.client.Exists(t.Context(), "mine").Val(); n != 1 {
		t.Error("the key is gone")
	}
}

// TestCancelled ends runs in the middle.
func TestCancelled(t *testing.T) {
	url := startURL(t, 1)
	for at, part := range map[string]string{
		"memory of": partMemory, "writing": partLookup, "lookup of": partLookup, "events of": partIngest, "sweeping": partRetire, "the peer clears": partRetire,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		c := smallConfig(url)
		c.Parts = []string{part}
		c.Progress = func(what string) {
			if strings.Contains(what, at) {
				time.AfterFunc(5*time.Millisecond, cancel)
			}
		}
		r, err := Redis(ctx, c)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled at %q: %v", at, err)
		}
		if r != nil && r.empty() {
			t.Errorf("cancelled at %q: an empty report", at)
		}
		cancel()
		wantEmpty(t, url)
	}
}

func TestRedisConfig(t *testing.T) {
	for name, c := range map[string]RedisConfig{
		"no URL":    {},
		"one pod":   {URL: "redis://localhost", Pods: 1},
		"parts":     {URL: "redis://localhost", Parts: []string{"all"}},
		"size":      {URL: "redis://localhost", Sizes: []int{0}},
		"hit":       {URL: "redis://localhost", Hits: []int{101}},
		"keys":      {URL: "redis://localhost", Keys: -1},
		"sentinels": {URL: "redis+sentinel://localhost/kv"},
		"scheme":    {URL: "http://localhost"},
	} {
		if _, err := Redis(t.Context(), c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := connect(t.Context(), "redis://user:secret@[bad"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a bad URL: %v", err)
	}
	if _, err := Start(t.Context(), "no-such-server", 1); err == nil {
		t.Error("a server that is not there has started")
	}
}

// TestLayouts plays a random history on all layouts and on a map.
func TestLayouts(t *testing.T) {
	s := startServer(t, 1)
	o := must.Get(openOurs("unix://" + s.nodes[0].Options().Addr))(t)
	defer func() { _ = o.x.Close() }()
	layouts := []layout{o, newPeer(s, false, true), newPeer(s, true, true), newPeer(s, true, false)}
	pods := podNames(4)
	chain := newCorpus(11, 12, 12).append(nil, 0, 0, 12)
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		held := map[blockkey.Key]map[string]bool{}
		for _, k := range chain {
			held[k] = map[string]bool{}
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			pod := rapid.SampledFrom(pods).Draw(t, "pod")
			keys := rapid.SliceOfNDistinct(rapid.SampledFrom(chain), 1, 12, rapid.ID).Draw(t, "keys")
			add := rapid.Bool().Draw(t, "add")
			if !add {
				// The peer does not evict what it does not know.
				keys = slices.DeleteFunc(keys, func(k blockkey.Key) bool { return !held[k][pod] })
			}
			for _, l := range layouts {
				do := l.store
				if !add {
					do = l.remove
				}
				if len(keys) == 0 {
					continue
				}
				if err := do(ctx, pod, keys); err != nil {
					t.Fatalf("%s: %v", l.name(), err)
				}
			}
			for _, k := range keys {
				held[k][pod] = add
			}
		}
		want := prefixes{}
		for i, k := range chain {
			var at []string
			for _, p := range pods {
				if held[k][p] {
					at = append(at, p)
				}
			}
			if !want.walk(i, at) {
				break
			}
		}
		for _, l := range layouts {
			got, err := l.lookup(ctx, chain)
			if err != nil {
				t.Fatalf("%s: %v", l.name(), err)
			}
			if !maps.Equal(got, want) {
				t.Fatalf("%s: %v, want %v", l.name(), got, want)
			}
		}
		for _, l := range layouts {
			if err := l.forget(ctx, chain); err != nil {
				t.Fatalf("%s: %v", l.name(), err)
			}
		}
		if got, err := o.lookup(ctx, chain); err != nil || len(got) > 0 {
			t.Fatalf("after forgetting there is %v, %v", got, err)
		}
	})
}

// TestPeerForm looks at what the peer's layouts write.
func TestPeerForm(t *testing.T) {
	s := startServer(t, 1)
	ctx := t.Context()
	const key = blockkey.Key(0x1234)
	short, js := newPeer(s, false, true), newPeer(s, true, true)
	for _, p := range []*peer{short, js} {
		must.OK(t, p.store(ctx, "10.0.0.1:8000", []blockkey.Key{key}))
		if _, err := strconv.ParseUint(p.blockName(key), 10, 64); err != nil {
			t.Errorf("the block's name is %q", p.blockName(key))
		}
	}
	if v := s.client.HGetAll(ctx, short.blockName(key)).Val(); !maps.Equal(v, map[string]string{"10.0.0.1:8000@gpu": ""}) {
		t.Errorf("short fields: %v", v)
	}
	const entry = `{"PodIdentifier":"10.0.0.1:8000","DeviceTier":"gpu","Speculative":false,"HasGroup":false,"GroupIdx":0}`
	if v := s.client.HGetAll(ctx, js.blockName(key)).Val(); !maps.Equal(v, map[string]string{entry: ""}) {
		t.Errorf("JSON fields: %v", v)
	}
	if v := s.client.Get(ctx, short.engineName(key)).Val(); v != short.blockName(key) {
		t.Errorf("the engine key of short fields has %q", v)
	}
	if v := s.client.ZRange(ctx, js.engineName(key), 0, -1).Val(); !slices.Equal(v, []string{js.blockName(key)}) {
		t.Errorf("the engine key of JSON fields has %q", v)
	}
	for _, p := range []*peer{short, js} {
		must.OK(t, p.remove(ctx, "10.0.0.1:8000", []blockkey.Key{key}))
	}
	if n := s.client.DBSize(ctx).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

func TestCorpus(t *testing.T) {
	c := newCorpus(1, 5000, 100)
	if c.chains != 50 || c.keys() != 5000 {
		t.Fatalf("%d chains with %d keys", c.chains, c.keys())
	}
	seen := map[blockkey.Key]bool{}
	err := c.each(64, func(keys []blockkey.Key) error {
		for _, k := range keys {
			if seen[k] {
				return fmt.Errorf("key %v comes twice", k)
			}
			seen[k] = true
		}
		return nil
	})
	if err != nil || len(seen) != 5000 {
		t.Fatalf("%d keys: %v", len(seen), err)
	}
	for chain := range 120 {
		for _, hit := range []int{0, 50, 100} {
			for i, k := range c.prompt(chain, 80, hit) {
				if want := i < 80*hit/100; seen[k] != want {
					t.Fatalf("chain %d, %d %%: block %d is held: %v", chain, hit, i, !want)
				}
			}
		}
	}
	pods := podNames(3)
	for seq := 0; seq < 20; seq += 2 {
		p1, k1 := c.event(seq, 100, pods)
		p2, k2 := c.event(seq+1, 100, pods)
		if p1 == p2 || !slices.Equal(k1, k2) || len(k1) != 100 || !seen[k1[0]] || !seen[k1[99]] {
			t.Fatalf("events %d and %d: %s, %s, %d and %d keys", seq, seq+1, p1, p2, len(k1), len(k2))
		}
	}
}

func TestSpread(t *testing.T) {
	list := []float64{5, 1, 4, 2, 3}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	if s := SpreadOf(list); s != (Spread{Median: 3, Low: 2, High: 4}) {
		t.Errorf("%+v", s)
	}
	if s := SpreadOf(nil); s != (Spread{}) {
		t.Errorf("of nothing: %+v", s)
	}
	if s := SpreadOf([]float64{7}); s != (Spread{Median: 7, Low: 7, High: 7}) {
		t.Errorf("of one: %+v", s)
	}
}

func TestStalls(t *testing.T) {
	var took []time.Duration
	for i := range 2000 {
		took = append(took, time.Duration(i)*time.Microsecond)
	}
	took = append(took, 3*time.Millisecond)
	s := stallsOf(took)
	if s.Pings != 2001 || s.Over != 1 || s.Longest != 3 || s.Median != 1 || s.P999 < 1.99 {
		t.Errorf("%+v", s)
	}
}

func TestFigures(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.01234: "0.012", 0.5: "0.50", 9.994: "9.99", 12.34: "12.3", 123.4: "123", 1234567: "1,234,567"} {
		if got := short(v); got != want {
			t.Errorf("short(%v) is %s, want %s", v, got, want)
		}
	}
	tb := newTable("a", "figure")
	tb.add("long one", "1")
	const want = "| a        | figure |\n|----------|-------:|\n| long one |      1 |\n"
	if got := tb.String(); got != want {
		t.Errorf("the table is\n%swant\n%s", got, want)
	}
}

func TestMemory(t *testing.T) {
	r := must.Get(Memory(t.Context(), MemoryConfig{Blocks: 4_000, Sizes: []int{32, 128}, Holders: []int{1, 4}, Events: []int{1, 16}, Rounds: 2}))(t)
	if len(r.Find) != 12 || len(r.Apply) != 2 || len(r.Size) != 4 {
		t.Fatalf("%d, %d and %d rows", len(r.Find), len(r.Apply), len(r.Size))
	}
	for _, s := range r.Size {
		if s.Blocks <= 0 || s.Counted < 12 {
			t.Errorf("size: %+v", s)
		}
	}
	var text bytes.Buffer
	if err := r.Write(&text); err != nil || !strings.Contains(text.String(), "### Find, of 4,000 blocks") {
		t.Errorf("%v\n%s", err, &text)
	}
	for _, c := range []MemoryConfig{{Blocks: -1}, {Sizes: []int{0}}, {Holders: []int{1 << 20}}, {Rounds: -1}} {
		if _, err := Memory(t.Context(), c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Memory(ctx, MemoryConfig{Blocks: 1000}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
