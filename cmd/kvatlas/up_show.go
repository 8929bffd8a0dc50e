package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mattn/go-isatty"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/sim/talks"
	"github.com/kvatlas/kvatlas/sim/wire"
)

// show is a run of kvatlas up: conversations, and the picture of what they come to.
type show struct {
	call         *upCall
	fleet        *wire.Fleet
	out          io.Writer
	url, control string
	http         *http.Client
	client       *client.Client
	order        []int         // of conversations
	taken        atomic.Uint64 // how many have begun

	mu     sync.Mutex // protects all below
	pods   []podTally
	all    tally // since the start
	recent tally // since the last picture
	last   string
	failed error
}

// tally counts turns of conversations, and tokens of their prompts.
type tally struct {
	turns, prompt, predicted, reused int
	waited                           time.Duration // until the first token
}

func (t *tally) add(o tally) {
	t.turns += o.turns
	t.prompt += o.prompt
	t.predicted += o.predicted
	t.reused += o.reused
	t.waited += o.waited
}

// podTally is of a pod since the start.
type podTally struct {
	name string
	tally
}

func newShow(c *upCall, f *wire.Fleet, out io.Writer, url string) *show {
	s := &show{call: c, fleet: f, out: out, url: url, http: &http.Client{}, order: talkOrder(c)}
	for _, p := range f.Pods() {
		s.pods = append(s.pods, podTally{name: p.Address()})
	}
	return s
}

// talkOrder is in which order the conversations come, by the seed.
func talkOrder(c *upCall) []int { return rand.New(rand.NewPCG(c.seed, 9)).Perm(len(c.talks)) }

// run has the conversations go on, and draws, until ctx ends.
func (s *show) run(ctx context.Context) {
	c, err := client.New(client.Config{URL: s.url, UserAgent: "kvatlas-up/" + versionWord()})
	if err != nil {
		s.fail(err)
		return
	}
	s.client = c
	defer c.Close()
	if !s.known(ctx) {
		return
	}
	var chats sync.WaitGroup
	for range s.call.chats {
		chats.Go(func() { s.chat(ctx) })
	}
	tick := time.NewTicker(s.call.interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			s.draw(ctx)
		case <-ctx.Done():
		}
	}
	chats.Wait()
	s.draw(ctx)
}

// known waits until the server knows all engines, and returns false when ctx ends before.
func (s *show) known(ctx context.Context) bool {
	for {
		if pods, err := s.client.Pods(ctx); err == nil && len(pods) >= len(s.pods) {
			return true
		}
		if !rest(ctx, 10*time.Millisecond) {
			return false
		}
	}
}

// fail keeps what a turn has failed with, for the picture: an engine that was killed is no
// reason to end.
func (s *show) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
}

// chat has conversations, one after the other.
func (s *show) chat(ctx context.Context) {
	for ctx.Err() == nil {
		n := s.taken.Add(1) - 1
		round := 1 + n/uint64(len(s.order))
		for _, turn := range s.call.talks[s.order[n%uint64(len(s.order))]] {
			if !rest(ctx, time.Duration(float64(turn.Think)/s.call.sim.config.Speed)) {
				return
			}
			err := s.take(ctx, &turn, round)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				s.fail(err)
				if !rest(ctx, 200*time.Millisecond) {
					return
				}
				break
			}
		}
	}
}

// rest waits, and returns false when ctx ends before.
func rest(ctx context.Context, d time.Duration) bool { return cli.SleepUntil(ctx, time.Now().Add(d)) }

// take takes a turn: has the server choose a pod and book the turn there, sends it, and
// reports its first token and its end.
func (s *show) take(ctx context.Context, turn *talks.Turn, round uint64) error {
	model, prompt := s.call.sim.config.Model, turn.Prompt(round)
	r, err := s.client.Route(ctx, client.RouteRequest{
		ScoreRequest: client.ScoreRequest{Model: model, Tokens: prompt, Explain: true},
		Policy:       s.call.policy.Name, Reserve: true, ExpectedOutputTokens: turn.Output,
	})
	if err != nil {
		return err
	}
	s.rank(r)
	t := tally{turns: 1, prompt: len(prompt), predicted: r.Overlap.Tokens}
	defer func() {
		if r.Reservation == "" {
			return
		}
		if _, err := s.client.End(ctx, model, r.Reservation); err != nil && ctx.Err() == nil {
			s.fail(err)
		}
	}()
	began := time.Now()
	err = s.ask(ctx, r.Pod, map[string]any{
		"model": model, "prompt": prompt, "max_tokens": turn.Output, "stream": true,
		"stream_options": map[string]any{"include_usage": true, "continuous_usage_stats": true},
	}, func(cached int) error {
		t.waited, t.reused = time.Since(began), cached
		if r.Reservation == "" {
			return nil
		}
		_, err := s.client.Done(ctx, model, r.Reservation, &cached)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", r.Pod, err)
	}
	s.tell(r.Pod, t)
	return nil
}

// ask has a pod answer a completion. first gets with the first token how many tokens of
// the prompt were cached.
func (s *show) ask(ctx context.Context, pod string, body any, first func(cached int) error) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+pod+"/v1/completions", bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	lines := bufio.NewScanner(resp.Body)
	for begun := false; lines.Scan(); {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			return nil
		}
		if begun {
			continue
		}
		var part struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal(data, &part); err != nil {
			return err
		}
		begun = true
		if err := first(part.Usage.Details.Cached); err != nil {
			return err
		}
	}
	return cmp.Or(lines.Err(), io.ErrUnexpectedEOF)
}

// ranked is how many candidates of the last decision the picture has.
const ranked = 3

// rank keeps how the candidates of a decision stood, for the picture.
func (s *show) rank(r *client.RouteResponse) {
	var b strings.Builder
	fmt.Fprintf(&b, "%d tokens to %s", r.Tokens.Total, r.Pod)
	for i, c := range r.Costs {
		if i == ranked || c.Total == nil {
			break
		}
		held := 0
		for _, n := range c.HeldTokens {
			held += n
		}
		fmt.Fprintf(&b, "; %d. %s costs %.4g: %d held, %d run there", i+1, c.Pod, *c.Total, held, c.Load.Requests)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = b.String()
}

func (s *show) tell(pod string, t tally) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.add(t)
	s.recent.add(t)
	if i := slices.IndexFunc(s.pods, func(p podTally) bool { return p.name == pod }); i >= 0 {
		s.pods[i].add(t)
	}
}

// booked returns by pod how many tokens the server has booked for prefill there.
func (s *show) booked(ctx context.Context) map[string]int64 {
	out := map[string]int64{}
	all, err := s.client.Loads(ctx, s.call.sim.config.Model)
	if err != nil {
		if ctx.Err() == nil {
			s.fail(err)
		}
		return out
	}
	for _, ranks := range all {
		for _, r := range ranks {
			out[r.Pod] += r.PrefillTokens
		}
	}
	return out
}

// draw writes the picture: over the last one on a terminal, behind it elsewhere.
func (s *show) draw(ctx context.Context) {
	state, booked := s.fleet.State(), s.booked(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	if f, ok := s.out.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
		b.WriteString("\x1b[H\x1b[2J")
	}
	row := func(cells ...any) { fmt.Fprintf(&b, "%-22s %-9s %7v %7v %8v  %-12s %7v %9s %9s\n", cells...) }
	row("POD", "", "RUNNING", "WAITING", "PREFILL", "CACHE IN USE", "TURNS", "PREDICTED", "REUSED")
	for i, p := range state {
		t := s.pods[i].tally
		if !p.Alive {
			row(p.Address, p.Name, "dead", "", "", "", t.turns, s.predicted(t), share(t.reused, t.prompt))
			continue
		}
		r := p.Ranks[0]
		row(p.Address, p.Name, r.Running, r.Waiting, booked[p.Address], strings.Repeat("#", 12*r.UsedBlocks/max(1, r.TotalBlocks)), t.turns, s.predicted(t), share(t.reused, t.prompt))
	}
	for _, line := range []struct {
		name string
		t    tally
	}{{"now", s.recent}, {"since the start", s.all}} {
		mean := time.Duration(0)
		if line.t.turns > 0 {
			mean = (line.t.waited / time.Duration(line.t.turns)).Round(time.Millisecond)
		}
		fmt.Fprintf(&b, "%s: %d turns, %s of their tokens predicted, %s reused, first token after %v\n", line.name, line.t.turns, s.predicted(line.t), share(line.t.reused, line.t.prompt), mean)
	}
	if s.last != "" {
		fmt.Fprintf(&b, "%s: %s\n", s.call.policy.Name, s.last)
	}
	if s.failed != nil {
		fmt.Fprintf(&b, "failed: %v\n", s.failed)
	}
	fmt.Fprintf(&b, "server %s, faults at http://%s/pods/NAME/faults (kvatlas sim --help)\n\n", s.url, s.control)
	s.recent, s.failed = tally{}, nil
	_, _ = io.WriteString(s.out, b.String()) // a terminal that has gone
}

// predicted is the part that was predicted. A policy that takes no notice of the prompt
// looks nothing up.
func (s *show) predicted(t tally) string {
	if s.call.policy.Blind {
		return "-"
	}
	return share(t.predicted, t.prompt)
}

// share is a part in percent.
func share(n, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(of))
}
