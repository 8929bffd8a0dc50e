package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	simengine "github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/talks"
	"github.com/kvatlas/kvatlas/sim/wire"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// trial is a run of all conversations by one policy, in virtual time: engines, an index
// that follows their events, and a router on it, with one clock. It belongs to one goroutine.
type trial struct {
	call    *upCall
	policy  string
	model   string
	order   []int // of conversations
	begun   int   // how many of them have begun
	pods    []trialPod
	index   *memory.Index
	ingest  *ingest.Ingester
	router  *route.Router
	now     time.Duration
	report  simengine.Report
	waiting []*flight // the turns that are to come, in order
	running map[uint64]*flight
	ids     uint64

	turns, prompt, predicted, cached int
	firsts                           []time.Duration // until the first token, by turn
}

// trialPod is an engine of a trial.
type trialPod struct {
	name   string
	engine *simengine.Engine
	seq    uint64
	turns  int
}

// flight is a turn of a conversation: that is to come, or that an engine works on.
type flight struct {
	talk, turn int // of the order, and of the conversation
	at         time.Duration
	order      uint64 // of equal times
	id         string // of its reservation
	prompt     int
}

// epoch is what trials take for the beginning of time.
var epoch = time.Unix(1_700_000_000, 0)

func newTrial(ctx context.Context, c *upCall, policy string) (t *trial, err error) {
	t = &trial{call: c, policy: policy, model: c.sim.config.Model, order: talkOrder(c), running: map[uint64]*flight{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.index, err = memory.New(memory.Config{}); err != nil {
		return t, err
	}
	if _, err = t.index.EnsureModel(ctx, store.ModelInfo{Name: t.model, BlockSize: 16, Scheme: store.SchemeNative}); err != nil {
		return t, err
	}
	for _, config := range c.sim.podConfigs() {
		pod, err := wire.NewPod(config) // which knows the defaults, and never lives
		if err != nil {
			return t, err
		}
		e, err := simengine.New(pod.Config().Engine)
		if err != nil {
			return t, err
		}
		t.pods = append(t.pods, trialPod{name: pod.Address(), engine: e})
		if _, err := t.index.Register(ctx, store.Pod{Name: pod.Address(), Model: t.model, Ranks: 1}); err != nil {
			return t, err
		}
	}
	if t.ingest, err = ingest.New(ingest.Config{Index: t.index}); err != nil {
		return t, err
	}
	s, err := scorer.New(scorer.Config{Index: t.index, Budget: time.Minute})
	if err != nil {
		return t, err
	}
	clock := func() time.Time { return epoch.Add(t.now) }
	t.router, err = route.New(route.Config{Scorer: s, Pods: t.index, Loads: loads.NewMemory(clock), Now: clock, Seed: c.seed + 1})
	return t, err
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

// run has all conversations to their ends.
func (t *trial) run(ctx context.Context) error {
	for range t.call.chats {
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
			t.waiting = slices.Delete(t.waiting, 0, 1)
			t.now = max(t.now, f.at)
			if err := t.take(ctx, f); err != nil {
				return err
			}
		case pod >= 0:
			t.now = max(t.now, next)
			if err := t.advance(ctx, &t.pods[pod]); err != nil {
				return err
			}
		case len(t.running) > 0:
			return fmt.Errorf("%d turns wait for engines that have nothing to do", len(t.running))
		default:
			return nil
		}
	}
	return context.Cause(ctx)
}

// begin begins the next conversation, if there is one.
func (t *trial) begin(at time.Duration) {
	if t.begun == len(t.order) {
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

func (t *trial) turnOf(f *flight) *talks.Turn { return &t.call.talks[t.order[f.talk]][f.turn] }

// take sends a turn to where the router books it.
func (t *trial) take(ctx context.Context, f *flight) error {
	turn := t.turnOf(f)
	prompt := turn.Prompt(1)
	f.prompt, f.id = len(prompt), strconv.FormatUint(f.order, 10)
	d, err := t.router.Route(ctx, route.Request{
		Score:   scorer.Request{Model: t.model, Input: scorer.Tokens(prompt)},
		Reserve: true, ID: f.id, Expected: turn.Output, Overrides: []byte(`{"policy":` + strconv.Quote(t.policy) + `}`),
	})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(t.pods, func(p trialPod) bool { return p.name == d.Pod })
	t.pods[i].turns++
	t.predicted += d.Cached()
	t.running[f.order] = f
	return t.pods[i].engine.Submit(t.now, simengine.Request{ID: f.order, Tokens: prompt, Output: make([]uint32, turn.Output)})
}

// advance has an engine do what is due, and tells index and router of it.
func (t *trial) advance(ctx context.Context, p *trialPod) error {
	t.report.Outputs, t.report.Batches = t.report.Outputs[:0], t.report.Batches[:0]
	p.engine.Advance(t.now, &t.report)
	for _, b := range t.report.Batches {
		seq := p.seq
		p.seq++
		_, err := t.ingest.Push(ctx, ingest.Pushed{
			Pod: p.name, Model: t.model, Engine: t.call.sim.config.Engine.Kind.String(), Seq: &seq, Ranks: []ingest.RankEvents{{Events: b.Events}},
		})
		if err != nil {
			return err
		}
	}
	for _, o := range t.report.Outputs {
		f := t.running[o.ID]
		if o.First {
			t.turns++
			t.prompt += f.prompt
			t.cached += o.Hit.Tokens()
			t.firsts = append(t.firsts, o.At-f.at)
			if _, err := t.router.Done(ctx, t.model, f.id, o.Hit.Tokens()); err != nil {
				return err
			}
		}
		if !o.Last {
			continue
		}
		delete(t.running, o.ID)
		if _, err := t.router.End(ctx, t.model, f.id); err != nil {
			return err
		}
		if talk := t.call.talks[t.order[f.talk]]; f.turn+1 < len(talk) {
			t.await(&flight{talk: f.talk, turn: f.turn + 1, at: o.At + talk[f.turn+1].Think})
		} else {
			t.begin(o.At)
		}
	}
	return nil
}

// comparePolicies has the conversations once by each policy and prints what came of it, side by side.
func (p *program) comparePolicies(ctx context.Context, c *upCall) error {
	trials := make([]*trial, 0, len(c.compare))
	for _, policy := range c.compare {
		t, err := newTrial(ctx, c, policy)
		if err != nil {
			return err
		}
		if err := errors.Join(t.run(ctx), t.close()); err != nil {
			return fmt.Errorf("%s: %w", policy, err)
		}
		slices.Sort(t.firsts)
		trials = append(trials, t)
	}
	one := trials[0]
	fmt.Fprintf(p.stdout, "%d recorded conversations, %d turns with %d prompt tokens, %d at a time, %d simulated %v with room for %d tokens each, seed %d\n\n",
		len(c.talks), one.turns, one.prompt, c.chats, len(one.pods), c.sim.config.Engine.Kind, one.pods[0].engine.Capacity(), c.seed)
	w := tabwriter.NewWriter(p.stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name string, cell func(t *trial) string) {
		fmt.Fprintf(w, "%s\t", name)
		for _, t := range trials {
			fmt.Fprintf(w, "%s\t", cell(t))
		}
		fmt.Fprintln(w)
	}
	row("", func(t *trial) string { return t.policy })
	row("cached tokens", func(t *trial) string { return strconv.Itoa(t.cached) })
	row("of the prompts", func(t *trial) string { return share(t.cached, t.prompt) })
	row("predicted", func(t *trial) string {
		if e, err := route.ParsePolicy(t.policy); err == nil && e.Blind {
			return "-" // it looks nothing up
		}
		return share(t.predicted, t.prompt)
	})
	row("TTFT mean", func(t *trial) string { return milliseconds(t.meanFirst()) })
	row("TTFT p50", func(t *trial) string { return milliseconds(t.firsts[len(t.firsts)/2]) })
	row("TTFT p90", func(t *trial) string { return milliseconds(t.firsts[len(t.firsts)*9/10]) })
	row("turns a pod", func(t *trial) string {
		least, most := t.pods[0].turns, t.pods[0].turns
		for _, p := range t.pods {
			least, most = min(least, p.turns), max(most, p.turns)
		}
		return fmt.Sprintf("%d to %d", least, most)
	})
	row("all of it", func(t *trial) string { return fmt.Sprintf("%.1f s", t.now.Seconds()) })
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(p.stdout, "\n"+strings.TrimSpace(compareNote))
	return err
}

const compareNote = `Times are virtual. TTFT is the time to the first token, from when a turn comes.`

func (t *trial) meanFirst() (mean time.Duration) {
	for _, d := range t.firsts {
		mean += d
	}
	return mean / time.Duration(max(1, len(t.firsts)))
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.0f ms", d.Seconds()*1000) }
