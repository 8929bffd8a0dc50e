package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/semaphore"

	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/store"
)

// Errors of Read and Push.
var (
	// ErrClosed says that the Ingester has been closed.
	ErrClosed = errors.New("ingest: closed")
	// ErrReading says that this Ingester reads the rank already.
	ErrReading = errors.New("ingest: the rank is read already")
	// ErrOtherModel says that a numbered push is of another model than its pod is registered
	// for. The message says what to do.
	ErrOtherModel = errors.New("ingest: another model")
)

// Ingester reads streams of events and keeps an index true to them.
type Ingester struct {
	config  Config
	writer  *writer
	queues  budget              // of all queues
	replays *semaphore.Weighted // bytes of answers of replay sockets
	dials   *zmq.Dials          // of all readers
	pushers *pushers
	matched sync.Map                        // pod -> *atomic.Int64, nanoseconds since 1970
	asked   sync.Map                        // model -> the same
	media   *lru.Cache[podMedium, struct{}] // unknown ones of which it was told

	ctx    context.Context // done when closed
	cancel context.CancelFunc
	writes chan struct{} // closed when the writer has ended
	active sync.WaitGroup

	mu      sync.Mutex // protects all below
	readers map[rankKey]*reader
	parked  map[rankKey]parked
	closed  bool
}

// rankKey names a rank.
type rankKey struct {
	pod  string
	rank int
}

// maxDials is how many first tries to connect, and how many others, are under way at once.
// One without an answer takes up to 5 s, and a file descriptor.
const maxDials = 256

// podMedium is a medium of a pod's.
type podMedium struct{ pod, medium string }

// maxUnknownMedia bounds those that are reported: clients that push choose the words, and each is a line of
// the log. Blocks in further ones are counted all the same.
const maxUnknownMedia = 1024

// unknownMedium is what the Chunker of a rank calls.
func (in *Ingester) unknownMedium(pod string, rank int) func(string, int) {
	return func(medium string, _ int) {
		if in.media.Len() == maxUnknownMedia {
			return
		}
		if told, _ := in.media.ContainsOrAdd(podMedium{pod, medium}, struct{}{}); !told {
			in.config.Observer.UnknownMedium(pod, rank, medium)
		}
	}
}

// chunking is how the events of a rank of an engine of some kind become index blocks.
func (in *Ingester) chunking(pod, engine string, rank, blockSize int, fresh bool) rechunk.Config {
	c := &in.config
	return rechunk.Config{
		BlockSize: blockSize, Engine: engine, Media: c.Media, UnknownMedium: in.unknownMedium(pod, rank), Copies: c.Copies, MaxRecords: c.Records, Unremoved: c.Unremoved, Fresh: fresh,
	}
}

// New returns an Ingester. Close ends it; the index stays open.
func New(c Config) (*Ingester, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	in := &Ingester{config: c, queues: budget{limit: c.TotalBytes}, writer: newWriter(&c), replays: semaphore.NewWeighted(int64(c.Replays) * c.ReplayBytes), dials: zmq.NewDials(maxDials), readers: map[rankKey]*reader{}, writes: make(chan struct{})}
	if in.pushers, err = newPushers(c.Pushers); err != nil {
		return nil, err
	}
	if in.media, err = lru.New[podMedium, struct{}](maxUnknownMedia); err != nil {
		return nil, err
	}
	in.ctx, in.cancel = context.WithCancel(context.Background())
	// The writer ends after all that write.
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(in.writes)
		in.writer.run(ctx)
	}()
	context.AfterFunc(in.ctx, func() {
		in.active.Wait()
		cancel()
	})
	return in, nil
}

// enter notes that something is under way that Close waits for.
func (in *Ingester) enter() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return ErrClosed
	}
	in.active.Add(1)
	return nil
}

// Close ends all reading and pushing, and waits for it. Calls after it return ErrClosed.
func (in *Ingester) Close() error {
	in.mu.Lock()
	again := in.closed
	in.closed = true
	in.mu.Unlock()
	if again {
		return ErrClosed
	}
	in.cancel()
	<-in.writes
	return nil
}

// Read reads the stream of one rank until ctx is done, and writes it to the index under
// the fence. The fence must not be lower than that of any reader of the rank before. It
// connects, and connects again, by itself.
//
// It returns ctx's error, ErrReading, ErrClosed, store.ErrClosed, or an error of
// s.Validate. It returns store.ErrFenced when another reader has taken over, and
// store.ErrUnknownPod when the pod is not registered any more. It returns
// store.ErrNoRank when the registration does not have the rank. It returns
// store.ErrModelConflict when the model's keys are of a scheme that engines' events do
// not give. For all else it goes on trying. When it has returned nothing more is
// written.
func (in *Ingester) Read(ctx context.Context, s Source, fence uint64) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if err := store.CheckFence(fence); err != nil {
		return err
	}
	if err := in.enter(); err != nil {
		return err
	}
	defer in.active.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(in.ctx, cancel)()

	r := &reader{in: in, s: s, fence: fence, q: newQueue(&in.config, &in.queues), ring: newRing(&in.config)}
	r.decode.Limits = in.config.Events
	r.f = follower{act: r, tries: in.config.ReplayTries, patience: in.config.ReplayPatience}
	wire := in.config.Wire
	wire.Endpoint, wire.Bind, wire.Topic, wire.Curve, wire.Dials = s.Events, s.Bind, s.Topic, s.Curve, in.dials
	sub, err := zmq.NewSubscriber(wire, inlet{r})
	if err != nil {
		return err
	}
	if err := in.add(r); err != nil {
		return err
	}
	defer in.remove(r)

	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = sub.Run(ctx) // it returns ctx's error
	}()
	err = r.run(ctx)
	cancel()
	r.q.close()
	<-done
	r.q.drain()
	if in.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return ErrClosed
	}
	return err
}

func (in *Ingester) add(r *reader) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	key := rankKey{r.s.Pod, r.s.Rank}
	if in.readers[key] != nil {
		return fmt.Errorf("%w: %s/%d", ErrReading, r.s.Pod, r.s.Rank)
	}
	in.readers[key] = r
	in.matched.LoadOrStore(r.s.Pod, new(atomic.Int64))
	in.asked.LoadOrStore(r.s.Model, new(atomic.Int64))
	return nil
}

func (in *Ingester) remove(r *reader) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.readers, rankKey{r.s.Pod, r.s.Rank})
	for key := range in.readers {
		if key.pod == r.s.Pod {
			return
		}
	}
	in.matched.Delete(r.s.Pod)
}

// reader returns the reader of a rank, nil for none.
func (in *Ingester) reader(pod string, rank int) *reader {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.readers[rankKey{pod, rank}]
}

// Asked notes that a lookup has asked for blocks of a model, Matched that one has found
// some of a pod. They are cheap enough for each: without them RankStats cannot tell that
// events flow and nothing ever matches.
func (in *Ingester) Asked(model string) { stamp(&in.asked, model) }

// Matched is described at Asked.
func (in *Ingester) Matched(pod string) { stamp(&in.matched, pod) }

// stamp writes the time down under a name that is known.
func stamp(times *sync.Map, name string) {
	if v, ok := times.Load(name); ok {
		if at, ok := v.(*atomic.Int64); ok {
			at.Store(time.Now().UnixNano())
		}
	}
}

// stamped is when stamp was last called, zero for never.
func stamped(times *sync.Map, name string) time.Time {
	if v, ok := times.Load(name); ok {
		if at, ok := v.(*atomic.Int64); ok && at.Load() != 0 {
			return time.Unix(0, at.Load())
		}
	}
	return time.Time{}
}

// model returns how a model is indexed, and fixes it if it is not fixed.
func (in *Ingester) model(ctx context.Context, name string) (store.ModelInfo, error) {
	m, err := in.config.Index.EnsureModel(ctx, store.ModelInfo{Name: name, BlockSize: in.config.BlockSize, Scheme: store.SchemeNative})
	if errors.Is(err, store.ErrModelConflict) && m.Scheme == store.SchemeNative {
		return m, nil // of another block size, which is all right
	}
	return m, err
}

// inlet puts what a subscriber receives into the queue of its reader. It waits for room:
// what is not read stays with the connection and the publisher.
type inlet struct{ r *reader }

func (i inlet) Connected(peer string) {
	i.r.count.connections.Add(1)
	i.r.q.connected()
	i.r.in.config.Observer.Connected(i.r.s.Pod, i.r.s.Rank, peer)
}

func (i inlet) Message(m zmq.Message) {
	i.r.count.lastMessage.Store(time.Now().UnixNano())
	if m.Seq >= store.MaxSequence {
		i.r.undecodable(m.Seq, 1, errNumber)
		return
	}
	i.r.q.put(m)
}

func (i inlet) Malformed(err error) { i.r.undecodable(0, 1, err) }

func (i inlet) Disconnected(err error) {
	i.r.q.disconnected()
	i.r.in.config.Observer.Disconnected(i.r.s.Pod, i.r.s.Rank, err)
}
