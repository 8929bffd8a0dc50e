package route

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/internal/nearest"
	"github.com/kvatlas/kvatlas/route/loads"
)

// ErrPolicy says that there is no policy of a name.
var ErrPolicy = errors.New("route: unknown policy")

// Policy gives each candidate of a view its cost.
type Policy struct {
	// Name is what requests and settings call it.
	Name string
	// Weigh fills the Cost of each candidate and returns the factors of what changes with
	// load. Lower is better. It keeps nothing of the view, does no I/O, and is safe for
	// concurrent use.
	Weigh func(v *View) loads.Weights
	// Milliseconds says that its costs are times, to which those of transfers can be added.
	Milliseconds bool
	// Blind says that it takes no notice of the prompt's holders, so that the prompt need
	// not be looked up.
	Blind bool
}

// registry are the policies by name.
var registry = struct {
	mu      sync.RWMutex // protects entries
	entries map[string]Policy
}{entries: map[string]Policy{}}

// Register adds a policy, so that requests and settings can name it. It panics if the name is
// taken or empty, as that is a mistake of the program.
func Register(p Policy) {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	if _, taken := registry.entries[p.Name]; taken || p.Name == "" || p.Weigh == nil {
		panic(fmt.Sprintf("route: policy %q cannot be registered", p.Name))
	}
	registry.entries[p.Name] = p
}

// ParsePolicy finds a policy by its name. Its error is ErrPolicy, with the names that there
// are.
func ParsePolicy(name string) (Policy, error) {
	registry.mu.RLock()
	defer registry.mu.RUnlock()
	p, ok := registry.entries[name]
	if !ok {
		return Policy{}, fmt.Errorf("%w: %.40q is not one of %s%s", ErrPolicy, name, strings.Join(names(), ", "), nearest.Clause(name, names()))
	}
	return p, nil
}

// Policies returns the names of all policies, sorted.
func Policies() []string {
	registry.mu.RLock()
	defer registry.mu.RUnlock()
	return names()
}

func names() []string { return slices.Sorted(maps.Keys(registry.entries)) }

// DefaultPolicy decides where no policy is set.
const DefaultPolicy = "eta"

func init() {
	for _, p := range []Policy{
		{Name: DefaultPolicy, Weigh: eta, Milliseconds: true},
		{Name: "dynamo", Weigh: dynamo},
		{Name: "llm_d", Weigh: llmD},
		{Name: "no_hit_lru", Weigh: noHitLRU},
		{Name: "cache_aware", Weigh: cacheAware},
		{Name: "longest_prefix", Weigh: longestPrefix},
		{Name: "consistent_hash", Weigh: consistentHash, Blind: true},
		{Name: "least_requests", Weigh: leastRequests, Blind: true},
		{Name: "least_tokens", Weigh: leastTokens, Blind: true},
		{Name: "round_robin", Weigh: roundRobin, Blind: true},
		{Name: "random", Weigh: random, Blind: true},
	} {
		Register(p)
	}
}

// roundRobin takes the candidates in turn, in the order of this process's requests.
func roundRobin(v *View) loads.Weights {
	n := uint64(len(v.Candidates))
	for i := range v.Candidates {
		place := float64((uint64(i) + n - v.Turn%n) % n)
		v.set(i, place, 0, Term{"turn", place})
	}
	return loads.Weights{}
}

// random takes any.
func random(v *View) loads.Weights {
	for i := range v.Candidates {
		draw := v.Rand.Float64()
		v.set(i, draw, 0, Term{"draw", draw})
	}
	return loads.Weights{}
}

// leastRequests takes the one that the fewest requests run on.
func leastRequests(v *View) loads.Weights {
	for i := range v.Candidates {
		v.set(i, 0, 0)
	}
	return loads.Weights{Requests: 1}
}

// leastTokens takes the one with the fewest tokens to prefill, then the fewest requests.
func leastTokens(v *View) loads.Weights {
	for i := range v.Candidates {
		v.set(i, 0, 0)
	}
	return loads.Weights{Prefill: 1, Requests: 1.0 / 1024}
}

// longestPrefix takes the one that holds most of the prompt, whatever runs there. Among
// equals it is the one with the fewest requests.
func longestPrefix(v *View) loads.Weights {
	for i := range v.Candidates {
		held := float64(v.Candidates[i].Cached())
		v.set(i, -held, 0, Term{"held_tokens", -held})
	}
	return loads.Weights{Requests: 1.0 / 1024}
}

// consistentHash takes the candidate that the prompt's first block falls to by rendezvous
// hashing. One with more than Bound times the mean number of requests is passed over, as in
// "Consistent Hashing with Bounded Loads" (Mirrokni, Thorup, Zadimoghaddam).
func consistentHash(v *View) loads.Weights {
	type place struct {
		i    int
		hash uint64
	}
	order := make([]place, len(v.Candidates))
	var running int64
	for i := range v.Candidates {
		c := &v.Candidates[i]
		b := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+len(c.Pod)), uint64(v.Prefix))
		h := xxh3.HashSeed(append(b, c.Pod...), uint64(c.Rank))
		if !v.HasPrefix {
			h = v.Rand.Uint64()
		}
		order[i] = place{i, h}
		running += c.Load.Requests
	}
	slices.SortFunc(order, func(a, b place) int { return cmp.Or(cmp.Compare(b.hash, a.hash), a.i-b.i) })
	n := float64(len(order))
	bound := math.Ceil(v.Settings.Bound * float64(running+1) / n)
	for rank, p := range order {
		full := 0.0
		if float64(v.Candidates[p.i].Load.Requests)+1 > bound {
			full = n
		}
		v.set(p.i, float64(rank)+full, 0, Term{"place", float64(rank)}, Term{"over_bound", full})
	}
	return loads.Weights{}
}

// requests are the fewest and the most requests that run on a candidate.
func (v *View) requests() (low, high int64) {
	low = math.MaxInt64
	for i := range v.Candidates {
		r := v.Candidates[i].Load.Requests
		low, high = min(low, r), max(high, r)
	}
	return low, high
}

// The defaults of SGLang's cache-aware router.
const (
	sglangAbsolute  = 32
	sglangRelative  = 1.1
	sglangThreshold = 0.5
)

// cacheAware decides as SGLang's router does. Where loads are out of balance, by more than 32 requests and
// 1.1 times, it takes the shortest queue. Else, where a place holds more than half of the prompt, it takes
// the best holder. Else it takes the place with the most room. Room is the fewest blocks in use here, where
// SGLang takes the smallest tree.
func cacheAware(v *View) loads.Weights {
	low, high := v.requests()
	switch most := v.maxHeld(); {
	case high-low > sglangAbsolute && float64(high) > sglangRelative*float64(low):
		return leastRequests(v)
	case float64(most) > sglangThreshold*float64(v.Tokens):
		longestPrefix(v)
		return loads.Weights{}
	}
	leastRequests(v)
	return loads.Weights{Blocks: 1}
}

// LLMD are the weights of llm-d's scorers.
type LLMD struct {
	Prefix float64 `json:"prefix_cache"`
	KV     float64 `json:"kv_cache_utilization"`
	Queue  float64 `json:"queue"`
}

// llmD adds llm-d's weighted scorers, each in [0, 1]. They are the share of the prompt that is
// held, the share of the cache that is free, and the length of the queue. The queue counts 1 if
// it is the shortest and 0 if it is the longest. A candidate whose capacity is not known has a
// free cache.
func llmD(v *View) loads.Weights {
	low, high := v.requests()
	for i := range v.Candidates {
		c, w := &v.Candidates[i], &v.Settings.LLMD
		held, free, queue := 0.0, 1.0, 1.0
		if v.Tokens > 0 {
			held = float64(c.Cached()) / float64(v.Tokens)
		}
		if c.CapacityBlocks > 0 {
			free = 1 - min(1, float64(c.Load.Blocks)/float64(c.CapacityBlocks))
		}
		if high > low {
			queue = float64(high-c.Load.Requests) / float64(high-low)
		}
		held, free, queue = w.Prefix*held, w.KV*free, w.Queue*queue
		v.set(i, -(held + free + queue), 0, Term{"prefix_cache", -held}, Term{"kv_cache_utilization", -free}, Term{"queue", -queue})
	}
	return loads.Weights{}
}

// noHitLRU spreads prompts that no pod holds over the candidates that have waited longest
// for such a one, as llm-d's scorer of this name does. Others are weighed as by llm_d.
func noHitLRU(v *View) loads.Weights {
	if v.isWarm() {
		return llmD(v)
	}
	for i := range v.Candidates {
		turn := float64(v.Candidates[i].Turn)
		v.set(i, turn, 0, Term{"last_cold_request", turn})
	}
	return loads.Weights{}
}
