package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/store"
)

// Errors of Ingester.Recent.
var (
	// ErrNotRead says that this process does not read the rank: another replica does, or none.
	ErrNotRead = errors.New("ingest: the rank is not read here")
	// ErrTooNew says that a range begins beyond the newest message.
	ErrTooNew = errors.New("ingest: the range begins beyond the newest message")
	// ErrTooOld says that a range begins before the oldest message that is kept: the client needs a picture
	// of the whole, such as Ingester.Held gives.
	ErrTooOld = errors.New("ingest: the range begins before the oldest message that is kept")
	// ErrRange says that a range ends before it begins.
	ErrRange = errors.New("ingest: invalid range")
)

// Recent are messages of a rank.
type Recent struct {
	// Messages are in order and without a hole, as the engine has sent them. The
	// Decoder of event reads their payloads, which are shared and must not be changed.
	Messages []zmq.Message
	// First and Last are the oldest and the newest that are kept.
	First, Last uint64
}

// ring keeps the last messages of a generation.
type ring struct {
	limit int
	bytes int64

	mu      sync.Mutex // protects all below
	entries []zmq.Message
	head    int // of the oldest, once entries are full
	size    int64
}

func newRing(c *Config) *ring { return &ring{limit: c.RelayMessages, bytes: c.RelayBytes} }

// reset forgets all: what comes is of another life.
func (r *ring) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries, r.head, r.size = nil, 0, 0
}

// add adds the message that follows the newest.
func (r *ring) add(m zmq.Message) {
	n := sizeOf(&m)
	if r.limit <= 0 || n > r.bytes {
		if r.limit > 0 {
			r.reset()
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.head < len(r.entries) && (len(r.entries)-r.head >= r.limit || r.size+n > r.bytes) {
		r.size -= sizeOf(&r.entries[r.head])
		r.entries[r.head] = zmq.Message{}
		r.head++
	}
	if r.head > 64 && r.head > len(r.entries)/2 {
		k := copy(r.entries, r.entries[r.head:])
		clear(r.entries[k:])
		r.entries, r.head = r.entries[:k], 0
	}
	r.entries = append(r.entries, m)
	r.size += n
}

// read returns the messages from one sequence to another, both included, at most limit.
func (r *ring) read(from, to uint64, limit int) (Recent, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.entries[r.head:]
	if from > to {
		return Recent{}, fmt.Errorf("%w: from %d to %d", ErrRange, from, to)
	}
	if len(kept) == 0 {
		return Recent{}, fmt.Errorf("%w: there is none", ErrTooNew)
	}
	out := Recent{First: kept[0].Seq, Last: kept[len(kept)-1].Seq}
	switch {
	case from > out.Last:
		return out, fmt.Errorf("%w: %d, the newest is %d", ErrTooNew, from, out.Last)
	case from < out.First:
		return out, fmt.Errorf("%w: %d, the oldest is %d", ErrTooOld, from, out.First)
	}
	kept = kept[from-out.First:]
	n := min(to-from, out.Last-from) + 1
	out.Messages = append(out.Messages, kept[:min(n, uint64(limit))]...)
	return out, nil
}

// MaxRecent is the most messages that one call of Recent returns.
const MaxRecent = 1024

// Recent returns messages of a rank that this process reads, at most MaxRecent. They
// are from one sequence of the engine to another, both included; ^uint64(0) is up to
// the newest. The errors are ErrNotRead, ErrTooNew, ErrTooOld and ErrRange; with
// ErrTooNew and ErrTooOld First and Last are set where there are any.
func (in *Ingester) Recent(pod string, rank int, from, to uint64) (Recent, error) {
	r := in.reader(pod, rank)
	if r == nil {
		return Recent{}, fmt.Errorf("%w: %s/%d", ErrNotRead, pod, rank)
	}
	return r.ring.read(from, to, MaxRecent)
}

// Held is a page of what the index holds of a rank.
type Held struct {
	// Next is the cursor of the next page, "" after the last. Generation and Seq are the rank's before the
	// page was read. All of the engine's messages before Seq are in it, and of later ones some may be. All
	// pages and then the messages from the first page's Seq on are the whole, unless the generation has
	// changed.
	Next       string
	Generation store.Generation
	Seq        uint64
	// Keys are store keys, by tier, in no order.
	Keys [store.NumTiers][]blockkey.StoreKey
}

// Held returns a page of all blocks that the index holds of a rank, whichever process reads it. Dynamo's
// worker query falls back to such a dump. It begins with the cursor ""; limit is how many blocks of the
// index, of whatever rank, a page looks at, see store.Pager. Blocks may come twice.
func (in *Ingester) Held(ctx context.Context, pod string, rank int, cursor string, limit int) (Held, error) {
	life, err := in.config.Index.Life(ctx, pod, rank)
	if err != nil {
		return Held{}, err
	}
	page, err := in.config.Index.Page(ctx, cursor, limit)
	if err != nil {
		return Held{}, err
	}
	h := Held{Next: page.Next, Generation: life.Generation, Seq: life.Seq}
	at, ok := page.Registry.PodIndex(pod)
	if !ok {
		return h, nil
	}
	for i := range page.Blocks {
		for _, id := range page.Blocks[i].Holders {
			slot, tier, live := page.Registry.Holder(id)
			if live && page.Registry.Slots[slot] == (store.Slot{Pod: at, Rank: rank}) {
				h.Keys[tier] = append(h.Keys[tier], page.Blocks[i].Key)
			}
		}
	}
	return h, nil
}
