package demand_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/demand"
	"github.com/kvatlas/kvatlas/store"
)

const second = 1_000_000 // in us

// chain are the blocks of a prompt that begins with so many of one, and goes on with others.
func chain(of, shared, n int, own int) []blockkey.Key {
	out := make([]blockkey.Key, n)
	for i := range out {
		out[i] = blockkey.Key(of)<<40 | blockkey.Key(i+1)
		if i >= shared {
			out[i] = blockkey.Key(own)<<16 | blockkey.Key(i+1) | 1<<63
		}
	}
	return out
}

func at(pod string) store.RankRef { return store.RankRef{Pod: pod} }

// TestPrefixes counts a prompt of the system with two tools, and prompts that come once.
func TestPrefixes(t *testing.T) {
	s, now := demand.New(), int64(1_800_000_000*second)
	own := 0
	add := func(of, shared, n int, pod string, held int) {
		own++
		s.Skips()
		s.Add(chain(of, shared, n, own), at(pod), held, now)
	}
	for range 60 {
		add(1, 12, 40, "a", 12)
	}
	for range 40 {
		add(1, 12, 12, "b", 0) // nothing behind it
	}
	for range 20 {
		add(2, 30, 30, "c", 30)
	}
	for range 30 {
		add(0, 0, 40, "a", 0)
	}
	list, requests := demand.Merge([]demand.Counted{s.Counted(now)}, now, 10)
	if math.Round(requests) != 150 {
		t.Errorf("%v requests, want 150", requests)
	}
	if len(list) != 2 {
		t.Fatalf("%d prefixes, want 2: %+v", len(list), list)
	}
	p := list[0]
	if p.Blocks != 12 || p.Key != chain(1, 12, 12, 0)[11] || len(p.Chain) != 12 || math.Abs(p.Requests-97) > 3 || math.Abs(p.Missed-40) > 1 {
		t.Errorf("%+v", p)
	}
	if len(p.Sent) != 2 || p.Sent[0].RankRef != at("a") || p.Sent[1].RankRef != at("b") {
		t.Errorf("sent to %+v", p.Sent)
	}
	if math.Abs(p.Share-0.65) > 0.03 {
		t.Errorf("share %v", p.Share)
	}
	// The second one ends between two blocks that are counted: 27 and 30.
	if p := list[1]; p.Blocks != 30 || p.Requests < 13 || p.Requests > 20 || p.Missed != 0 {
		t.Errorf("%+v", p)
	}
}

// TestFades looks again one half-life later, and after so long that counts are made small anew.
func TestFades(t *testing.T) {
	s, now := demand.New(), int64(1_800_000_000*second)
	for range 40 {
		s.Skips()
		s.Add(chain(1, 4, 4, 0), at("a"), 0, now)
	}
	want := 40.0
	for range 5 {
		list, _ := demand.Merge([]demand.Counted{s.Counted(now)}, now, 10)
		if len(list) != 1 || math.Abs(list[0].Requests-want) > 0.1 {
			t.Fatalf("%+v, want %v requests", list, want)
		}
		now += demand.HalfLife.Microseconds()
		want /= 2
	}
	for range 3 {
		now += 100 * demand.HalfLife.Microseconds()
		for range 10 {
			s.Skips()
			s.Add(chain(2, 4, 4, 0), at("a"), 0, now)
		}
		list, requests := demand.Merge([]demand.Counted{s.Counted(now)}, now, 10)
		if len(list) != 1 || list[0].Key != chain(2, 4, 4, 0)[3] || math.Abs(list[0].Requests-10) > 0.1 || math.Abs(requests-10) > 0.1 {
			t.Fatalf("%+v of %v", list, requests)
		}
	}
}

// TestMerge gives the same requests to one process and to eight.
func TestMerge(t *testing.T) {
	one, now := demand.New(), int64(1_800_000_000*second)
	eight := make([]*demand.Sketch, 8)
	for i := range eight {
		eight[i] = demand.New()
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := range 4000 {
		now += second / 100
		c := chain(1+int(rnd.ExpFloat64()*3), 12, 30, i)
		for _, s := range []*demand.Sketch{one, eight[i%8]} {
			s.Skips()
			s.Add(c, at(fmt.Sprint(i%3)), 0, now)
		}
	}
	var told []demand.Counted
	for _, s := range eight {
		c := s.Counted(now)
		b, err := c.Encode()
		must.OK(t, err)
		if c, err = demand.Decode(b); err != nil {
			t.Fatal(err)
		}
		told = append(told, c)
	}
	whole, all := demand.Merge([]demand.Counted{one.Counted(now)}, now, 5)
	parts, sum := demand.Merge(told, now, 5)
	if math.Abs(all-sum) > 1 || len(whole) != 5 || len(parts) != 5 {
		t.Fatalf("%d prefixes of %v, %d of %v", len(whole), all, len(parts), sum)
	}
	for i := range whole {
		if a, b := whole[i], parts[i]; a.Key != b.Key || a.Blocks != 12 || math.Abs(a.Requests-b.Requests) > 0.05*a.Requests+16 {
			t.Errorf("%d: %v of %d blocks with %v requests, %v of %d with %v", i, a.Key, a.Blocks, a.Requests, b.Key, b.Blocks, b.Requests)
		}
	}
}

// TestFlood has 200,000 different prompts a second come beside one that is asked for by one
// request in fifty. Room and counting are bounded, and it is found.
func TestFlood(t *testing.T) {
	s, now := demand.New(), int64(1_800_000_000*second)
	added := 0
	for i := range 400_000 {
		now += 5
		c := chain(0, 0, 20, i)
		if i%50 == 0 {
			c = chain(7, 16, 20, i)
		}
		if !s.Skips() {
			added++
			s.Add(c, at(fmt.Sprint("p", i%5000)), 0, now)
		}
	}
	if added > 5000 {
		t.Errorf("%d of 400,000 requests in 2 s were counted one by one", added)
	}
	c := s.Counted(now)
	if b, err := c.Encode(); err != nil || len(b) > 200<<10 {
		t.Errorf("%d bytes to tell, %v", len(b), err)
	}
	list, requests := demand.Merge([]demand.Counted{c}, now, 3)
	if math.Abs(requests-400_000) > 40_000 {
		t.Errorf("%v requests, want about 400,000", requests)
	}
	if len(list) == 0 || list[0].Blocks > 18 || !slices.Contains(chain(7, 16, 16, 0), list[0].Key) || math.Abs(list[0].Requests-8000) > 4000 {
		t.Errorf("%+v", list)
	}
}

// TestOnce has 2,000 different prompts a second: one that is counted stands for several, and is
// still no prefix that prompts share. One that comes again and again is, with all that it stands for.
func TestOnce(t *testing.T) {
	for _, shared := range []int{0, 20} { // every which request begins so
		s, now := demand.New(), int64(1_800_000_000*second)
		for i := range 20_000 {
			now += second / 2000
			c := chain(0, 0, 20, i)
			if shared > 0 && i%shared == 0 {
				c = chain(7, 16, 20, i)
			}
			if !s.Skips() {
				s.Add(c, at("a"), 0, now)
			}
		}
		list, requests := demand.Merge([]demand.Counted{s.Counted(now)}, now, 100)
		if math.Abs(requests-20_000) > 3000 {
			t.Errorf("%v requests, want about 20,000", requests)
		}
		for i := range list {
			if p := &list[i]; shared == 0 || !slices.Contains(chain(7, 16, 16, 0), p.Key) {
				t.Errorf("a prompt that came once is one of those that are asked for most: %+v", p)
			}
		}
		if shared > 0 && (len(list) == 0 || math.Abs(list[0].Requests-1000) > 500) {
			t.Errorf("got %+v, want the prefix of 1,000 requests", list)
		}
	}
}

func TestCopies(t *testing.T) {
	places := []store.RankRef{at("a"), at("b"), at("c"), at("d")}
	for _, c := range []struct {
		share, requests float64
		want            int
	}{{0.1, 1000, 1}, {0.25, 1000, 1}, {0.3, 1000, 2}, {1, 1000, 4}, {1, 25, 2}, {1, 3, 1}} {
		p := demand.Prefix{Share: c.share, Requests: c.requests}
		if n := p.Copies(4); n != c.want {
			t.Errorf("a share of %v of %v requests: %d copies, want %d", c.share, c.requests, n, c.want)
		}
	}
	p := demand.Prefix{Key: 3, Share: 0.75, Requests: 100, Sent: []demand.Sent{{RankRef: at("c"), Requests: 5}, {RankRef: at("a"), Requests: 95}}}
	if got := p.Lacking(places, []store.RankRef{at("a")}); len(got) != 2 || got[0] != at("c") || got[1] == at("a") {
		t.Errorf("%v", got)
	}
	if got := p.Lacking(places, places[:3]); got != nil {
		t.Errorf("%v", got)
	}
}

func FuzzDecode(f *testing.F) {
	s := demand.New()
	s.Skips()
	s.Add(chain(1, 4, 4, 0), at("a"), 0, 1)
	s.Skips()
	s.Add(chain(1, 4, 4, 0), at("a"), 0, 1)
	c := s.Counted(2)
	b := must.Get(c.Encode())(f)
	f.Add(b)
	f.Add([]byte(`{"nodes":[{"key":1,"parent":1,"blocks":1,"requests":9}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := demand.Decode(b)
		if err != nil {
			return
		}
		list, requests := demand.Merge([]demand.Counted{c, c}, c.At, 10)
		for i := range list {
			if p := &list[i]; len(p.Chain) == 0 || p.Chain[len(p.Chain)-1] != p.Key || p.Copies(4) < 1 || !(p.Share >= 0 && p.Share <= 1) {
				t.Fatalf("%+v of %v", p, requests)
			}
		}
	})
}

// BenchmarkAdd is what a request costs whose blocks are counted, of 2k and 131k tokens, and one
// that another stands for.
func BenchmarkAdd(b *testing.B) {
	for _, blocks := range []int{32, 2048} {
		c := chain(1, blocks, blocks, 0)
		b.Run(fmt.Sprint("blocks/", blocks), func(b *testing.B) {
			s, now := demand.New(), int64(second)
			for b.Loop() {
				now += second / 100
				s.Add(c, at("a"), 0, now)
			}
		})
	}
	b.Run("skipped", func(b *testing.B) {
		s, now := demand.New(), int64(second)
		c := chain(1, 32, 32, 0)
		for b.Loop() {
			now++ // a million requests a second
			if !s.Skips() {
				s.Add(c, at("a"), 0, now)
			}
		}
	})
}
