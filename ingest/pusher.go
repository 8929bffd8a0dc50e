package ingest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/store"
)

// pushers keeps the state of ranks that push, by model, those that have pushed last.
type pushers struct {
	cache *lru.Cache[pushKey, *pusher]
}

func newPushers(limit int) (*pushers, error) {
	c, err := lru.New[pushKey, *pusher](limit)
	if err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	return &pushers{cache: c}, nil
}

func (p *pushers) len() int { return p.cache.Len() }

// pushKey names what a pusher is of: pushes without numbers may be of several models.
type pushKey struct {
	rankKey
	model string
}

// get returns the state of a rank and model.
func (p *pushers) get(key pushKey) *pusher {
	fresh := &pusher{busy: make(chan struct{}, 1)}
	if have, ok, _ := p.cache.PeekOrAdd(key, fresh); ok {
		p.cache.Get(key) // it is the latest now
		return have
	}
	return fresh
}

// pusher is what this process knows of a rank that pushes. It is a copy of what stands in
// the index, which is read again whenever that has moved.
type pusher struct {
	busy chan struct{} // holds a token while a push is under way; protects all below

	model   store.ModelInfo
	life    store.Life // as it was after the last push
	chunk   *rechunk.Chunker
	feeder  feeder
	written last
	wrote   bool
	other   bool             // the generation is of another model
	ended   store.Generation // cannot be gone on with, even if the index still has it

	// Without sequences: what has been pushed here, and under which ids.
	loose   *rechunk.Chunker
	holders []store.HolderID
}

// feeder says whose pushes a generation is made of, if they are not numbered in its own
// rank's stream. It has the rank that names the stream, and that rank's generation. The zero
// feeder is its own stream.
type feeder struct {
	rank int
	gen  store.Generation
}

// feederKey is the entry of a generation's map that has its feeder: 8 bytes of the
// generation and 2 of the rank, big endian. No block of an engine has as many parts.
var feederKey = store.MapKey{Hash: ^uint64(0), Part: 0xfffe}

func (f feeder) value() []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(nil, uint64(f.gen)), uint16(f.rank))
}

// parseFeeder reads a value of feederKey; nil is the zero feeder.
func parseFeeder(value []byte) feeder {
	if len(value) != 10 {
		return feeder{}
	}
	return feeder{rank: int(binary.BigEndian.Uint16(value[8:])), gen: store.Generation(binary.BigEndian.Uint64(value))}
}

// lockPushers returns the states of the ranks that a push is about, and keeps other
// pushes from them until release is called. They are taken in the order of ranks, so
// that two pushes never wait for each other.
func (in *Ingester) lockPushers(ctx context.Context, p *Pushed) (states map[int]*pusher, release func(), err error) {
	locked := map[int]*pusher{}
	release = func() {
		for _, s := range locked {
			<-s.busy
		}
	}
	for _, rank := range p.ranks() {
		s, err := in.lockPusher(ctx, p, rank)
		if s != nil {
			locked[rank] = s
		}
		if err != nil {
			release()
			return nil, nil, err
		}
	}
	return locked, release, nil
}

// lockPusher returns the state of one rank. It is locked unless it is nil, also with an
// error.
func (in *Ingester) lockPusher(ctx context.Context, p *Pushed, rank int) (*pusher, error) {
	if in.reader(p.Pod, rank) != nil {
		return nil, fmt.Errorf("%w: %s/%d, so its events cannot be pushed too", ErrReading, p.Pod, rank)
	}
	s := in.pushers.get(pushKey{rankKey{p.Pod, rank}, p.Model})
	select {
	case s.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.model.Name == "" {
		m, err := in.model(ctx, p.Model)
		if err != nil {
			return s, err
		}
		s.model = m
	}
	return s, nil
}

// chunker makes the Chunker of the state's generation.
func (in *Ingester) chunker(pod string, rank int, s *pusher, fresh bool) (*rechunk.Chunker, error) {
	c, err := rechunk.New(in.chunking(pod, "", rank, s.model.BlockSize, fresh))
	if err != nil {
		return nil, fmt.Errorf("ingest: model %s: %w", s.model.Name, err)
	}
	return c, nil
}

// refresh makes the state what stands in the index, if another replica or another life
// has moved that.
func (in *Ingester) refresh(ctx context.Context, s *pusher, pod string, rank int) error {
	life, err := in.config.Index.Life(ctx, pod, rank)
	if err != nil {
		return err
	}
	if life == s.life && s.chunk != nil {
		return nil
	}
	s.life, s.chunk, s.feeder, s.wrote, s.other = life, nil, feeder{}, false, false
	if life.Generation == 0 {
		return nil
	}
	if life.Generation == s.ended {
		s.life = store.Life{Fence: life.Fence}
		return nil
	}
	if life.Seq, err = in.config.Index.TakeOver(ctx, life.Generation, life.Fence); err != nil {
		return err
	}
	if life.Seq == 0 {
		// Parts of something may have been applied.
		s.life = store.Life{Fence: life.Fence}
		return nil
	}
	read := in.mapReader(life.Generation)
	torn, err := rechunk.Torn(ctx, life.Seq, read)
	if err != nil {
		return err
	}
	if torn {
		s.life = store.Life{Fence: life.Fence}
		return nil
	}
	values, err := read(ctx, lastKey, feederKey)
	if err != nil {
		return err
	}
	s.life = life
	s.feeder = parseFeeder(values[1])
	s.written.seq = life.Seq - 1
	s.written.mark, s.wrote = findLast(values[0], life.Seq-1)
	s.other = otherModel(values[0], s.model.Name)
	s.chunk, err = in.chunker(pod, rank, s, false)
	return err
}

func (in *Ingester) mapReader(gen store.Generation) rechunk.Reader {
	return func(ctx context.Context, keys ...store.MapKey) ([][]byte, error) {
		return in.config.Index.ReadMap(ctx, gen, keys...)
	}
}

// forget drops what is known of the rank's generation after a try that failed.
func (s *pusher) forget(err error) {
	if errors.Is(err, store.ErrEnded) {
		// By another process; or the index has lost of its map what is needed, and would say
		// so again: then another begins.
		s.ended = s.life.Generation
	}
	s.life, s.chunk = store.Life{}, nil
}
