package tokenpool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/tokenpool/chat"
	"github.com/kvatlas/kvatlas/tokenpool/internal/cut"
	"github.com/kvatlas/kvatlas/tokenpool/internal/media"
	"github.com/kvatlas/kvatlas/tokenpool/internal/proofs"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// tokenizer is one in memory. It is closed when it has been dropped and no
// flight holds it any more.
type tokenizer struct {
	enc     encoder
	proven  *proven // within enc; nil where there is only the reference
	late    *late   // the reference, where it is read behind the load; nil else
	key     *proofs.Key
	made    [sha256.Size]byte // SHA-256 of tokenizer.json, or of what was made in its place
	version string            // of the origin
	scopes  [2]string         // of the prefix store, without and with special tokens
	chat    chatEntry
	sum     uint64 // of pieces: of made, and whether the reference alone made them
	data    []byte // what made is of, until the load ends; nil where nothing is to be proven
	cuts    *cut.Cutter
	frame   frame

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
		out := []dropped{p.drop(t)}
		p.mu.Unlock()
		reason := "replaced"
		if gone {
			reason = "removed"
		}
		p.sendOff(out, reason)
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
	if id, ok := p.idents.Get(model); ok && version != "" && id.version == version && !p.distrusted[id.fingerprint] {
		pair := scopes(model, id.fingerprint)
		seen.scope = pair[0]
		if special {
			seen.scope = pair[1]
		}
	}
	return seen, nil
}

// lastFailure is the error of the last load of a model in this version, if that found no
// tokenizer that can be used. It holds until another load has ended, however long ago it was.
func (p *Pool) lastFailure(model, version string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.failed.Peek(model)
	if ok && e.version == version && (errors.Is(e.err, ErrUnknownModel) || errors.Is(e.err, ErrBroken)) {
		return e.err
	}
	return nil
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
	var out []dropped
	p.mu.Lock()
	delete(p.loads, l.model)
	waiting := l.waiting
	if err == nil {
		info = t.info
		info.MemoryBytes += t.proven.memoryBytes()
		if id, ok := p.idents.Peek(l.model); ok && id.fingerprint != info.Fingerprint {
			t.info.Before, info.Before = id.fingerprint, id.fingerprint
		}
		t.refs = len(waiting)
		t.requests = uint64(len(waiting))
		p.loaded.Add(l.model, t)
		p.idents.Add(l.model, ident{t.version, t.info.Fingerprint})
		p.chats.Add(l.model, t.chat)
		p.failed.Remove(l.model)
		p.n.loads.Add(1)
		for _, f := range waiting {
			f.tok = t
		}
		if t.proven != nil && !p.distrusted[info.Fingerprint] && !p.closed {
			t.refs++ // given back behind it
			if data := t.data; t.late != nil {
				p.wg.Go(func() { p.loadReference(t) })
			} else {
				p.wg.Go(func() { p.prove(t, data) })
			}
		}
		t.data = nil
		out = p.makeWay()
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
	p.cfg.Observer.Loaded(info, err)
	if err == nil && t.late != nil {
		p.cfg.Observer.Proven(info.Name, nil)
	}
	p.sendOff(out, "room")
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
		if errors.Is(err, ErrUnknownModel) || errors.Is(err, tokenfile.ErrLoad) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: model %s: %w", tokenfile.ErrLoad, tokenfile.Quote(model), err)
	}
	if err := p.cfg.Pins[model].check(model, files); err != nil {
		return nil, err
	}
	src, err := p.findSource(files)
	if err != nil {
		return nil, tokenfile.OfModel(model, cmp.Or(files.Check(), err))
	}
	if err := p.makeRoom(ctx); err != nil {
		return nil, fmt.Errorf("%w: model %s: wait for one of %d tokenizers to end its work: %w",
			tokenfile.ErrLoad, tokenfile.Quote(model), p.cfg.MaxTokenizers, err)
	}
	before := memoryBytes()
	enc, reference, err := p.readReference(files, src)
	if err != nil {
		p.mu.Lock()
		p.vacate()
		p.mu.Unlock()
		return nil, tokenfile.OfModel(model, cmp.Or(files.Check(), err))
	}
	if src.proof == nil {
		src.vocabulary = enc.vocabulary()
	}
	enc = weighed{encoder: enc, memory: p.memory, most: p.cfg.WorkBytes}
	var fast *proven
	if p.cfg.Fast && !src.split {
		fast = &proven{encoder: enc, memory: p.memory, most: p.cfg.WorkBytes, texts: &p.n.fast}
		fast.fast.Store(src.fast)
		enc = fast
	}
	rendering := p.newChat(files)
	cuts := cut.New(src.data, src.split)
	if src.fast != nil && fast != nil {
		cutSpaces(cuts, src.fast)
	}
	if rendering.media, err = media.NewRules(files.Media, cuts.Added, func(text string) []uint32 { ids, _ := enc.encode(text, false); return ids }); err != nil && rendering.err == nil {
		rendering.err = fmt.Errorf("%w: %w", chat.ErrFiles, err)
	}
	if part, run := tokenfile.Parts(files.Name); part > 0 {
		cuts.MaxLines = part
		enc = parted{encoder: enc, parts: cut.Parts{Added: cuts, Most: part, Run: run}}
	}
	var around frame
	switch {
	case src.proof != nil:
		around = frame{src.proof.Framed, src.proof.Before, src.proof.Behind}
	case cuts.Any() || fast != nil:
		around = newFrame(enc)
	}
	if fast != nil {
		fast.around = around
	}
	fingerprint, sum := fingerprintOf(src.sum), src.sum
	name := fingerprint
	if p.distrusts(fingerprint) {
		// Tokens of before are not used any more.
		name += " by the reference"
		sum = sumOf(sum[:], true)
	}
	now := time.Now()
	return &tokenizer{
		enc:     enc,
		proven:  fast,
		late:    reference,
		key:     src.key,
		made:    src.sum,
		data:    src.data,
		version: files.Version,
		chat:    rendering,
		sum:     binary.LittleEndian.Uint64(sum[:8]),
		cuts:    cuts,
		frame:   around,
		scopes:  scopes(model, name),
		checked: now,
		info: Model{
			Name:         model,
			From:         files.From,
			Revision:     files.Revision,
			Fingerprint:  fingerprint,
			File:         cmp.Or(files.Name, tokenfile.TokenizerFile),
			SHA256:       sha256Hex(files.Tokenizer),
			FileBytes:    int64(len(files.Tokenizer)),
			MemoryBytes:  max(memoryBytes()-before, 0),
			Vocabulary:   src.vocabulary,
			ChatTemplate: rendering.err == nil && (rendering.renderer.HasTemplate(false) || rendering.renderer.HasTemplate(true)),
			LoadTook:     now.Sub(start),
			LoadedAt:     now,
		},
	}, nil
}

// distrusts reports whether the fast encoder has once differed for tokenizers of this
// fingerprint.
func (p *Pool) distrusts(fingerprint string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.distrusted[fingerprint]
}

// sumOf names what gives tokens: by it the prefix store and pieces tell tokenizers apart.
func sumOf(data []byte, split bool) [sha256.Size]byte {
	if split {
		data = append(slices.Clip(data), 0)
	}
	return sha256.Sum256(data)
}

// makeRoom takes room for one more tokenizer. When there is none it drops the
// tokenizer that was not asked for longest, and waits until a dropped one has
// finished its work. Those that come for the dropped one meanwhile wait for a
// load of it, behind this one. So a busy model cannot keep others out.
func (p *Pool) makeRoom(ctx context.Context) error {
	p.mu.Lock()
	if p.live < p.cfg.MaxTokenizers && len(p.wanting) == 0 {
		p.live++
		p.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	p.wanting = append(p.wanting, turn)
	out := p.makeWay()
	p.mu.Unlock()
	p.sendOff(out, "room")

	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	if i := slices.Index(p.wanting, turn); i >= 0 {
		p.wanting = slices.Delete(p.wanting, i, i+1)
	} else { // it came at the same moment
		p.vacate()
	}
	p.mu.Unlock()
	return ctx.Err()
}

// makeWay drops tokenizers until as many are about to go as loads want room.
// The rest comes with loads that end. A tokenizer just loaded has flights that
// wait for it, so each load is of use even if it is dropped at once. Callers
// hold mu, and send off what it returns.
func (p *Pool) makeWay() (out []dropped) {
	for len(p.wanting) > p.leaving {
		_, t, ok := p.loaded.GetOldest()
		if !ok {
			break
		}
		out = append(out, p.drop(t))
	}
	return out
}

// vacate passes on the room of a tokenizer that is closed, or was not loaded.
// Callers hold mu.
func (p *Pool) vacate() {
	if len(p.wanting) == 0 {
		p.live--
		return
	}
	close(p.wanting[0])
	p.wanting = p.wanting[1:]
}

// dropped is a tokenizer that no new caller can get.
type dropped struct {
	t    *tokenizer
	info Model
	idle bool // no flight holds it, so it is to be closed now
}

// drop takes t out of loaded. Callers hold mu, and send off what it returns
// after they have given it up.
func (p *Pool) drop(t *tokenizer) dropped {
	t.dropped = true
	p.leaving++
	p.loaded.Remove(t.info.Name)
	return dropped{t, t.info, t.refs == 0}
}

// sendOff closes what has been dropped and is idle, and reports it.
func (p *Pool) sendOff(out []dropped, reason string) {
	for _, d := range out {
		if d.idle {
			p.closeTokenizer(d.t)
		}
		p.n.dropped.Add(1)
		p.cfg.Observer.Dropped(d.info, reason)
	}
}

// release gives t back after a flight.
func (p *Pool) release(t *tokenizer) {
	p.mu.Lock()
	t.refs--
	last := t.dropped && t.refs == 0
	p.mu.Unlock()
	if last {
		p.closeTokenizer(t)
	}
}

// closeTokenizer closes one that no caller can reach.
func (p *Pool) closeTokenizer(t *tokenizer) {
	t.enc.close()
	p.mu.Lock()
	p.leaving--
	p.vacate()
	p.mu.Unlock()
}
