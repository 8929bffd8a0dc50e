package scorer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/kvatlas/kvatlas/blockkey"
)

// usageBuckets is how finely a window is divided: a use counts for the window
// to a sixteenth of it.
const usageBuckets = 16

// usageShards spreads the locks; a power of two.
const usageShards = 16

// Usage counts how often blocks are asked for within a sliding window. It is
// bounded: of the blocks that it does not hold any more, the count begins
// anew. It belongs to one process and is not part of the index. Safe for
// concurrent use.
type Usage struct {
	bucket time.Duration
	shards [usageShards]usageShard
}

type usageShard struct {
	mu  sync.Mutex // protects lru and what it holds
	lru *simplelru.LRU[blockkey.StoreKey, *uses]
}

// uses is the count of one block in each bucket of the window. Buckets older
// than at-usageBuckets are void.
type uses struct {
	at     int64 // number of the newest bucket
	counts [usageBuckets]uint32
}

// NewUsage counts over window (at least 16 ns), for at most entries blocks
// (about 200 bytes each).
func NewUsage(window time.Duration, entries int) (*Usage, error) {
	if window < usageBuckets {
		return nil, fmt.Errorf("scorer: usage window %v is too short", window)
	}
	if entries < usageShards {
		return nil, fmt.Errorf("scorer: usage needs room for at least %d blocks, got %d", usageShards, entries)
	}
	u := &Usage{bucket: window / usageBuckets}
	var errs []error
	for i := range u.shards {
		var err error
		u.shards[i].lru, err = simplelru.NewLRU[blockkey.StoreKey, *uses](entries/usageShards, nil)
		errs = append(errs, err)
	}
	return u, errors.Join(errs...)
}

// Touch counts one use, at now, of each block, and returns how often each was
// used before within the window. Blocks that were not are left out at the
// end, so the result is as long as the used part of the chain.
func (u *Usage) Touch(now time.Time, model string, keys []blockkey.Key) []int {
	m := blockkey.ModelOf(model)
	at := now.UnixNano() / int64(u.bucket)
	out := make([]int, 0, len(keys))
	used := 0
	for i, k := range keys {
		n := u.touch(at, k.In(m))
		out = append(out, n)
		if n > 0 {
			used = i + 1
		}
	}
	return out[:used]
}

func (u *Usage) touch(at int64, k blockkey.StoreKey) (before int) {
	// The low bits are the partition; these are others, so that both spread.
	s := &u.shards[uint64(k)>>32%usageShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.lru.Get(k)
	if !ok {
		e = &uses{at: at}
		s.lru.Add(k, e)
	}
	e.advance(at)
	for _, c := range e.counts {
		before += int(c)
	}
	e.counts[e.at%usageBuckets]++
	return before
}

// advance voids the buckets that have left the window by the time at. A clock
// that runs backwards counts into the newest bucket.
func (e *uses) advance(at int64) {
	if at <= e.at {
		return
	}
	for b := max(e.at+1, at-usageBuckets+1); b <= at; b++ {
		e.counts[b%usageBuckets] = 0
	}
	e.at = at
}
