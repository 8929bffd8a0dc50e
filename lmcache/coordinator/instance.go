package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// Kinds of marks: the incarnation + 1, and the number of the last batch.
const (
	markIncarnation = 1
	markSeq         = 2
)

// instance is one of LMCache's servers.
type instance struct {
	c    *Coordinator
	id   string
	host string // that its requests come from

	mu sync.Mutex // protects all below; it is held over calls of the index
	// known says that the cursor is what was written last, as far as this process knows.
	known       bool
	incarnation uint64
	seq         uint64
	// suspect says why deletions may have been lost, "" when they have not.
	suspect string
	workers map[workerID]*feed.Worker
	told    string // why it is unmapped
	full    bool   // that there is no room for its workers was told
	renewed time.Time

	held atomic.Int32 // len(workers), for others to read

	memberMu sync.Mutex // protects all below
	member   member
	heard    time.Time
	// before is the member that registered from this host earlier, until replaced.
	before   member
	replaced time.Time
	// speaks is the incarnation that events have come of, since began and last at spoke.
	speaks       uint64
	began, spoke time.Time
	toldRival    string
}

// summary is what has become of batches.
type summary struct {
	Applied    int `json:"applied"`
	Duplicates int `json:"duplicates"`
	Stale      int `json:"stale"`
}

// ingest takes in batches of the instance, in order. All that are applied are written in
// one step.
func (in *instance) ingest(ctx context.Context, list []batch) (s summary, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.hear(list[len(list)-1].Incarnation)
	for try := 0; ; try++ {
		if s, err = in.write(ctx, list); !feed.Final(err) || try == 2 {
			return s, err
		}
		// Another replica has taken it over, or the index has lost it. It is heard here.
		in.known = false
	}
}

// write is one try of ingest.
func (in *instance) write(ctx context.Context, list []batch) (s summary, err error) {
	c := in.c
	reg, err := c.registry(ctx)
	if err != nil {
		return s, err
	}
	targets, err := in.place(reg)
	if err == nil || errors.Is(err, feed.ErrShared) {
		// What it holds for others than these ends.
		if err := in.disown(ctx, targets); err != nil {
			return s, err
		}
	}
	if errors.Is(err, feed.ErrUnmapped) || errors.Is(err, feed.ErrShared) {
		// It is told that all is well: it could do nothing about it.
		in.unmapped(err)
		for i := range list {
			c.count.unplaced.Add(uint64(len(list[i].Entries)))
		}
		in.known = false
		return summary{Applied: len(list)}, nil
	} else if err != nil {
		return s, err
	}
	in.told = ""
	loaded := !in.known
	if loaded {
		if err := in.load(ctx, reg, targets); err != nil {
			return s, err
		}
	}
	next := cursor{in.incarnation, in.seq}
	if !loaded && next.incarnation != 0 && holed(next, list) {
		// Another replica may have what seems to be missing.
		if err := in.load(ctx, reg, targets); err != nil {
			return s, err
		}
		next = cursor{in.incarnation, in.seq}
	}
	var count tally
	changes := map[workerID]*feed.Ops{}
	clears := map[store.Tier]bool{}
	suspect := in.suspect
	for i := range list {
		b := &list[i]
		switch {
		case b.Incarnation+1 < next.incarnation:
			s.Stale++
			in.outlived(b.Incarnation, next.incarnation-1)
			continue
		case b.Incarnation+1 > next.incarnation:
			if next.incarnation != 0 {
				clears[store.CPU] = true
				dropAdds(changes, store.CPU)
			}
			if next.incarnation != 0 && b.Seq != 1 {
				suspect = fmt.Sprintf("the first batch of a new incarnation is number %d", b.Seq)
			}
			next = cursor{b.Incarnation + 1, 0}
			c.config.Observer.Began(in.id, b.Incarnation)
		case b.Seq <= next.seq:
			s.Duplicates++
			continue
		case b.Seq != next.seq+1:
			suspect = fmt.Sprintf("batch %d after %d", b.Seq, next.seq)
		}
		if suspect != "" {
			count.gaps++
			c.config.Observer.Lost(in.id, suspect)
			// All of it ends, with what came before in this body.
			clears = map[store.Tier]bool{store.AllTiers: true}
			clear(changes)
			suspect = ""
		}
		next.seq = b.Seq
		s.Applied++
		in.collect(b, targets, changes, &count)
	}
	if s.Applied == 0 {
		return s, in.renew(ctx)
	}
	// When this fails LMCache drops the batches, and the next one has a hole before it. One
	// that is sent again is written anew.
	if err := in.apply(ctx, next, clears, changes); err != nil {
		return summary{}, err
	}
	c.count.add(count)
	in.suspect = ""
	in.incarnation, in.seq = next.incarnation, next.seq
	return s, in.renew(ctx)
}

// cursor is a place in the batches of an instance; its incarnation is one higher than
// LMCache's, 0 means none.
type cursor struct{ incarnation, seq uint64 }

// holed reports whether the batches leave a hole behind the cursor, or in themselves.
func holed(at cursor, list []batch) bool {
	for i := range list {
		b := &list[i]
		switch {
		case b.Incarnation+1 < at.incarnation || b.Incarnation+1 == at.incarnation && b.Seq <= at.seq:
			continue
		case b.Incarnation+1 > at.incarnation && b.Seq != 1, b.Incarnation+1 == at.incarnation && b.Seq != at.seq+1:
			return true
		}
		at = cursor{b.Incarnation + 1, b.Seq}
	}
	return false
}

// tally counts what is counted once it is written.
type tally struct{ stored, deleted, skipped, foreign, gaps uint64 }

// dropAdds takes changes of a tier back.
func dropAdds(changes map[workerID]*feed.Ops, tier store.Tier) {
	for _, o := range changes {
		kept := o.List[:0]
		for _, op := range o.List {
			if op.Tier != tier {
				kept = append(kept, op)
			}
		}
		o.List = kept
	}
}

// collect adds the changes of a batch.
func (in *instance) collect(b *batch, targets []feed.Target, changes map[workerID]*feed.Ops, count *tally) {
	var kind store.OpKind
	switch b.Type {
	case "store":
		kind = store.Add
	case "delete":
		kind = store.Remove
	default: // access, config: nothing changes place
		return
	}
	tier := b.tier()
	for i := range b.Entries {
		k := &b.Entries[i]
		if k.Salt != "" || k.Group != 0 {
			count.skipped++
			continue
		}
		served := false
		for _, t := range targets {
			if t.Model != k.Model {
				continue
			}
			served = true
			id := workerID{t, k.Rank.Rank()}
			w := in.workers[id]
			if w == nil {
				if w = in.join(id, in.named(targets), false); w == nil {
					count.skipped++
					continue
				}
			}
			w.Workers = max(w.Workers, k.Rank.WorldSize())
			o := changes[id]
			if o == nil {
				o = &feed.Ops{}
				changes[id] = o
			}
			if in.c.config.Heard != nil && kind == store.Add {
				in.c.config.Heard(k.hash)
			}
			o.Key(kind, tier, k.hash.ChunkKey())
		}
		switch {
		case !served:
			count.foreign++
		case kind == store.Add:
			count.stored++
		default:
			count.deleted++
		}
	}
}

func (in *instance) unmapped(err error) {
	if why := err.Error(); why != in.told {
		in.told = why
		in.c.config.Observer.Unmapped(in.id, err)
	}
}
