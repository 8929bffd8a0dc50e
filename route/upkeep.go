package route

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/store"
)

// How often an Upkeep does what.
const (
	// upkeepEvery is how often it looks at the models that are routed.
	upkeepEvery = 2 * time.Second
	// AuditEvery is how often one of all processes audits the loads of a model.
	AuditEvery = time.Minute
	// MendEvery is how long a rank is left alone that was read anew.
	MendEvery = 10 * time.Minute
	// RoutedLately is for how long after its last request, report or look at its loads a model
	// counts as one that is routed.
	RoutedLately = time.Minute
)

// Upkeep looks after the models that a Router routes. It shares what requests were promised and given, and
// what their prompts begin with. It audits loads. Where the index is wrong about a rank it begins a new
// generation, which the reader of the rank's events fills with what the engine still has. Any number of
// processes run one each, and claim each piece of work.
type Upkeep struct {
	// Router and Index are required.
	Router *Router
	Index  store.Index
	// Audited, if not nil, is told what an audit has found and set right.
	Audited func(model string, found []loads.Difference)
	// Lies, if not nil, receives each rank that the index is wrong about, in the process that has claimed to
	// mend it. Argument mended reports whether it is read anew: a rank without events cannot be.
	Lies func(model string, t loads.Truth, mended bool)
	// Failed, if not nil, is told what could not be done.
	Failed func(model string, err error)
}

// Run looks after the models until ctx is done.
func (u *Upkeep) Run(ctx context.Context) {
	for {
		timer := time.NewTimer(upkeepEvery/2 + rand.N(upkeepEvery))
		select {
		case <-ctx.Done():
			timer.Stop()
			u.Look(context.WithoutCancel(ctx)) // what was told last is not lost
			return
		case <-timer.C:
			u.Look(ctx)
		}
	}
}

// Look does once what is to be done.
func (u *Upkeep) Look(ctx context.Context) {
	models := u.Router.Models(RoutedLately)
	if len(models) == 0 {
		return
	}
	reg, err := u.Index.Registry(ctx)
	if err != nil {
		reg = u.Index.Cached()
	}
	for _, model := range models {
		if !slices.ContainsFunc(reg.Pods, func(p store.Pod) bool { return p.Model == model }) {
			continue // anything may be asked for: nothing is kept of it
		}
		bound, cancel := context.WithTimeout(ctx, 5*time.Second)
		u.Router.picture(bound, model, false) // a process that only takes reports goes by the settings too
		err := errors.Join(u.Router.shareTruths(bound, model), u.Router.shareDemand(bound, model), u.mend(bound, model), u.audit(bound, model))
		cancel()
		// While the loads are away everything waits; routing has reported that.
		if err != nil && !errors.Is(err, loads.ErrUnavailable) && !errors.Is(err, notes.ErrUnavailable) && u.Failed != nil && ctx.Err() == nil {
			u.Failed(model, err)
		}
	}
}

// audit audits the loads of a model, if it is our turn.
func (u *Upkeep) audit(ctx context.Context, model string) error {
	kept := u.Router.c.Loads
	if ours, err := kept.Claim(ctx, model, "audit", AuditEvery); err != nil || !ours {
		return err
	}
	found, err := kept.Audit(ctx, model)
	if err == nil && u.Audited != nil {
		u.Audited(model, found)
	}
	return err
}

// mend begins a new generation of each rank that the index is wrong about.
func (u *Upkeep) mend(ctx context.Context, model string) error {
	kept := u.Router.c.Loads
	all, err := kept.Truths(ctx, model)
	if err != nil {
		return err
	}
	for at, t := range all {
		if !t.Lies() {
			continue
		}
		reg, err := u.Index.Registry(ctx)
		if err != nil {
			return err
		}
		p, known := reg.PodIndex(at.Pod)
		if !known || reg.Pods[p].Model != model {
			continue
		}
		if slot, ok := reg.Slot(p, at.Rank); !ok || reg.Generation(slot) != t.Generation {
			continue // that generation is over, or has not begun
		}
		if ours, err := kept.Claim(ctx, model, "mend "+at.String(), MendEvery); err != nil || !ours {
			if err != nil {
				return err
			}
			continue
		}
		mended, err := u.beginAnew(ctx, &reg.Pods[p], &t)
		if err != nil {
			return err
		}
		if u.Lies != nil {
			u.Lies(model, t, mended)
		}
	}
	return nil
}

// beginAnew ends the generation of a rank that is read. Its reader notices, begins another
// one, and asks for all that the engine can replay.
func (u *Upkeep) beginAnew(ctx context.Context, p *store.Pod, t *loads.Truth) (begun bool, err error) {
	if p.Events == "" {
		return false, nil
	}
	life, err := u.Index.Life(ctx, t.Pod, t.Rank)
	if err != nil || life.Generation != t.Generation || life.Fence == 0 {
		return false, err
	}
	_, err = u.Index.Begin(ctx, t.Pod, t.Rank, life.Fence)
	if errors.Is(err, store.ErrFenced) { // another reader has taken over meanwhile
		return false, nil
	}
	return err == nil, err
}
