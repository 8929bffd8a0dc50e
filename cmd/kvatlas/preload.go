package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// preloadAgain is after how long a tokenizer that could not be loaded is tried again.
const preloadAgain = 5 * time.Second

// preloading is what is missing of the tokenizers of preload.
type preloading struct {
	mu      sync.Mutex        // protects missing
	missing map[string]string // by model, why; empty while it is loaded
}

// set notes what became of a model; done means that it is there.
func (p *preloading) set(model, why string, done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if done {
		delete(p.missing, model)
		return
	}
	p.missing[model] = why
}

// Error says what is missing, for /readyz. Where a model's tokenizer cannot be loaded,
// it says why.
func (p *preloading) Error() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var failed []string
	for _, model := range slices.Sorted(maps.Keys(p.missing)) {
		if why := p.missing[model]; why != "" {
			failed = append(failed, fmt.Sprintf("%s (%s)", model, why))
		}
	}
	if len(failed) == 0 {
		return "loading tokenizers"
	}
	return "preload: no tokenizer of " + strings.Join(failed, ", ")
}

// whyNot says in a few words why there is no tokenizer. Paths and addresses are for the
// log.
func whyNot(err error) string {
	switch {
	case errors.Is(err, tokenpool.ErrUnsupported):
		return "only Python code can run it"
	case errors.Is(err, tokenpool.ErrBroken):
		_, why, _ := strings.Cut(err.Error(), `": `) // behind the model's name
		return why
	case errors.Is(err, tokenpool.ErrUnknownModel):
		return "there is none"
	case errors.Is(err, tokenpool.ErrPinned):
		return "it is not the pinned one"
	}
	return "it cannot be loaded; the log says why"
}

// newPreloading returns the state in which none of the models is loaded.
func newPreloading(models []string) *preloading {
	p := &preloading{missing: map[string]string{}}
	for _, m := range models {
		p.missing[m] = ""
	}
	return p
}

// load loads the tokenizers of all models, all at once. One that cannot be loaded is logged, does not keep
// the others from use, and is tried again until ctx ends.
func (s *service) load(ctx context.Context, p *preloading) {
	var wg sync.WaitGroup
	for _, model := range s.cfg.Preload {
		wg.Go(func() { s.loadOne(ctx, model, p) })
	}
	wg.Wait()
}

// lookForModels is how often a gateway looks which models its pods have.
const lookForModels = 250 * time.Millisecond

// loadTokenizersOfPods loads the tokenizer of each model that a pod serves, once. A gateway's
// first requests would otherwise wait for it, and be sent without a look at their prompts. One
// that cannot be loaded is tried again with the first request that wants it.
func (s *service) loadTokenizersOfPods(ctx context.Context) {
	tick := time.NewTicker(lookForModels)
	defer tick.Stop()
	seen := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, p := range s.index.Cached().Pods {
			if seen[p.Model] {
				continue
			}
			seen[p.Model] = true
			if _, err := s.pool.Tokens(ctx, prompt.Request{Model: p.Model, Text: "a", Mode: prompt.Sync}); err != nil && ctx.Err() == nil {
				s.log.Info().Str("model", p.Model).Err(err).Msg("the tokenizer of a model that a pod has cannot be loaded now")
			}
		}
	}
}

func (s *service) loadOne(ctx context.Context, model string, p *preloading) {
	again := time.NewTicker(preloadAgain)
	defer again.Stop()
	for tries := 0; ; tries++ {
		_, err := s.pool.Tokens(ctx, prompt.Request{Model: model, Text: "a", Mode: prompt.Sync})
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			p.set(model, "", true)
			return
		}
		p.set(model, whyNot(err), false)
		if tries == 0 {
			s.log.Error().Str("model", model).Err(err).Msg("preload: no tokenizer; the server answers, and /readyz says no until it is there")
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}
