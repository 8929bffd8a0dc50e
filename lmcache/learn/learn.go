// Package learn finds out how engines run LMCache from what LMCache has written to Redis,
// for models that are not configured. It finds the form of the keys, the hash algorithm, the
// seed and the size of chunks.
//
// The names of keys say what is hashed for which model, and not how. So a [Learner] takes a prompt that is
// asked for, and hashes its first chunk in all ways that there are. Then it looks whether one of these
// hashes is among the keys of that model. What it finds is proof: a hash of 64 bits or more has been
// recomputed. A learnt profile gives credit only by hashes that are recomputed for each prompt.
//
// No request waits for it. Where no key has such a name nothing is done but a bounded SCAN. It runs at the
// start and, while models without a profile are asked for, ever more seldom.
package learn

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/diagnose"
)

const (
	// firstWait is the least time between two scans, and between two prompts of a model
	// that are tried. Each that is in vain doubles it, up to lastWait.
	firstWait = time.Second
	lastWait  = 10 * time.Minute
	// maxNames bounds the names of a scan that are taken in, and maxModels the models that
	// are tried.
	maxNames  = 50_000
	maxModels = 1024
	// maxTokens is how much of a prompt is tried: the longest first chunk.
	maxTokens = 1024
	// timeout bounds a scan, and the question whether keys are there.
	timeout = 10 * time.Second
)

// Config is what a Learner works with.
type Config struct {
	// Names walks the names of keys that may be LMCache's, a bounded number of them.
	Names func(ctx context.Context, each func(name string)) error
	// There reports which of the names are keys.
	There func(ctx context.Context, names []string) ([]bool, error)
	// Learnt receives each profile that is learnt, as lmcache-models takes it, and the entries that are
	// found.
	Learnt func(model, profile string)
	// Failed receives the errors of looks at Redis; it may be nil.
	Failed func(error)
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Learner finds profiles. It is safe for concurrent use.
type Learner struct {
	c     Config
	found atomic.Pointer[diagnose.Diagnosis] // what the last scan has seen; nil is nothing
	due   atomic.Int64                       // when the next scan may be, in Unix nanoseconds

	mu     sync.Mutex // protects models
	models map[string]*model

	scan   chan struct{}
	prompt chan prompt
	wait   time.Duration // between the last scan and the next; Run alone uses it
}

// model is what is known of a model.
type model struct {
	reader   atomic.Pointer[lmcache.Reader]
	profiles []lmcache.Profile // of the reader; Run alone uses it
	due      atomic.Int64      // when the next prompt may be tried
	wait     time.Duration     // until the one after; Run alone uses it
}

// prompt is the beginning of one that is asked for.
type prompt struct {
	name   string
	of     *model
	tokens []uint32
}

// New returns a Learner that has learnt nothing; Run does the work.
func New(c Config) *Learner {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Learner{c: c, wait: firstWait, models: map[string]*model{}, scan: make(chan struct{}, 1), prompt: make(chan prompt, 1)}
}

// Reader returns how to ask for what LMCache holds of a model's prompts, nil while that is
// not known. It takes the prompt as one to learn from, never waits, and keeps no reference.
func (l *Learner) Reader(name string, tokens []uint32) *lmcache.Reader {
	now := l.c.Now().UnixNano()
	if l.found.Load() == nil {
		if now >= l.due.Load() {
			select {
			case l.scan <- struct{}{}:
			default:
			}
		}
		return nil
	}
	m := l.model(name)
	if m == nil {
		return nil
	}
	if len(tokens) >= diagnose.LeastTokens && now >= m.due.Load() {
		select {
		case l.prompt <- prompt{name, m, slices.Clone(tokens[:min(len(tokens), maxTokens)])}:
			m.due.Store(now + int64(firstWait))
		default: // another one is being tried
		}
	}
	return m.reader.Load()
}

// model is what is known of a model; nil beyond maxModels.
func (l *Learner) model(name string) *model {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.models[name]
	if m == nil && len(l.models) < maxModels {
		m = &model{wait: firstWait}
		l.models[name] = m
	}
	return m
}

// Run scans and tries prompts until ctx is done.
func (l *Learner) Run(ctx context.Context) {
	l.look(ctx)
	again := time.NewTicker(lastWait)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.scan:
			l.lookIfDue(ctx)
		case <-again.C:
			// Engines may have changed. Where there was nothing, a request is what asks.
			if l.found.Load() != nil {
				l.look(ctx)
			}
		case p := <-l.prompt:
			l.try(ctx, p)
		}
	}
}

// lookIfDue scans again, if the last time is long enough ago.
func (l *Learner) lookIfDue(ctx context.Context) {
	if l.c.Now().UnixNano() >= l.due.Load() {
		l.look(ctx)
	}
}

// look scans once.
func (l *Learner) look(ctx context.Context) {
	defer func() {
		l.due.Store(l.c.Now().Add(l.wait).UnixNano())
		l.wait = min(2*l.wait, lastWait)
	}()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s := diagnose.New(diagnose.Config{Mode: lmcache.AutoEntries})
	n := 0
	err := l.c.Names(ctx, func(name string) {
		if tell, _ := s.Want(name); tell && n < maxNames {
			s.Add(diagnose.Entry{Name: name})
			n++
		}
	})
	if err != nil && ctx.Err() == nil {
		l.failed(err)
	}
	if n > 0 {
		l.found.Store(s)
	}
}

// try looks for the prompt among the keys of its model.
func (l *Learner) try(ctx context.Context, p prompt) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer func() {
		p.of.due.Store(l.c.Now().Add(p.of.wait).UnixNano())
		p.of.wait = min(2*p.of.wait, lastWait)
	}()
	e := l.found.Load().Explain(p.name, p.tokens)
	names := e.OwnNames()
	if len(names) == 0 {
		l.lookIfDue(ctx) // the model's keys may be newer than the last scan
		return
	}
	there, err := l.c.There(ctx, names)
	if err != nil {
		if ctx.Err() == nil {
			l.failed(err)
		}
		return
	}
	var learnt []string
	for _, f := range e.Profiles(names, there) {
		if slices.ContainsFunc(p.of.profiles, func(q lmcache.Profile) bool { return diagnose.Spell(p.name, q) == diagnose.Spell(p.name, f) }) {
			continue
		}
		p.of.profiles = append(p.of.profiles, f)
		learnt = append(learnt, diagnose.Spell(p.name, f))
	}
	if len(learnt) == 0 {
		return
	}
	r, err := lmcache.NewReader(p.name, lmcache.AutoEntries, p.of.profiles...)
	if err != nil {
		l.failed(err)
		return
	}
	p.of.reader.Store(r)
	for _, text := range learnt {
		l.c.Learnt(p.name, text)
	}
}

func (l *Learner) failed(err error) {
	if l.c.Failed != nil {
		l.c.Failed(err)
	}
}
