package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// Pod is an engine of a trial.
type Pod struct {
	// Name is that of its registration.
	Name   string
	Engine engine.Config
	// Slow, if above 1, is how many times as long the engine takes to compute until SlowUntil, as
	// one that has just begun, or that shares its cores.
	Slow      float64
	SlowUntil time.Duration
}

// Config says what a trial is.
type Config struct {
	// Pods are the engines, all with the same size of blocks, which is that of the index.
	Pods []Pod
	Work Work
	// Settings say how requests are routed; nil is route.DefaultSettings.
	Settings *route.Settings
	// Seed makes the router's random numbers.
	Seed uint64
}

// Result is what came of a trial.
type Result struct {
	// Turns is how many requests there were, PodTurns how many on each pod.
	Turns    int
	PodTurns []int
	// Prompt are the tokens of all prompts. Predicted are those of them that the router said
	// were cached where it sent them, and Cached those that were.
	Prompt, Predicted, Cached int
	// Firsts are the times from when each turn came to its first token, ascending.
	Firsts []time.Duration
	// Length is when the last turn ended.
	Length time.Duration
	// Busy is how long engines computed, Prefilling how much of that in iterations that
	// computed a prompt.
	Busy, Prefilling time.Duration
}

// MeanFirst is the mean of Firsts.
func (r *Result) MeanFirst() (mean time.Duration) {
	for _, d := range r.Firsts {
		mean += d
	}
	return mean / time.Duration(max(1, len(r.Firsts)))
}

// FirstAt is the quantile q, 0 to 1, of Firsts.
func (r *Result) FirstAt(q float64) time.Duration {
	if len(r.Firsts) == 0 {
		return 0
	}
	return r.Firsts[min(len(r.Firsts)-1, int(q*float64(len(r.Firsts))))]
}

// Model is the name of the model of all trials.
const Model = "trial/model"

// epoch is what trials take for the beginning of time.
var epoch = time.Unix(1_700_000_000, 0)

// trial is a run. It belongs to one goroutine.
type trial struct {
	config  *Config
	begun   int // how many talks have begun
	pods    []pod
	places  map[string]int // of pods, by name
	index   *memory.Index
	ingest  *ingest.Ingester
	router  *route.Router
	now     time.Duration
	report  engine.Report
	waiting []*flight // the turns that are to come, in order
	running map[uint64]*flight
	ids     uint64
	result  Result
}

// pod is an engine that runs.
type pod struct {
	name   string
	kind   engine.Kind
	engine *engine.Engine
	seq    uint64
	// slowUntil is until when it is throttled.
	slowUntil time.Duration
}

// flight is a turn: that is to come, or that an engine works on.
type flight struct {
	talk, turn int
	at         time.Duration
	order      uint64 // of equal times
	id         string // of its reservation
}

// Run has engines do the work. The error is that of a Config which cannot be, or why ctx
// ended.
func Run(ctx context.Context, c Config) (r Result, err error) {
	t := &trial{config: &c, running: map[uint64]*flight{}, places: map[string]int{}}
	defer func() { err = errors.Join(err, t.close()) }()
	if err = t.open(ctx); err == nil {
		err = t.run(ctx)
	}
	return t.result, err
}

func (t *trial) open(ctx context.Context) (err error) {
	c := t.config
	if len(c.Pods) == 0 || len(c.Work.Talks) == 0 {
		return errors.New("trial: there are no pods, or there is no work")
	}
	if t.index, err = memory.New(memory.Config{}); err != nil {
		return err
	}
	for i, p := range c.Pods {
		e, err := engine.New(p.Engine)
		if err != nil {
			return err
		}
		if i == 0 {
			if _, err = t.index.EnsureModel(ctx, store.ModelInfo{Name: Model, BlockSize: e.Config().BlockSize, Scheme: store.SchemeNative}); err != nil {
				return err
			}
		}
		if p.Slow > 1 {
			e.Throttle(p.Slow)
		}
		t.pods = append(t.pods, pod{name: p.Name, kind: e.Config().Kind, engine: e, slowUntil: p.SlowUntil})
		t.places[p.Name] = i
		if _, err := t.index.Register(ctx, store.Pod{Name: p.Name, Model: Model, Ranks: 1, KVTokens: e.Config().Blocks * e.Config().BlockSize}); err != nil {
			return err
		}
	}
	t.result.PodTurns = make([]int, len(t.pods))
	if t.ingest, err = ingest.New(ingest.Config{Index: t.index}); err != nil {
		return err
	}
	s, err := scorer.New(scorer.Config{Index: t.index, Budget: time.Minute})
	if err != nil {
		return err
	}
	clock := func() time.Time { return epoch.Add(t.now) }
	t.router, err = route.New(route.Config{Scorer: s, Pods: t.index, Loads: loads.NewMemory(clock), Now: clock, Settings: c.Settings, Seed: c.Seed + 1})
	return err
}

func (t *trial) close() (err error) {
	if t.ingest != nil {
		err = t.ingest.Close()
	}
	if t.index != nil {
		err = errors.Join(err, t.index.Close())
	}
	return err
}

// run has all talks to their ends.
func (t *trial) run(ctx context.Context) error {
	w := &t.config.Work
	if w.Together <= 0 {
		for i := range w.Talks {
			t.await(&flight{talk: i, at: w.Talks[i].At})
		}
	}
	for range w.Together {
		t.begin(0)
	}
	for ctx.Err() == nil {
		next, pod := time.Duration(-1), -1
		for i := range t.pods {
			if at, ok := t.pods[i].engine.Due(); ok && (pod < 0 || at < next) {
				next, pod = at, i
			}
		}
		switch {
		case len(t.waiting) > 0 && (pod < 0 || t.waiting[0].at <= next):
			f := t.waiting[0]
			t.waiting = t.waiting[1:]
			t.now = max(t.now, f.at)
			if err := t.take(ctx, f); err != nil {
				return err
			}
		case pod >= 0:
			t.now = max(t.now, next)
			if err := t.advance(ctx, pod); err != nil {
				return err
			}
		case len(t.running) > 0:
			return fmt.Errorf("trial: %d turns wait for engines that have nothing to do", len(t.running))
		default:
			t.conclude()
			return nil
		}
	}
	return context.Cause(ctx)
}

func (t *trial) conclude() {
	slices.Sort(t.result.Firsts)
	t.result.Length = t.now
	for i := range t.pods {
		s := t.pods[i].engine.Stats()
		t.result.Busy += s.Busy
		t.result.Prefilling += s.Prefilling
	}
}

// begin begins the next talk, if there is one.
func (t *trial) begin(at time.Duration) {
	if t.begun == len(t.config.Work.Talks) {
		return
	}
	t.begun++
	t.await(&flight{talk: t.begun - 1, at: at})
}

// await has a turn come at its time.
func (t *trial) await(f *flight) {
	t.ids++
	f.order = t.ids
	i, _ := slices.BinarySearchFunc(t.waiting, f, func(a, b *flight) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.order, b.order)) })
	t.waiting = slices.Insert(t.waiting, i, f)
}

// take sends a turn to where the router books it.
func (t *trial) take(ctx context.Context, f *flight) error {
	turn := &t.config.Work.Talks[f.talk].Turns[f.turn]
	prompt := turn.Prompt()
	f.id = strconv.FormatUint(f.order, 10)
	d, err := t.router.Route(ctx, route.Request{
		Score: scorer.Request{Model: Model, Input: scorer.Tokens(prompt)}, Reserve: true, ID: f.id, Expected: turn.Output,
	})
	if err != nil {
		return err
	}
	i := t.places[d.Pod]
	r := &t.result
	r.Turns++
	r.PodTurns[i]++
	r.Prompt += len(prompt)
	r.Predicted += d.Cached()
	t.running[f.order] = f
	return t.pods[i].engine.Submit(t.now, engine.Request{ID: f.order, Tokens: prompt, Output: make([]uint32, turn.Output)})
}

// advance has an engine do what is due, and tells index and router of it.
func (t *trial) advance(ctx context.Context, at int) error {
	p := &t.pods[at]
	if p.slowUntil > 0 && t.now >= p.slowUntil {
		p.engine.Throttle(1)
		p.slowUntil = 0
	}
	t.report.Outputs, t.report.Batches = t.report.Outputs[:0], t.report.Batches[:0]
	p.engine.Advance(t.now, &t.report)
	for _, b := range t.report.Batches {
		seq := p.seq
		p.seq++
		_, err := t.ingest.Push(ctx, ingest.Pushed{Pod: p.name, Model: Model, Engine: p.kind.String(), Seq: &seq, Ranks: []ingest.RankEvents{{Events: b.Events}}})
		if err != nil {
			return err
		}
	}
	for _, o := range t.report.Outputs {
		f := t.running[o.ID]
		if o.First {
			t.result.Cached += o.Hit.Tokens()
			t.result.Firsts = append(t.result.Firsts, o.At-f.at)
			if _, err := t.router.Done(ctx, Model, f.id, o.Hit.Tokens()); err != nil {
				return err
			}
		}
		if !o.Last {
			continue
		}
		delete(t.running, o.ID)
		if _, err := t.router.End(ctx, Model, f.id); err != nil {
			return err
		}
		if turns := t.config.Work.Talks[f.talk].Turns; f.turn+1 < len(turns) {
			t.await(&flight{talk: f.talk, turn: f.turn + 1, at: o.At + turns[f.turn+1].Think})
		} else if t.config.Work.Together > 0 {
			t.begin(o.At)
		}
	}
	return nil
}
