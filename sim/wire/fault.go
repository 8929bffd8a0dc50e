package wire

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/sim/engine"
)

// Fault is something that goes wrong with a pod, or that is mended.
type Fault struct {
	// Kind is what.
	Kind FaultKind `json:"fault"`
	// Count is of how many messages are lost.
	Count int `json:"count,omitempty"`
	// Burn says that lost messages cannot be replayed either.
	Burn bool `json:"burn,omitempty"`
	// For is how late messages come, in milliseconds.
	For int `json:"ms,omitempty"`
	// Rate is how many bytes of events the link takes in a second.
	Rate int `json:"bytes_per_second,omitempty"`
	// Part is which part of the cache is occupied, 0 to 1.
	Part float64 `json:"part,omitempty"`
	// Factor is how many times as long all takes that is computed, up to maxThrottle.
	Factor float64 `json:"factor,omitempty"`
	// Rank is which rank it is about; nil is all of them.
	Rank *int `json:"rank,omitempty"`
}

// FaultKind is a kind of Fault.
type FaultKind string

// The faults. All but Kill, Revive and Restart need a pod that lives.
const (
	// Restart has the process end and begin anew in its place.
	Restart FaultKind = "restart"
	// Kill has it end.
	Kill FaultKind = "kill"
	// Revive begins a life that was ended.
	Revive FaultKind = "revive"
	// Freeze has it stand still: connections stay, nothing is answered and no event is
	// sent. Thaw ends that.
	Freeze FaultKind = "freeze"
	Thaw   FaultKind = "thaw"
	// Clear empties the prefix cache of ranks that are idle; it fails where one is not.
	Clear FaultKind = "clear"
	// Lose has the next Count messages lost on their way; unless Burn is set they can be
	// replayed. Count 0 ends that.
	Lose FaultKind = "lose"
	// Delay has messages come For milliseconds late; 0 ends that.
	Delay FaultKind = "delay"
	// Slow has the link take Rate bytes a second; 0 ends that.
	Slow FaultKind = "slow"
	// Full occupies Part of the cache with blocks that no request uses; 0 ends that.
	Full FaultKind = "full"
	// Throttle has all that is computed take Factor times as long; 0 ends that.
	Throttle FaultKind = "throttle"
)

// maxThrottle is the most by which an engine can be throttled.
const maxThrottle = 1e6

// ErrFault says that a fault is not one, or cannot be had now.
var ErrFault = errors.New("wire: no such fault")

// Apply has a fault happen, which it has when Apply returns. Its errors are ErrFault and
// ErrDead, or what is wrong with a socket.
func (p *Pod) Apply(f Fault) error {
	switch f.Kind {
	case Restart:
		return p.Restart()
	case Kill:
		return p.Kill()
	case Revive:
		return p.Start()
	default:
	}
	l, err := p.current()
	if err != nil {
		return err
	}
	ranks := l.ranks
	if f.Rank != nil {
		if *f.Rank < 0 || *f.Rank >= len(ranks) {
			return fmt.Errorf("%w: rank %d: there are %d", ErrFault, *f.Rank, len(ranks))
		}
		ranks = ranks[*f.Rank : *f.Rank+1]
	}
	if f.Count < 0 || f.For < 0 || f.Rate < 0 || f.Part < 0 || f.Part > 1 || f.Factor < 0 || f.Factor > maxThrottle {
		return fmt.Errorf("%w: %+v: numbers are not negative, part is at most 1, and factor %d", ErrFault, f, int(maxThrottle))
	}
	switch f.Kind {
	case Freeze:
		l.clock.freeze()
		return nil
	case Thaw:
		l.clock.thaw()
		return nil
	default:
	}
	for _, r := range ranks {
		if err := r.apply(f); err != nil {
			return err
		}
	}
	return nil
}

func (r *rank) apply(f Fault) (err error) {
	switch f.Kind {
	case Clear:
		r.do(func(e *engine.Engine) {
			if s := e.Stats(); s.Running+s.Waiting > 0 || !e.Clear() {
				err = fmt.Errorf("%w: rank %d is not idle, its cache cannot be cleared", ErrFault, r.number)
			}
		})
	case Lose:
		r.link.set(func(l *link) { l.lose, l.burn = f.Count, f.Burn })
	case Delay:
		r.link.set(func(l *link) { l.delay = time.Duration(f.For) * time.Millisecond })
	case Slow:
		r.link.set(func(l *link) { l.rate = f.Rate })
	case Full:
		r.do(func(e *engine.Engine) { e.Occupy(int(f.Part * float64(e.Config().Blocks))) })
	case Throttle:
		r.do(func(e *engine.Engine) { e.Throttle(f.Factor) })
	default:
		return fmt.Errorf("%w: %q", ErrFault, f.Kind)
	}
	return err
}
