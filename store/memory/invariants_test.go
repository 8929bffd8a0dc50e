package memory

import (
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/store"
)

// checkInvariants holds an index at rest to what its parts promise each other.
func checkInvariants(tb testing.TB, x *Index) {
	tb.Helper()
	x.janitor.mu.Lock()
	defer x.janitor.mu.Unlock()
	x.gate.Lock()
	defer x.gate.Unlock()

	// The log: what lives in each chunk, and which slots refer to which set.
	refs := map[uint32]int64{}
	blocks := map[uint32]bool{} // by position
	chunks := int64(0)
	for id := range x.log.last() + 1 {
		c := x.log.chunk(id)
		if c == nil {
			continue
		}
		chunks++
		live := int32(0)
		if c.open.Load() {
			live++
		}
		if n := c.n.Load(); n > chunkSlots {
			tb.Fatalf("chunk %d has %d slots", id, n)
		}
		for off, ref := range c.refs {
			if ref == 0 {
				continue
			}
			if uint32(off) >= c.n.Load() {
				tb.Fatalf("chunk %d: slot %d is used beyond %d", id, off, c.n.Load())
			}
			if ref&setMask == 0 {
				tb.Fatalf("chunk %d: slot %d has an age and no set", id, off)
			}
			live++
			refs[ref&setMask]++
			blocks[makePos(id, uint32(off))] = true
		}
		if got := c.live.Load(); got != live || live == 0 {
			tb.Fatalf("chunk %d: live is %d, %d are counted", id, got, live)
		}
	}
	if got := x.log.chunks.Load(); got != chunks {
		tb.Fatalf("%d chunks, %d are counted", got, chunks)
	}
	if got := x.blocks.Load(); got != int64(len(blocks)) {
		tb.Fatalf("%d blocks, %d are counted", got, len(blocks))
	}

	// The tables: one entry for each block, where seek finds it.
	entries, buckets := 0, 0
	for id := range x.shards {
		s := &x.shards[id]
		buckets += len(s.t)
		passed := make([]uint32, len(s.t))
		live := 0
		for i := range s.t {
			for _, e := range s.t[i].entries {
				if e == 0 {
					continue
				}
				live++
				pos := uint32(e)
				if !blocks[pos] {
					tb.Fatalf("shard %d: an entry leads to %#x, where no block is", id, pos)
				}
				key := x.log.chunk(pos >> offBits).keys[pos&offMask]
				hash := x.hash(key)
				if int(shardOf(hash)) != id || tagOf(hash) != entryTag(e) {
					tb.Fatalf("shard %d: the entry of %v is not its own", id, key)
				}
				if p := x.seek(key, hash); p.pos != pos {
					tb.Fatalf("seek finds %v at %#x, not %#x", key, p.pos, pos)
				}
				for at := s.t.home(tagOf(hash)); at != i; at = s.t.after(at) {
					passed[at]++
				}
			}
		}
		for i := range s.t {
			if s.t[i].passed != passed[i] {
				tb.Fatalf("shard %d: bucket %d says %d passed, %d did", id, i, s.t[i].passed, passed[i])
			}
		}
		if s.live != live {
			tb.Fatalf("shard %d: live is %d, %d are counted", id, s.live, live)
		}
		entries += live
	}
	if entries != len(blocks) {
		tb.Fatalf("%d entries for %d blocks", entries, len(blocks))
	}
	if got, want := x.bytes.Load(), chunks*chunkBytes+int64(buckets)*bucketBytes; got != want {
		tb.Fatalf("%d bytes, %d are counted", got, want)
	}

	// The sets: interned, ascending, and counted.
	x.registry.mu.Lock()
	for _, p := range x.registry.pods {
		for _, r := range p.ranks {
			for _, h := range r.tiers {
				if h.id != 0 {
					refs[h.single]++
				}
			}
			for _, h := range r.predicted {
				refs[h.single]++
			}
		}
	}
	x.registry.mu.Unlock()
	s := &x.sets
	seen := map[string]bool{}
	live, size := 0, int64(0)
	for n := uint32(0); n < maxPages; n++ {
		if s.root[n>>dirBits].Load() == nil {
			n |= 1<<dirBits - 1 // on to the next directory
			continue
		}
		page := s.page(n)
		if page == nil {
			continue
		}
		size += pageBytes
		for i := range page.sets {
			id := n<<pageBits | uint32(i)
			p := page.sets[i].Load()
			if p == nil {
				if refs[id] != 0 {
					tb.Fatalf("%d blocks refer to set %d, which is not there", refs[id], id)
				}
				continue
			}
			ids := p.ids()
			live++
			size += setSize(len(ids))
			if got := page.refs[i].Load(); int64(got) != refs[id] {
				tb.Fatalf("set %d of %v: %d refs, %d are counted", id, ids, got, refs[id])
			}
			if refs[id] == 0 && !page.queued[i] {
				tb.Fatalf("set %d of %v is unused and not to be freed", id, ids)
			}
			if len(ids) == 0 || !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) {
				tb.Fatalf("set %d is %v", id, ids)
			}
			key := ""
			for _, h := range ids {
				key += string(rune(h)) + "|"
			}
			if seen[key] {
				tb.Fatalf("set %v is there twice", ids)
			}
			seen[key] = true
		}
	}
	size += int64(len(s.found.entries)) * entryBytes
	if s.live != live || s.found.n != live || s.size.Load() != size {
		tb.Fatalf("%d sets of %d bytes, %d of %d are counted", s.live, s.size.Load(), live, size)
	}
}

var _ store.Index = checked{}

// checked is an index that is held to its invariants when it is closed.
type checked struct {
	*Index
	tb testing.TB
}

func (c checked) Close() error {
	if !c.closed.Load() {
		checkInvariants(c.tb, c.Index)
	}
	return c.Index.Close()
}
