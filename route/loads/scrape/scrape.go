package scrape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// Limits of a Scraper.
const (
	// maxAtOnce is how many pages it reads at a time.
	maxAtOnce = 32
	// maxPage is how long a page can be, in bytes after decompression.
	maxPage = 4 << 20
	// timeout is how long a page can take. It is shorter than the time between turns.
	timeout = 1500 * time.Millisecond
	// beat is the mean time between two calls of Turns.
	beat = loads.EngineEvery / 4
	// callTimeout bounds a call of the store.
	callTimeout = time.Second
)

// Store is the part of a loads.Store that a Scraper needs.
type Store interface {
	PutEngine(ctx context.Context, model, pod string, ranks []loads.Engine) error
	Turns(ctx context.Context, model string, pods []string, most int) ([]string, error)
	Missed(ctx context.Context, model, pod string) error
}

// Config is what a Scraper is made of. All but Observer is required.
type Config struct {
	// Loads is told what engines say.
	Loads Store
	// Pods returns which pods are registered, without I/O.
	Pods func() *store.Registry
	// Models returns the models whose engines are to be asked.
	Models func() []string
	// Client makes the requests, and should follow no redirects: access.Networks has one.
	Client *http.Client
	// Failed, if not nil, is told why an engine's load could not be read, and Read that it
	// was. Both are called from the goroutines that read, and must not block.
	Failed func(pod string, err error)
	Read   func(pod string)
}

// Stats are figures of a Scraper since its beginning.
type Stats struct {
	// Read is how many pages were read, Failed how many could not be.
	Read, Failed uint64
}

// Scraper asks engines for their load while it runs.
type Scraper struct {
	c            Config
	atOnce       chan struct{}
	reading      sync.WaitGroup
	read, failed atomic.Uint64
}

// New returns a Scraper that does nothing until Run.
func New(c Config) (*Scraper, error) {
	if c.Loads == nil || c.Pods == nil || c.Models == nil || c.Client == nil {
		return nil, errors.New("scrape: Loads, Pods, Models and Client are required")
	}
	return &Scraper{c: c, atOnce: make(chan struct{}, maxAtOnce)}, nil
}

// Stats returns figures since the beginning.
func (s *Scraper) Stats() Stats { return Stats{Read: s.read.Load(), Failed: s.failed.Load()} }

// Run asks engines until ctx is done, and returns when all asking has ended.
func (s *Scraper) Run(ctx context.Context) {
	defer s.c.Client.CloseIdleConnections()
	defer s.reading.Wait()
	for {
		s.look(ctx)
		timer := time.NewTimer(beat/2 + rand.N(beat))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// look begins to ask the engines that are due, as many as there is room for.
func (s *Scraper) look(ctx context.Context) {
	reg := s.c.Pods()
	for _, m := range s.c.Models() {
		names, at := askable(reg, m)
		for len(names) > 0 {
			n := min(len(names), loads.MaxTurns)
			s.takeTurns(ctx, reg, m, names[:n], at)
			names = names[n:]
		}
	}
}

// askable returns the pods of a model whose engine's metrics are known, and where in the
// registry they are. They are in any order so that none is always the last.
func askable(reg *store.Registry, model string) (names []string, at map[string]int) {
	at = map[string]int{}
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.Model != model || p.PartOf != nil || pageOf(p) == "" {
			continue
		}
		names, at[p.Name] = append(names, p.Name), i
	}
	rand.Shuffle(len(names), func(i, k int) { names[i], names[k] = names[k], names[i] })
	return names, at
}

// pageOf is the URL of a pod's metrics, empty where it has none that can be read.
func pageOf(p *store.Pod) string {
	k := kinds[p.Engine]
	if k == nil {
		return ""
	}
	text := p.Address
	text = cmp.Or(text, p.Name)
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Port() == "" && u.Scheme == "http" && p.Address == "" || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "" // a name that is no address
	}
	return u.Scheme + "://" + u.Host + strings.TrimSuffix(u.Path, "/") + k.path
}

func (s *Scraper) takeTurns(ctx context.Context, reg *store.Registry, model string, names []string, at map[string]int) {
	free := cap(s.atOnce) - len(s.atOnce)
	if free == 0 {
		return
	}
	bound, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	turns, err := s.c.Loads.Turns(bound, model, names, free)
	if err != nil {
		return // no engine is asked while the loads are away
	}
	for _, name := range turns {
		i, ok := at[name]
		if !ok {
			continue
		}
		s.atOnce <- struct{}{} // there is room: only this goroutine takes it
		s.reading.Go(func() {
			defer func() { <-s.atOnce }()
			s.ask(ctx, reg, i)
		})
	}
}

// ask reads the load of a pod's engine and tells it.
func (s *Scraper) ask(ctx context.Context, reg *store.Registry, i int) {
	p := &reg.Pods[i]
	ranks, err := s.get(ctx, p)
	if ctx.Err() != nil {
		return
	}
	bound, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err != nil {
		s.failed.Add(1)
		if s.c.Failed != nil {
			s.c.Failed(p.Name, err)
		}
		_ = s.c.Loads.Missed(bound, p.Model, p.Name) // then it is asked again at its next turn
		return
	}
	for k := range ranks {
		if slot, ok := reg.Slot(i, ranks[k].Rank); ok {
			ranks[k].Generation = reg.Generation(slot)
		}
	}
	if err := s.c.Loads.PutEngine(bound, p.Model, p.Name, ranks); err != nil {
		return // the loads are away: what is told in two seconds counts as well
	}
	s.read.Add(1)
	if s.c.Read != nil {
		s.c.Read(p.Name)
	}
}

// get reads the load of a pod's engine.
func (s *Scraper) get(ctx context.Context, p *store.Pod) ([]loads.Engine, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, pageOf(p), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	resp, err := s.c.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: %s answers %s", errPage, req.URL.Path, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxPage {
		return nil, fmt.Errorf("%w: it has more than %d bytes", errPage, maxPage)
	}
	return parse(p.Engine, p.Ranks, text)
}
