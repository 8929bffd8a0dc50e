package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// plain is a store.Index made of Model and a mutex. The suite must pass on the
// plainest index there is, and it must notice when that index is broken.
type plain struct {
	store.Pager // nil: no case walks

	mu     sync.Mutex // protects all below
	m      *Model
	now    time.Time
	closed bool
	epoch  uint64
	nextID store.HolderID
	ids    map[At]store.HolderID
	infos  map[string]store.ModelInfo
	read   uint64
	cached *store.Registry
	fault  string
}

// began is when a plain index begins.
var began = time.Unix(1000, 0)

func newPlain(fault string) *plain {
	x := &plain{
		m: NewModel(), now: began, ids: map[At]store.HolderID{}, infos: map[string]store.ModelInfo{},
		cached: store.NewRegistry(0, nil, nil, nil, time.Time{}), fault: fault,
	}
	x.m.applied, x.m.began = x.applied, began
	return x
}

func (x *plain) clock() time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.now
}

func (x *plain) advance(d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.now = x.now.Add(d)
	if x.fault == "leases never end" {
		return
	}
	if x.fault == "predictions never end" {
		x.m.began = x.m.began.Add(d)
	}
	x.m.Advance(d)
	for at := range x.ids {
		if x.m.pods[at.Pod] == nil {
			x.end(at)
		}
	}
	x.endPredictions()
}

// endPredictions ends the ids of predictions that are over.
func (x *plain) endPredictions() {
	for at := range x.ids {
		if at.Until == 0 {
			continue
		}
		if p := x.m.pods[at.Pod]; p == nil || !p.ends[place{at.Rank, at.Tier, at.Until}] {
			x.end(at)
		}
	}
}

// end ends the life of a holder.
func (x *plain) end(at At) {
	delete(x.ids, at)
	x.epoch++
}

func (x *plain) enter(ctx context.Context) error {
	if x.closed {
		return store.ErrClosed
	}
	return ctx.Err()
}

func (x *plain) registry() *store.Registry {
	var holders []store.Holder
	var until time.Time
	for at, id := range x.ids {
		h := store.Holder{ID: id, Pod: at.Pod, Rank: at.Rank, Tier: at.Tier, Reuse: x.m.Reuse(at.Pod, at.Rank), Generation: x.m.Life(at.Pod, at.Rank).Generation}
		if at.Until != 0 {
			h.Until = time.UnixMilli(at.Until)
			if until.IsZero() || h.Until.Before(until) {
				until = h.Until
			}
		}
		holders = append(holders, h)
	}
	for _, p := range x.m.pods {
		if end := x.now.Add(p.until - x.m.now); p.until != 0 && (until.IsZero() || end.Before(until)) {
			until = end
		}
	}
	infos := map[string]store.ModelInfo{}
	for k, v := range x.infos {
		infos[k] = v
	}
	x.cached = store.NewRegistry(x.epoch, x.m.Pods(), holders, infos, until)
	return x.cached
}

func (x *plain) Lookup(ctx context.Context, queries ...*store.Query) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, q := range queries {
		if q == nil || q.Fold == nil {
			return fmt.Errorf("%w: query %d has no folder", store.ErrInvalid, i)
		}
	}
	r := x.registry()
	for i, q := range queries {
		q.Fold.Begin(r)
		if x.fault == "a registry for each query" && i == 0 {
			r = x.registry()
		}
	}
	if err := x.enter(ctx); err != nil {
		return err
	}
	for _, q := range queries {
		x.read += uint64(len(q.Keys))
		for i, at := range x.m.Lookup(q.Model, q.Keys) {
			var ids []store.HolderID
			for _, a := range at {
				ids = append(ids, x.ids[a])
			}
			slices.Sort(ids)
			switch {
			case x.fault == "holders descend":
				slices.Reverse(ids)
			case x.fault == "holders repeat" && len(ids) > 0:
				ids = append(ids, ids[len(ids)-1])
			case x.fault == "a gap ends the answer" && len(ids) == 0:
				return nil
			case x.fault == "one block too few" && i == len(q.Keys)-1:
				return nil
			}
			if !q.Fold.Run(1, ids) && x.fault != "stop is not heard" {
				break
			}
		}
	}
	return nil
}

func (x *plain) Apply(ctx context.Context, batches ...store.Batch) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.enter(ctx); err != nil {
		return err
	}
	for i := range batches {
		if err := batches[i].Validate(); err != nil {
			return err
		}
		if x.fault == "validates too late" {
			_ = x.m.Apply(batches[i])
		}
	}
	if x.fault == "validates too late" {
		return nil
	}
	batches = slices.Clone(batches)
	for i := range batches {
		x.spoil(&batches[i])
		if b := &batches[i]; b.Guard == nil && !x.m.HasRank(b.Pod, b.Rank) && slices.ContainsFunc(b.Ops, func(op store.Op) bool { return op.Kind == store.Add && len(op.Keys) > 0 }) {
			return x.m.pods[b.Pod].reg.CheckRank(b.Rank)
		}
	}
	return x.m.Apply(batches...)
}

// spoil makes of a batch what the fault makes of it.
func (x *plain) spoil(b *store.Batch) {
	if g := b.Guard; g != nil {
		l := x.m.Life(b.Pod, b.Rank)
		switch {
		case x.fault == "an old fence writes" && g.Generation == l.Generation && g.Fence < l.Fence,
			x.fault == "duplicates are applied" && g.Generation == l.Generation && g.Seq <= l.Seq,
			x.fault == "the ended write" && g.Generation != l.Generation:
			b.Guard = nil
		}
	}
	for i, op := range b.Ops {
		switch {
		case x.fault == "clear forgets other tiers" && op.Kind == store.Clear && op.Tier == store.AllTiers,
			x.fault == "remove forgets other tiers" && op.Kind == store.Remove && op.Tier == store.AllTiers:
			b.Ops = slices.Clone(b.Ops)
			b.Ops[i].Tier = store.GPU
		case x.fault == "key 0 is lost":
			b.Ops = slices.Clone(b.Ops)
			b.Ops[i].Keys = slices.DeleteFunc(slices.Clone(op.Keys), func(k blockkey.Key) bool { return k.In(blockkey.ModelOf(b.Model)) == 0 })
		case x.fault == "a removal leaves predictions" && op.Kind == store.Remove && op.Tier == store.GPU:
			b.Ops = slices.Clone(b.Ops)
			b.Ops[i].Tier = store.Shared
		case x.fault == "models are mixed":
			b.Model = model
		}
	}
}

// applied gives and ends the ids of holders as the ops of a batch say.
func (x *plain) applied(b store.Batch) {
	for _, op := range b.Ops {
		at := At{b.Pod, b.Rank, op.Tier, placeOf(b.Rank, op).until}
		for at := range x.ids {
			if op.Kind == store.Clear && at.Pod == b.Pod && (at.Rank == b.Rank || op.AllRanks) &&
				(at.Tier.Memory() == op.Tier || op.Tier == store.AllTiers) && x.fault != "clear keeps ids" {
				x.end(at)
			}
		}
		if op.Kind == store.Add && x.ids[at] == 0 {
			x.nextID++
			x.ids[at] = x.nextID
			x.epoch++
		}
	}
	x.endPredictions()
}

func (x *plain) Register(ctx context.Context, p store.Pod) (bool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.enter(ctx); err != nil {
		return false, err
	}
	if err := p.Validate(); err != nil {
		return false, err
	}
	if len(p.Labels) > 0 {
		labels := map[string]string{}
		for k, v := range p.Labels {
			labels[k] = v
		}
		p.Labels = labels
	}
	x.epoch++
	created := x.m.Register(p)
	x.endPredictions()
	return created, nil
}

func (x *plain) Begin(ctx context.Context, pod string, rank int, fence uint64) (store.Generation, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.enter(ctx); err != nil {
		return 0, err
	}
	if err := errors.Join(store.CheckPodName(pod), store.CheckRank(rank), store.CheckFence(fence)); err != nil {
		return 0, err
	}
	if err := x.m.mayBegin(pod, rank, fence); err != nil {
		return 0, err
	}
	x.nextID++
	gen := store.Generation(x.nextID)
	if x.fault == "a new generation inherits" {
		x.m.pods[pod].lives[rank] = &store.Life{Generation: gen, Fence: fence}
		return gen, nil
	}
	for at := range x.ids {
		if at.Pod == pod && at.Rank == rank {
			x.end(at)
		}
	}
	return gen, x.m.Begin(pod, rank, fence, gen)
}

func (x *plain) TakeOver(ctx context.Context, gen store.Generation, fence uint64) (uint64, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.enter(ctx); err != nil {
		return 0, err
	}
	if gen == 0 {
		return 0, store.ErrInvalid
	}
	if err := store.CheckFence(fence); err != nil {
		return 0, err
	}
	seq, err := x.m.TakeOver(gen, fence)
	if x.fault == "the watermark is low" && seq > 0 {
		seq--
	}
	return seq, err
}

func (x *plain) ReadMap(ctx context.Context, gen store.Generation, keys ...store.MapKey) ([][]byte, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.enter(ctx); err != nil {
		return nil, err
	}
	if gen == 0 || len(keys) > store.MaxMapOps {
		return nil, store.ErrInvalid
	}
	if x.fault == "maps forget the part" {
		keys = slices.Clone(keys)
		for i := range keys {
			keys[i].Part = 0
		}
	}
	return x.m.ReadMap(gen, keys...)
}

func (x *plain) Life(ctx context.Context, pod string, rank int) (store.Life, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.enter(ctx); err != nil {
		return store.Life{}, err
	}
	if err := errors.Join(store.CheckPodName(pod), store.CheckRank(rank)); err != nil {
		return store.Life{}, err
	}
	return x.m.Life(pod, rank), nil
}

func (x *plain) Retire(ctx context.Context, pod string) (bool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.enter(ctx); err != nil {
		return false, err
	}
	if err := store.CheckPodName(pod); err != nil {
		return false, err
	}
	if x.fault == "the dead inherit" {
		_, known := x.m.pods[pod]
		return known, nil
	}
	for at := range x.ids {
		if at.Pod == pod {
			x.end(at)
		}
	}
	x.epoch++
	return x.m.Retire(pod), nil
}

func (x *plain) EnsureModel(ctx context.Context, want store.ModelInfo) (store.ModelInfo, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.enter(ctx); err != nil {
		return store.ModelInfo{}, err
	}
	if err := want.Validate(); err != nil {
		return store.ModelInfo{}, err
	}
	have, ok := x.infos[want.Name]
	if !ok || x.fault == "the last model wins" {
		x.infos[want.Name] = want
		return want, nil
	}
	if have != want {
		return have, store.ErrModelConflict
	}
	return have, nil
}

func (x *plain) Forget(_ context.Context, model string) (bool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, known := x.infos[model]
	delete(x.infos, model)
	return known, nil
}

func (x *plain) Registry(ctx context.Context) (*store.Registry, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.registry(), x.enter(ctx)
}

func (x *plain) Cached() *store.Registry {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.cached
}

func (x *plain) Stats() store.Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	return store.Stats{KeysRead: x.read, Duplicates: x.m.Duplicates}
}

func (x *plain) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed && x.fault == "a second Close fails" {
		return store.ErrClosed
	}
	x.closed = x.fault != "Close is not heard"
	return nil
}

func openPlain(fault string) Open {
	return func(*testing.T) Subject {
		x := newPlain(fault)
		return Subject{Index: x, Advance: x.advance, Now: x.clock}
	}
}

// faultEnv names the fault of the index in the process that
// TestSuiteNoticesFaults starts.
const faultEnv = "KVATLAS_STORETEST_FAULT"

func TestPlainIndexPasses(t *testing.T) { Run(t, openPlain(os.Getenv(faultEnv))) }

func TestSuiteNoticesFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process for each fault")
	}
	for _, fault := range []string{
		"leases never end", "a removal leaves predictions", "predictions never end", "a registry for each query", "holders descend", "holders repeat",
		"a gap ends the answer", "one block too few", "stop is not heard", "validates too late",
		"clear forgets other tiers", "remove forgets other tiers", "key 0 is lost", "models are mixed",
		"an old fence writes", "duplicates are applied", "the ended write", "a new generation inherits", "the watermark is low", "maps forget the part",
		"clear keeps ids", "the dead inherit", "the last model wins", "Close is not heard", "a second Close fails",
	} {
		t.Run(fault, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPlainIndexPasses$", "-test.failfast", "-rapid.nofailfile")
			cmd.Env = append(os.Environ(), faultEnv+"="+fault)
			out, err := cmd.CombinedOutput()
			if exit := new(exec.ExitError); !errors.As(err, &exit) || !bytes.Contains(out, []byte("--- FAIL: TestPlainIndexPasses")) {
				t.Fatalf("the suite passed: %v\n%s", err, out)
			}
		})
	}
}
