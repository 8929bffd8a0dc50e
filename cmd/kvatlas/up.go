package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-isatty"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/sim/wire"
)

const upUsage = `kvatlas up starts simulated engines and a server that reads their events, has
chats go on with them, and shows what happens: which part of the prompts was
reused, what was predicted of it, and how busy the engines are. Ctrl-C ends it.

  kvatlas up
  kvatlas up --pods 4 --engine sglang --chats 40
  kvatlas up --choose turns            # each in its turn, to compare with

Each turn of a chat goes to the pod of which the server says that it holds the
most of it, unless that pod has more to do than others.

`

// upCall is one call of kvatlas up.
type upCall struct {
	sim      *simCall
	listen   string
	chats    int
	choose   string
	interval time.Duration
	length   time.Duration
}

// How kvatlas up chooses a pod.
const (
	choosePrefix = "prefix"
	chooseTurns  = "turns"
)

// maxChats bounds the chats of kvatlas up.
const maxChats = 10_000

func (p *program) readUpCall(args []string) (*upCall, error) {
	fs := flag.NewFlagSet("kvatlas up", flag.ContinueOnError)
	c := &upCall{}
	pods := fs.Int("pods", 8, "how many engines")
	engine := fs.String("engine", "vllm", "whose they are: vllm, sglang or trtllm")
	blocks := fs.Int("blocks", 2000, "blocks of 16 tokens that each has room for")
	speed := fs.Float64("speed", 4, "how many times faster than real engines they are")
	port := fs.Int("port", 8000, "HTTP port of the first engine")
	events := fs.Int("events-port", 15557, "port of the events of the first engine")
	replay := fs.Int("replay-port", 25557, "port of the first engine's replay socket")
	control := fs.String("control", "127.0.0.1:7999", "`ADDRESS` of the engines' control page")
	fs.StringVar(&c.listen, "listen", "127.0.0.1:8080", "the server's `ADDRESS`")
	fs.IntVar(&c.chats, "chats", 24, "how many chats go on at a time")
	fs.StringVar(&c.choose, "choose", choosePrefix, "how a pod is chosen: prefix, or turns")
	fs.DurationVar(&c.interval, "interval", time.Second, "how often the picture is drawn")
	fs.DurationVar(&c.length, "for", 0, "for how long; 0 is until Ctrl-C")
	words, err := p.readFlags(fs, args, upUsage)
	switch {
	case err != nil:
		return nil, err
	case len(words) > 0:
		return nil, fmt.Errorf("%q: it takes flags only", words[0])
	case c.chats < 1 || c.chats > maxChats:
		return nil, fmt.Errorf("--chats is %d, it must be 1 to %d", c.chats, maxChats)
	case c.choose != choosePrefix && c.choose != chooseTurns:
		return nil, fmt.Errorf("--choose is %q, it must be prefix or turns", c.choose)
	case c.interval < 10*time.Millisecond || c.length < 0:
		return nil, errors.New("--interval must be at least 10ms, and --for not negative")
	}
	c.sim, err = p.readSimCall([]string{
		"--pods", strconv.Itoa(*pods), "--engine", *engine, "--blocks", strconv.Itoa(*blocks), "--speed", fmt.Sprint(*speed),
		"--port", strconv.Itoa(*port), "--events-port", strconv.Itoa(*events), "--replay-port", strconv.Itoa(*replay), "--control", *control,
	})
	return c, err
}

// up is the command.
func (p *program) up(ctx context.Context, args []string) int {
	c, err := p.readUpCall(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return p.misuse("up", err)
	}
	if c.length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.length)
		defer cancel()
	}
	f, err := wire.StartFleet(c.sim.podConfigs())
	if err != nil {
		return p.fail("up", err)
	}
	if err := errors.Join(p.runUp(ctx, c, f), f.Close()); err != nil {
		return p.fail("up", err)
	}
	return exitOK
}

// runUp serves beside the engines and has chats with them until ctx ends.
func (p *program) runUp(ctx context.Context, c *upCall, f *wire.Fleet) error {
	settings := make([]string, 0, len(f.Pods()))
	for _, pod := range f.Pods() {
		settings = append(settings, podSetting(pod))
	}
	loader := config.NewLoader(flag.NewFlagSet("kvatlas up", flag.ContinueOnError))
	for name, value := range map[string]string{
		"listen": c.listen, "pods": strings.Join(settings, ","), "block-size": "16", "hub-offline": "true",
		"drain-delay": "0s", "log-format": "console", "log-level": "warn",
	} {
		loader.SetDefault(name, value)
	}
	cfg, err := loader.Load(nil, config.ReadFile)
	if err != nil {
		return err
	}
	svc, err := newService(cfg, newLogger(p.stderr, cfg))
	if err != nil {
		return err
	}
	return svc.run(ctx, func(ctx context.Context, url string) error {
		s := &show{call: c, fleet: f, out: p.stdout, url: url, http: &http.Client{}, flying: map[string]int{}}
		defer s.http.CloseIdleConnections()
		return serveControl(ctx, c.sim.control, f, func(control string) {
			s.control = control
			s.run(ctx)
		})
	})
}

// show is a run of kvatlas up: chats, and the picture of what they come to.
type show struct {
	call         *upCall
	fleet        *wire.Fleet
	out          io.Writer
	url, control string
	http         *http.Client
	scorer       *client.Client

	mu     sync.Mutex // protects all below
	flying map[string]int
	turn   int
	pods   []podTally
	all    tally // since the start
	recent tally // since the last picture
	best   string
	failed error
}

// tally counts turns of chats, and tokens of their prompts.
type tally struct {
	turns, prompt, predicted, reused int
	waited                           time.Duration
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

// run has the chats go on, and draws, until ctx ends.
func (s *show) run(ctx context.Context) {
	for _, p := range s.fleet.Pods() {
		s.pods = append(s.pods, podTally{name: p.Address()})
	}
	c, err := client.New(client.Config{URL: s.url, UserAgent: "kvatlas-up/" + versionWord()})
	if err != nil {
		s.fail(err)
		return
	}
	s.scorer = c
	defer c.Close()
	var chats sync.WaitGroup
	for n := range s.call.chats {
		chats.Go(func() { s.chat(ctx, rand.New(rand.NewPCG(uint64(n), 9))) })
	}
	tick := time.NewTicker(s.call.interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			s.draw()
		case <-ctx.Done():
		}
	}
	chats.Wait()
	s.draw()
}

// fail keeps what a turn has failed with, for the picture: an engine that was killed is no
// reason to end.
func (s *show) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
}

// upMessage is one of a chat.
type upMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// The shape of chats: of a few kinds, each with a prompt that all of its chats begin with.
const (
	kindsOfChats = 6
	turnsOfChat  = 8
	answerTokens = 60
)

// chat has chats, one after the other.
func (s *show) chat(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		kind := rng.IntN(kindsOfChats)
		messages := []upMessage{{"system", prose(rand.New(rand.NewPCG(uint64(kind), 1)), 300+150*kind)}}
		for range 1 + rng.IntN(turnsOfChat) {
			if !rest(ctx, time.Duration(rng.IntN(2000))*time.Millisecond/time.Duration(max(1, int(s.call.sim.config.Speed)))) {
				return
			}
			messages = append(messages, upMessage{"user", prose(rng, 10+rng.IntN(60))})
			text, err := s.take(ctx, messages)
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
			messages = append(messages, upMessage{"assistant", text})
		}
	}
}

// rest waits, and returns false when ctx ends before.
func rest(ctx context.Context, d time.Duration) bool { return sleepUntil(ctx, time.Now().Add(d)) }

// prose is a text of so many words.
func prose(rng *rand.Rand, words int) string {
	const letters = "etaoinshrdlu"
	var b strings.Builder
	for range words {
		for range 2 + rng.IntN(6) {
			b.WriteByte(letters[rng.IntN(len(letters))])
		}
		b.WriteByte(' ')
	}
	return b.String()
}

// take takes the next turn of a chat: asks who holds most of it, chooses, and has the
// engine answer.
func (s *show) take(ctx context.Context, messages []upMessage) (string, error) {
	body, err := json.Marshal(map[string]any{"messages": messages, "max_tokens": answerTokens})
	if err != nil {
		return "", err
	}
	tokens, err := wire.Bytes{}.Chat(ctx, body)
	if err != nil {
		return "", err
	}
	scores, err := s.scorer.Score(ctx, client.ScoreRequest{Model: s.call.sim.config.Model, Tokens: tokens})
	if err != nil {
		return "", err
	}
	pod := s.choosePod(scores)
	defer s.land(pod)
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+pod+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var answer struct {
		Choices []struct{ Message upMessage }
		Usage   struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return "", fmt.Errorf("%s: %w", pod, err)
	}
	if resp.StatusCode != http.StatusOK || len(answer.Choices) != 1 {
		return "", fmt.Errorf("%s: %s", pod, resp.Status)
	}
	predicted := 0
	if n := scores.Matched[pod].Reusable; n != nil {
		predicted = *n
	}
	s.tell(pod, tally{turns: 1, prompt: len(tokens), predicted: predicted, reused: answer.Usage.Details.Cached, waited: time.Since(began)})
	return answer.Choices[0].Message.Content, nil
}

// choosePod chooses a pod, and counts a request that flies to it: of those that have at
// most two more than the least busy, the one of the highest score.
func (s *show) choosePod(scores *client.ScoreResponse) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	least := s.flying[s.pods[0].name]
	for _, p := range s.pods {
		least = min(least, s.flying[p.name])
	}
	s.turn++
	best := s.pods[s.turn%len(s.pods)].name
	if s.call.choose == choosePrefix {
		found := -1.
		for i := range s.pods {
			name := s.pods[(s.turn+i)%len(s.pods)].name
			score := scores.Scores[name] - float64(s.flying[name])/1000 // of equal ones the less busy
			if s.flying[name] <= least+2 && (found < 0 && i == 0 || score > found) {
				best, found = name, score
			}
		}
	}
	s.flying[best]++
	if scores.Best != "" {
		s.best = fmt.Sprintf("%d tokens: %s holds %d blocks of %d, sent to %s", scores.Tokens.Total, scores.Best, int(scores.Scores[scores.Best]), scores.Blocks.Total, best)
	}
	return best
}

func (s *show) land(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying[pod]--
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

// draw writes the picture: over the last one on a terminal, behind it elsewhere.
func (s *show) draw() {
	state := s.fleet.State()
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	if f, ok := s.out.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
		b.WriteString("\x1b[H\x1b[2J")
	}
	fmt.Fprintf(&b, "%-22s %-9s %7s %7s  %-12s %7s %9s %9s\n", "POD", "", "RUNNING", "WAITING", "CACHE IN USE", "TURNS", "PREDICTED", "REUSED")
	for i, p := range state {
		t := s.pods[i].tally
		if !p.Alive {
			fmt.Fprintf(&b, "%-22s %-9s %7s %7s  %-12s %7d %9s %9s\n", p.Address, p.Name, "dead", "", "", t.turns, share(t.predicted, t.prompt), share(t.reused, t.prompt))
			continue
		}
		r := p.Ranks[0]
		bar := strings.Repeat("#", 12*r.UsedBlocks/max(1, r.TotalBlocks))
		fmt.Fprintf(&b, "%-22s %-9s %7d %7d  %-12s %7d %9s %9s\n", p.Address, p.Name, r.Running, r.Waiting, bar, t.turns, share(t.predicted, t.prompt), share(t.reused, t.prompt))
	}
	for _, line := range []struct {
		name string
		t    tally
	}{{"now", s.recent}, {"since the start", s.all}} {
		mean := time.Duration(0)
		if line.t.turns > 0 {
			mean = (line.t.waited / time.Duration(line.t.turns)).Round(time.Millisecond)
		}
		fmt.Fprintf(&b, "%s: %d turns, %s of their tokens predicted, %s reused, %v each\n", line.name, line.t.turns, share(line.t.predicted, line.t.prompt), share(line.t.reused, line.t.prompt), mean)
	}
	if s.best != "" {
		fmt.Fprintf(&b, "last: %s\n", s.best)
	}
	if s.failed != nil {
		fmt.Fprintf(&b, "failed: %v\n", s.failed)
	}
	fmt.Fprintf(&b, "server %s, faults at http://%s/pods/NAME/faults (kvatlas sim --help)\n\n", s.url, s.control)
	s.recent, s.failed = tally{}, nil
	_, _ = io.WriteString(s.out, b.String()) // a terminal that has gone
}

// share is a part in percent.
func share(n, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(of))
}
