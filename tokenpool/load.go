package tokenpool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// tokenizer is one in memory. It is closed when it has been dropped and no
// flight holds it any more.
type tokenizer struct {
	enc     encoder
	version string    // of the origin
	scopes  [2]string // of the prefix store, without and with special tokens

	// Protected by Pool.mu.
	info     Model
	refs     int  // flights that hold it
	dropped  bool // not in Pool.loaded any more
	checked  time.Time
	requests uint64
}

func (t *tokenizer) scope(special bool) string {
	if special {
		return t.scopes[1]
	}
	return t.scopes[0]
}

// scopes names what the prefix store must never mix: the tokens of one model,
// by one content of tokenizer.json, with or without special tokens.
func scopes(model, fingerprint string) [2]string {
	s := model + "\x00" + fingerprint + "\x00"
	return [2]string{s + "0", s + "1"}
}

// load is a tokenizer being loaded, with the flights that wait for it.
type load struct {
	model   string
	version string
	waiting []*flight // protected by Pool.mu
}

// view is what a request knows of its model.
type view struct {
	scope   string // of the prefix store; empty when not known
	version string // of the origin; empty when only a load can tell
	ended   uint64 // Pool.ended at that time
}

// look says what is known of a model without waiting for anything but a stat.
func (p *Pool) look(model string, special bool) (view, error) {
	now := time.Now()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return view{}, ErrClosed
	}
	seen := view{ended: p.ended}
	if t, ok := p.loaded.Get(model); ok && now.Sub(t.checked) < p.cfg.Recheck {
		seen.scope, seen.version = t.scope(special), t.version
		p.mu.Unlock()
		return seen, nil
	}
	p.mu.Unlock()

	version, err := p.cfg.Origin.Stat(model)
	gone := errors.Is(err, ErrUnknownModel)

	p.mu.Lock()
	if t, ok := p.loaded.Get(model); ok {
		replaced := err == nil && version != "" && version != t.version
		if !replaced && !gone {
			// Nothing has changed, or the origin does not work just now:
			// what is loaded goes on.
			t.checked = now
			seen.scope, seen.version = t.scope(special), t.version
			p.mu.Unlock()
			return seen, nil
		}
		idle := p.drop(t)
		info := t.info
		p.mu.Unlock()
		reason := "replaced"
		if gone {
			reason = "removed"
		}
		p.freed(idle, info, reason)
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	if err != nil {
		return view{}, err
	}
	seen.version = version
	if e, ok := p.failed.Get(model); ok && e.version == version && now.Before(e.until) {
		return view{}, e.err
	}
	if id, ok := p.idents.Get(model); ok && version != "" && id.version == version {
		pair := scopes(model, id.fingerprint)
		seen.scope = pair[0]
		if special {
			seen.scope = pair[1]
		}
	}
	return seen, nil
}

// awaitLoad puts f behind the load of its model, and begins it if none is
// under way. Callers hold mu.
func (p *Pool) awaitLoad(f *flight, version string) {
	l := p.loads[f.key.model]
	if l == nil {
		l = &load{model: f.key.model, version: version}
		p.loads[l.model] = l
		p.wg.Go(func() { p.runLoad(l) })
	}
	l.waiting = append(l.waiting, f)
}

// runLoad loads a tokenizer and hands the flights that wait for it to the
// workers.
func (p *Pool) runLoad(l *load) {
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.LoadTimeout)
	t, err := p.loadTokenizer(ctx, l.model)
	cancel()

	info := Model{Name: l.model}
	p.mu.Lock()
	delete(p.loads, l.model)
	waiting := l.waiting
	if err == nil {
		info = t.info
		t.refs = len(waiting)
		t.requests = uint64(len(waiting))
		p.loaded.Add(l.model, t)
		p.idents.Add(l.model, ident{t.version, t.info.Fingerprint})
		p.failed.Remove(l.model)
		p.n.loads.Add(1)
		for _, f := range waiting {
			f.tok = t
		}
	} else {
		if p.closed {
			err = ErrClosed
		}
		p.failed.Add(l.model, failure{l.version, time.Now().Add(p.cfg.FailureTTL), err})
		p.n.loadErrors.Add(1)
		for _, f := range waiting {
			p.unregister(f)
		}
	}
	p.mu.Unlock()
	if o := p.cfg.Observer.Loaded; o != nil {
		o(info, err)
	}
	for _, f := range waiting {
		if err != nil {
			p.finish(f, err)
			continue
		}
		held := f.place
		f.place = noPlace // given back here; f is the worker's once it is sent
		// Workers empty the queue, so this does not wait for ever.
		select {
		case p.run <- f:
		case <-p.done:
			p.remove(f)
			p.finish(f, ErrClosed)
		}
		p.leave(held)
	}
}

// loadTokenizer fetches and reads the tokenizer of a model, and makes room for
// it first.
func (p *Pool) loadTokenizer(ctx context.Context, model string) (*tokenizer, error) {
	start := time.Now()
	files, err := p.cfg.Origin.Fetch(ctx, model)
	if err != nil {
		if errors.Is(err, ErrUnknownModel) || errors.Is(err, ErrLoad) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: model %s: %w", ErrLoad, quoteModel(model), err)
	}
	sum := sha256.Sum256(files.Tokenizer)
	fingerprint := hex.EncodeToString(sum[:8])
	if err := p.makeRoom(ctx); err != nil {
		return nil, fmt.Errorf("%w: model %s: wait for one of %d tokenizers to end its work: %w",
			ErrLoad, quoteModel(model), p.cfg.MaxTokenizers, err)
	}
	before := residentBytes()
	enc, err := p.read(files.Tokenizer)
	if err != nil {
		p.slots.Release(1)
		return nil, fmt.Errorf("%w: model %s: %w", ErrLoad, quoteModel(model), err)
	}
	now := time.Now()
	return &tokenizer{
		enc:     enc,
		version: files.Version,
		scopes:  scopes(model, fingerprint),
		checked: now,
		info: Model{
			Name:          model,
			From:          files.From,
			Revision:      files.Revision,
			Fingerprint:   fingerprint,
			FileBytes:     int64(len(files.Tokenizer)),
			ResidentBytes: max(residentBytes()-before, 0),
			Vocabulary:    enc.vocabulary(),
			LoadTook:      now.Sub(start),
			LoadedAt:      now,
		},
	}, nil
}

// makeRoom takes a slot for one more tokenizer. When there is none it drops the
// tokenizer that was not asked for longest, and waits until some dropped one
// has finished its work. Those that come for the dropped one meanwhile wait for
// a load of it, behind this one, so that a busy model cannot keep others out.
func (p *Pool) makeRoom(ctx context.Context) error {
	if p.slots.TryAcquire(1) {
		return nil
	}
	p.mu.Lock()
	_, t, ok := p.loaded.GetOldest()
	if !ok { // all are being loaded, or dropped already
		p.mu.Unlock()
		return p.slots.Acquire(ctx, 1)
	}
	idle, info := p.drop(t), t.info
	p.mu.Unlock()
	p.freed(idle, info, "room")
	return p.slots.Acquire(ctx, 1)
}

// drop takes t out of loaded, and returns it if it is to be freed now, for
// which the lock must be given up. Callers hold mu.
func (p *Pool) drop(t *tokenizer) []*tokenizer {
	t.dropped = true
	p.loaded.Remove(t.info.Name)
	if t.refs == 0 {
		return []*tokenizer{t}
	}
	return nil
}

// release gives t back after a flight.
func (p *Pool) release(t *tokenizer) {
	p.mu.Lock()
	t.refs--
	last := t.dropped && t.refs == 0
	p.mu.Unlock()
	if last {
		p.free([]*tokenizer{t})
	}
}

// free closes tokenizers that nobody can reach.
func (p *Pool) free(idle []*tokenizer) {
	for _, t := range idle {
		t.enc.close()
		p.slots.Release(1)
	}
}

// freed frees what a drop returned, and tells of it.
func (p *Pool) freed(idle []*tokenizer, info Model, reason string) {
	p.free(idle)
	p.n.dropped.Add(1)
	if o := p.cfg.Observer.Dropped; o != nil {
		o(info, reason)
	}
}
