package tokenpool

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/prompt"
)

// Errors between submit and ask that no caller sees.
var (
	errAbandoned     = errors.New("tokenpool: the caller left before the text was in the queue")
	errDoneMeanwhile = errors.New("tokenpool: the text was tokenized meanwhile")
)

// flight is one text on its way through the pool. All that ask for the text meanwhile wait for the same
// flight.
type flight struct {
	key     flightKey
	text    string
	created time.Time
	tok     *tokenizer // counted in its refs; set before the flight is sent to run
	place   place      // held while it waits for a load

	done   chan struct{} // closed when tokens and err are set
	tokens []uint32
	err    error
}

// flightKey finds the flight of a text. The text itself is compared outside
// the lock; salt is counted up on the day two different ones have one hash.
//
// version is the one that the asker has seen at the origin: one that comes after a replacement does not join
// a flight from before.
type flightKey struct {
	model   string
	version string
	special bool
	scope   string // prompt.Request's
	length  int
	hash    uint64
	salt    uint8
}

// result is the answer to all waiters. done must be closed.
func (f *flight) result() (prompt.Result, error) {
	if f.err != nil {
		return prompt.Result{}, f.err
	}
	return exact(f.tokens, f.text, prompt.FromTokenizer), nil
}

// ended reports whether the flight has. One may end at the moment at which the waiter's time is over, or
// before this process runs again.
func (f *flight) ended() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// place is what a flight that waits for a load takes of the bounded number of
// such flights.
type place uint8

const (
	noPlace place = iota
	localPlace
	remotePlace
)

// submit returns the flight of req's text: one that is under way, or a new one
// that is in the queue by then. A full queue is ErrBusy, for which Sync waits
// as long as ctx allows.
func (p *Pool) submit(ctx context.Context, req prompt.Request, seen view) (*flight, error) {
	key := flightKey{
		model:   req.Model,
		version: seen.version,
		special: !req.NoSpecialTokens,
		scope:   req.Scope,
		length:  len(req.Text),
		hash:    maphash.String(p.seed, req.Text),
	}
	// What this call holds of the limits. A new flight takes it over.
	var heldBytes bool
	var held place
	defer func() {
		if heldBytes {
			p.bytes.Release(int64(key.length))
		}
		p.leave(held)
	}()
	// Sync waits for its part of a limit with the lock given up, after which
	// everything has to be looked at anew.
	wait := req.Mode == prompt.Sync

	p.mu.Lock()
	for {
		if p.closed {
			p.mu.Unlock()
			return nil, ErrClosed
		}
		if f := p.flights[key]; f != nil {
			p.mu.Unlock()
			if f.text == req.Text {
				p.n.joined.Add(1)
				return f, nil
			}
			key.salt++
			p.mu.Lock()
			continue
		}
		if p.cfg.Store != nil && p.endedSince(key, seen.ended) {
			p.mu.Unlock()
			return nil, errDoneMeanwhile
		}
		if !heldBytes {
			if heldBytes = p.bytes.TryAcquire(int64(key.length)); !heldBytes {
				p.mu.Unlock()
				if !wait {
					return nil, ErrBusy
				}
				if err := p.bytes.Acquire(ctx, int64(key.length)); err != nil {
					return nil, p.leftQueue(err)
				}
				heldBytes = true
				p.mu.Lock()
				continue
			}
		}
		if t, ok := p.loaded.Get(req.Model); ok {
			f := p.register(key, req.Text)
			heldBytes = false // f's now
			f.tok = t
			t.refs++
			t.requests++
			select {
			case p.run <- f:
				p.mu.Unlock()
				return f, nil
			default:
			}
			if wait {
				p.mu.Unlock()
				return f, p.enqueue(ctx, f)
			}
			p.unregister(f)
			p.mu.Unlock()
			p.finish(f, ErrBusy)
			return nil, ErrBusy
		}
		if e, ok := p.failed.Get(req.Model); ok && e.version == seen.version && time.Now().Before(e.until) {
			p.mu.Unlock()
			return nil, e.err
		}
		if held == noPlace {
			want := localPlace
			if seen.version == "" {
				want = remotePlace
			}
			if !p.tryEnter(want) {
				p.mu.Unlock()
				if !wait {
					return nil, ErrBusy
				}
				if err := p.enter(ctx, want); err != nil {
					return nil, p.leftQueue(err)
				}
				held = want
				p.mu.Lock()
				continue
			}
			held = want
		}
		f := p.register(key, req.Text)
		f.place = held
		heldBytes, held = false, noPlace // f's now
		p.awaitLoad(f, seen.version)
		p.mu.Unlock()
		return f, nil
	}
}

// leftQueue is the error of a Sync request that gave up waiting for a place.
func (p *Pool) leftQueue(err error) error {
	return fmt.Errorf("%w: %w", ErrBusy, err)
}

// tryEnter takes a place among the waiters for a load. Models that may not exist,
// since only the network can tell, get half of the places. So a flood of made-up
// names leaves room for models at hand.
func (p *Pool) tryEnter(want place) bool {
	if want == remotePlace && !p.remote.TryAcquire(1) {
		return false
	}
	if p.places.TryAcquire(1) {
		p.n.waiting.Add(1)
		return true
	}
	if want == remotePlace {
		p.remote.Release(1)
	}
	return false
}

// enter is tryEnter that waits.
func (p *Pool) enter(ctx context.Context, want place) error {
	if want == remotePlace {
		if err := p.remote.Acquire(ctx, 1); err != nil {
			return err
		}
	}
	if err := p.places.Acquire(ctx, 1); err != nil {
		if want == remotePlace {
			p.remote.Release(1)
		}
		return err
	}
	p.n.waiting.Add(1)
	return nil
}

// leave gives a place back.
func (p *Pool) leave(held place) {
	if held == noPlace {
		return
	}
	p.n.waiting.Add(-1)
	p.places.Release(1)
	if held == remotePlace {
		p.remote.Release(1)
	}
}

// register makes the flight that others will find. Callers hold mu.
func (p *Pool) register(key flightKey, text string) *flight {
	f := &flight{key: key, text: text, created: time.Now(), done: make(chan struct{})}
	p.flights[key] = f
	p.n.held.Add(int64(len(text)))
	return f
}

// unregister makes f not to be found any more. Callers hold mu.
func (p *Pool) unregister(f *flight) { delete(p.flights, f.key) }

// endedSince reports whether a flight of key has ended after the count of ended
// flights was since: the store, asked before, would know more now. Callers
// hold mu.
func (p *Pool) endedSince(key flightKey, since uint64) bool {
	if p.ended-since > recentFlights {
		return true
	}
	for ; since < p.ended; since++ {
		if p.recent[since%recentFlights] == key.hash {
			return true
		}
	}
	return false
}

// enqueue waits for a place in the queue, for a Sync request.
func (p *Pool) enqueue(ctx context.Context, f *flight) error {
	select {
	case p.run <- f:
		// Close may have emptied the queue just before.
		select {
		case <-p.done:
			p.drain()
		default:
		}
		return nil
	case <-p.done:
		p.remove(f)
		p.finish(f, ErrClosed)
		return ErrClosed
	case <-ctx.Done():
		// Others that joined try again: they may have more time.
		p.remove(f)
		p.finish(f, errAbandoned)
		return p.leftQueue(ctx.Err())
	}
}

func (p *Pool) remove(f *flight) {
	p.mu.Lock()
	p.unregister(f)
	p.mu.Unlock()
}

// finish gives the waiters of f an error, and gives back what f holds. f
// must have been unregistered.
func (p *Pool) finish(f *flight, err error) {
	f.err = err
	close(f.done)
	p.giveBack(f)
}

func (p *Pool) giveBack(f *flight) {
	p.n.held.Add(-int64(len(f.text)))
	p.bytes.Release(int64(len(f.text)))
	p.leave(f.place)
	if f.tok != nil {
		p.release(f.tok)
	}
}

// drain fails all flights in the queue. It runs after done is closed.
func (p *Pool) drain() {
	for {
		select {
		case f := <-p.run:
			p.remove(f)
			p.finish(f, ErrClosed)
		default:
			return
		}
	}
}

// work is a worker.
func (p *Pool) work() {
	for {
		select {
		case <-p.done: // first: a select takes any case that is ready
			return
		default:
		}
		select {
		case <-p.done:
			return
		case f := <-p.run:
			p.n.running.Add(1)
			p.fly(f)
			p.n.running.Add(-1)
		}
	}
}

// together runs work on this goroutine and, for each worker that is idle, on another one.
// These leave when a text comes for their worker; leave says so. It returns when all have.
func (p *Pool) together(work func(leave func() bool)) {
	var wg sync.WaitGroup
	for p.takeHelper() {
		wg.Go(func() {
			defer p.n.helping.Add(-1)
			work(func() bool { return p.n.running.Load()+p.n.helping.Load() > int64(p.cfg.Workers) })
		})
	}
	work(func() bool { return false })
	wg.Wait()
}

// takeHelper takes the place of an idle worker, to be given back.
func (p *Pool) takeHelper() bool {
	if p.n.helping.Add(1)+p.n.running.Load() <= int64(p.cfg.Workers) {
		return true
	}
	p.n.helping.Add(-1)
	return false
}

// fly tokenizes the text of f. The order is: the waiters get the result, the store is filled, the flight
// goes. So a caller in between finds either the flight or the store's entry. A caller may look into the
// store too early and for the flight too late: endedSince serves it.
func (p *Pool) fly(f *flight) {
	start := time.Now()
	ids, ends, fresh, err := p.pieces.tokenize(f.tok, f.text, f.key.special, p.together)
	took := time.Since(start)
	f.tokens, f.err = ids, err
	// A caller with the answer finds it counted.
	p.n.tokenized.Add(1)
	p.n.textBytes.Add(uint64(len(f.text)))
	p.n.tokens.Add(uint64(fresh))
	p.n.reused.Add(uint64(max(len(ids)-fresh, 0)))
	close(f.done)

	// A text without tokens is not stored: stores take that for a failure.
	if p.cfg.Store != nil && err == nil && (len(ids) > 0 || f.text == "") {
		if err := p.cfg.Store.Put(f.tok.scope(f.key.special)+f.key.scope, f.text, ids, ends); err != nil {
			p.n.refusedPuts.Add(1)
			p.cfg.Observer.StoreRefused(f.key.model, err)
		}
	}
	p.mu.Lock()
	p.unregister(f)
	p.recent[p.ended%recentFlights] = f.key.hash
	p.ended++
	p.mu.Unlock()
	p.cfg.Observer.Tokenized(TokenizedEvent{
		Model:  f.key.model,
		Bytes:  len(f.text),
		Tokens: len(ids),
		Fresh:  fresh,
		Queued: start.Sub(f.created),
		Took:   took,
		Err:    err,
	})
	if err == nil {
		p.spotCheck(f, ids, ends)
	}
	p.giveBack(f)
}
