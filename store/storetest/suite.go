// Package storetest is the contract of [store.Index] as a test suite. Every
// implementation runs it:
//
//	func TestIndex(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Subject {
//			return storetest.Subject{Index: ..., Advance: clock.Advance}
//		})
//	}
//
// Two parts stand beside each other. Named cases each say in words what they hold
// the index to. [Histories] plays random histories to the index and to [Model], a
// plain map, and compares them after every step.
package storetest

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// Subject is an index under test.
type Subject struct {
	// Index is empty: no pods, no models, no blocks. It is large enough that
	// nothing is evicted from a few hundred thousand blocks. The suite closes
	// it.
	Index store.Index
	// Peer is another handle to the same data, as another process would have
	// it; nil when there is no such thing. The suite closes it.
	Peer store.Index
	// Leases and PeerLeases are the handles as what RunLeases is about. Without a peer
	// they are the same.
	Leases, PeerLeases store.Leases
	// Unregistered and PeerUnregistered are the handles as what lets pods count that are
	// not registered; nil where no value names pods.
	Unregistered, PeerUnregistered store.UnregisteredSetter
	// Limit lets Index, not Peer, send so many more commands to where its data is, and
	// fail with store.ErrUnavailable from then on. Below 0 it is any number. It is nil
	// when there is nothing to send.
	Limit func(commands int)
	// Advance lets time pass for the leases of this index. When it is nil the
	// suite sleeps, and the cases about leases take some seconds.
	Advance func(time.Duration)
	// Now is the clock of the index; nil is time.Now.
	Now func() time.Time
	// Lease is the lease that the cases give; 0 is one minute with Advance and
	// one second without.
	Lease time.Duration
}

// Open makes a fresh, empty index. It may be called many times in one test.
type Open func(t *testing.T) Subject

// Run holds an index to the contract.
func Run(t *testing.T, open Open) {
	RunQuick(t, open)
	run(t, open, []group{{"Leases", leaseCases}, {"Lapses", lapseCases}, {"Concurrency", concurrencyCases}})
	t.Run("Histories", func(t *testing.T) { Histories(t, open) })
}

// RunQuick is the part of Run that takes about a second: without leases, for
// which it may have to wait, concurrency and random histories. It is for the
// further ways to reach an index that passes Run.
func RunQuick(t *testing.T, open Open) {
	run(t, open, []group{
		{"Blocks", blockCases}, {"Lookup", lookupCases}, {"Pods", podCases}, {"Guards", guardCases}, {"Windows", windowCases}, {"Predictions", predictionCases}, {"Models", modelCases}, {"Refusals", refusalCases},
	})
}

// group is some cases under one name.
type group struct {
	name  string
	cases []testCase
}

func run(t *testing.T, open Open, groups []group) {
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) { c.run(start(t, open)) })
			}
		})
	}
}

// testCase is one case; its name is what the index is held to.
type testCase struct {
	name string
	run  func(*bench)
}

// bench is an open index and the words that cases are written in. All of them
// fail the test when the index returns an error.
type bench struct {
	*testing.T
	Subject
	ctx context.Context
}

// The model that cases use when they do not care, and its mask.
const model = "meta-llama/Llama-3.1-8B"

var mask = blockkey.ModelOf(model)

func start(t *testing.T, open Open) *bench {
	t.Helper()
	b := &bench{T: t, Subject: open(t), ctx: t.Context()}
	t.Cleanup(func() { b.close(t.Errorf) })
	if b.Lease == 0 {
		b.Lease = time.Second
		if b.Advance != nil {
			b.Lease = time.Minute
		}
	}
	return b
}

// now is the time by the clock of the index.
func (s *Subject) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// close closes the handles, which a case may have done.
func (s *Subject) close(errorf func(string, ...any)) {
	for _, x := range []store.Index{s.Peer, s.Index} {
		if x == nil {
			continue
		}
		if err := x.Close(); err != nil {
			errorf("close: %v", err)
		}
	}
}

// peer is the other handle, or the same one when there is no other.
func (b *bench) peer() store.Index {
	if b.Peer != nil {
		return b.Peer
	}
	return b.Index
}

func (b *bench) apply(batches ...store.Batch) {
	b.Helper()
	must.OK(b, b.Index.Apply(b.ctx, batches...))
}

func (b *bench) add(pod string, rank int, tier store.Tier, keys ...blockkey.Key) {
	b.Helper()
	b.apply(batch(pod, rank, adds(tier, keys...)))
}

func (b *bench) remove(pod string, rank int, tier store.Tier, keys ...blockkey.Key) {
	b.Helper()
	b.apply(batch(pod, rank, removes(tier, keys...)))
}

func (b *bench) clear(pod string, rank int, tier store.Tier) {
	b.Helper()
	b.apply(batch(pod, rank, store.Op{Kind: store.Clear, Tier: tier}))
}

func (b *bench) register(p store.Pod) (created bool) {
	b.Helper()
	p.Model = cmp.Or(p.Model, model)
	return must.Get(b.Index.Register(b.ctx, p))(b)
}

func (b *bench) retire(pod string) (known bool) {
	b.Helper()
	return must.Get(b.Index.Retire(b.ctx, pod))(b)
}

func (b *bench) registry() *store.Registry {
	b.Helper()
	return must.Get(b.Index.Registry(b.ctx))(b)
}

// find looks up one chain of the usual model, through both handles.
func (b *bench) find(keys ...blockkey.Key) Answer {
	b.Helper()
	return b.findIn(mask, keys...)
}

func (b *bench) findIn(m blockkey.Model, keys ...blockkey.Key) Answer {
	b.Helper()
	got := b.findBy(b.Index, m, keys...)
	if b.Peer != nil {
		if other := b.findBy(b.Peer, m, keys...); !got.Equal(other) {
			b.Fatalf("the peer finds\n%v, the index\n%v", other, got)
		}
	}
	return got
}

func (b *bench) findBy(x store.Index, m blockkey.Model, keys ...blockkey.Key) Answer {
	b.Helper()
	c := &Collector{Keys: len(keys)}
	must.OK(b, x.Lookup(b.ctx, &store.Query{Model: m, Keys: keys, Fold: c}))
	b.checked(c)
	return c.Answer
}

// checked fails the test when the index has broken the contract of Folder. It
// also fails when a part of the chain has no answer though no folder said to
// stop.
func (b *bench) checked(c *Collector) {
	b.Helper()
	if err := c.Err(); err != nil {
		b.Fatalf("Lookup broke the contract of Folder: %v", err)
	}
}

// failIf ends the test when something is wrong, and says what.
func (b *bench) failIf(wrong bool, format string, args ...any) {
	b.Helper()
	if wrong {
		b.Fatalf(format, args...)
	}
}

// wantErr fails the test when an error does not wrap want; about says of what it is.
func (b *bench) wantErr(err, want error, about ...any) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Errorf("got %v, want %v %v", err, want, about)
	}
}

// want fails the test when the blocks are not held by exactly these.
func (b *bench) want(got Answer, want ...[]At) {
	b.Helper()
	if !got.Equal(want) {
		b.Fatalf("found\n%v, want\n%v", got, Answer(want))
	}
}

// pass lets d go by.
func (b *bench) pass(d time.Duration) {
	if b.Advance != nil {
		b.Advance(d)
		return
	}
	time.Sleep(d)
}

// patiently runs f, which returns false when the machine was too slow for what f has to do
// within b.Lease. It then runs f again with a lease twice as long, so that no case depends
// on how busy a machine is.
func (b *bench) patiently(f func() (inTime bool)) {
	b.Helper()
	for most := 64 * b.Lease; !f(); b.Lease *= 2 {
		if b.Lease >= most {
			b.Fatalf("nothing is done within a lease of %v", b.Lease)
		}
	}
}

// errorOf is the error of a call that returns something too.
func errorOf[V any](_ V, err error) error { return err }

func batch(pod string, rank int, ops ...store.Op) store.Batch {
	return store.Batch{Pod: pod, Rank: rank, Model: model, Ops: ops}
}

func adds(tier store.Tier, keys ...blockkey.Key) store.Op {
	return store.Op{Kind: store.Add, Tier: tier, Keys: keys}
}

func removes(tier store.Tier, keys ...blockkey.Key) store.Op {
	return store.Op{Kind: store.Remove, Tier: tier, Keys: keys}
}

// chain returns n keys that look like hashes, the same for the same name.
func chain(name uint64, n int) []blockkey.Key {
	keys := make([]blockkey.Key, n)
	rng := rand.New(rand.NewPCG(name, 0))
	for i := range keys {
		keys[i] = blockkey.Key(rng.Uint64())
	}
	return keys
}

// on is the pod in the tier with rank 0.
func on(pod string, tier store.Tier) At { return At{Pod: pod, Tier: tier} }

// by is what one block is held by.
func by(at ...At) []At { return at }

// times is n blocks that are all held by the same.
func times(n int, at ...At) [][]At {
	out := make([][]At, n)
	for i := range out {
		out[i] = at
	}
	return out
}
