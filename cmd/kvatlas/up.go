package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/route"
	simengine "github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/talks"
	"github.com/kvatlas/kvatlas/sim/wire"
)

const upUsage = `kvatlas up starts simulated engines and a server that reads their events, has
recorded conversations with them, each turn where POST /v1/route sends it, and
shows what happens: which part of the prompts was predicted to be reused and
which was, how busy the engines are, and how they rank. Ctrl-C ends it.

  kvatlas up
  kvatlas up --pods 4 --engine sglang --chats 40
  kvatlas up --policy round_robin      # each in its turn, to compare with
  kvatlas up --compare eta,round_robin # both, side by side, in a few seconds

With --compare the same conversations are had once by each policy, in virtual
time and without a socket: the same call prints the same figures. A port that is
not named, and on which something listens already, is left for another one.

`

// upCall is one call of kvatlas up.
type upCall struct {
	sim      *simCall
	listen   string
	chats    int
	policy   route.Policy
	compare  []string
	seed     uint64
	talks    []talks.Conversation
	interval time.Duration
	length   time.Duration
	given    func(flag string) bool
}

// The values of --choose, which was there before --policy: what they mean.
var chosenPolicies = map[string]string{"prefix": "eta", "turns": "round_robin"}

// The bounds of a call of kvatlas up.
const (
	maxChats    = 10_000
	maxCompared = 16
)

func (p *program) readUpCall(args []string) (*upCall, error) {
	fs := flag.NewFlagSet("kvatlas up", flag.ContinueOnError)
	c := &upCall{given: func(flag string) bool { return cli.FlagGiven(fs, flag) }}
	pods := fs.Int("pods", 8, "how many engines")
	engine := fs.String("engine", "vllm", "whose they are: `"+strings.Join(simengine.Kinds(), "|")+"`")
	blocks := fs.Int("blocks", 12_000, "blocks of 16 tokens that each has room for")
	speed := fs.Float64("speed", 4, "how many times faster than real engines they are")
	port := fs.Int("port", 8000, "HTTP port of the first engine")
	events := fs.Int("events-port", 15557, "port of the events of the first engine")
	replay := fs.Int("replay-port", 25557, "port of the first engine's replay socket")
	control := fs.String("control", "127.0.0.1:7999", "`ADDRESS` of the engines' control page")
	fs.StringVar(&c.listen, "listen", "127.0.0.1:8080", "the server's `ADDRESS`")
	fs.IntVar(&c.chats, "chats", 24, "how many conversations go on at a time")
	policy := fs.String("policy", "eta", "the policy by which a pod is chosen: `"+strings.Join(route.Policies(), "|")+"`")
	compare := fs.String("compare", "", "have the conversations by each policy of a `LIST` with commas, and print what came of it")
	choose := fs.String("choose", "", "an older name of --policy, `prefix|turns`: prefix is eta, turns is round_robin")
	fs.Uint64Var(&c.seed, "seed", 1, "in which order conversations come")
	fs.DurationVar(&c.interval, "interval", time.Second, "how often the picture is drawn")
	fs.DurationVar(&c.length, "for", 0, "for how long; 0 is until Ctrl-C")
	words, err := p.ReadFlags(fs, args, upUsage)
	if err != nil {
		return nil, err
	}
	if *choose != "" {
		name, ok := chosenPolicies[*choose]
		if !ok || cli.FlagGiven(fs, "policy", "compare") {
			return nil, fmt.Errorf("--choose is %q: it must be prefix or turns, without --policy and --compare", *choose)
		}
		*policy = name
	}
	switch {
	case len(words) > 0:
		return nil, fmt.Errorf("%q: it takes flags only", words[0])
	case c.chats < 1 || c.chats > maxChats:
		return nil, fmt.Errorf("--chats is %d, it must be 1 to %d", c.chats, maxChats)
	case c.interval < 10*time.Millisecond || c.length < 0:
		return nil, errors.New("--interval must be at least 10ms, and --for not negative")
	case *compare != "" && cli.FlagGiven(fs, "policy", "for", "interval", "listen", "control", "port", "events-port", "replay-port", "speed"):
		return nil, errors.New("--compare is in virtual time and without servers: --policy, --for, --interval, --speed, addresses and ports are for the picture")
	}
	if c.policy, err = route.ParsePolicy(*policy); err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	c.compare = cli.SplitList(*compare)
	if len(c.compare) > maxCompared {
		return nil, fmt.Errorf("--compare has %d policies, at most %d can stand side by side", len(c.compare), maxCompared)
	}
	for _, name := range c.compare {
		if _, err := route.ParsePolicy(name); err != nil {
			return nil, fmt.Errorf("--compare: %w", err)
		}
	}
	c.sim, err = p.readSimCall([]string{
		"--pods", strconv.Itoa(*pods), "--engine", *engine, "--blocks", strconv.Itoa(*blocks), "--speed", fmt.Sprint(*speed),
		"--port", strconv.Itoa(*port), "--events-port", strconv.Itoa(*events), "--replay-port", strconv.Itoa(*replay), "--control", *control,
	})
	if err != nil {
		return nil, err
	}
	if err := c.fitTalks(); err != nil {
		return nil, err
	}
	return c, nil
}

// fitTalks takes the turns of the recorded conversations that the engines have room for.
func (c *upCall) fitTalks() error {
	pod, err := wire.NewPod(c.sim.podConfigs()[0])
	if err != nil {
		return err
	}
	room := pod.Config().MaxModelLen
	for _, t := range talks.Recorded() {
		n := slices.IndexFunc(t, func(turn talks.Turn) bool { return turn.Tokens()+turn.Output > room })
		if n < 0 {
			n = len(t)
		}
		if n > 0 {
			c.talks = append(c.talks, t[:n])
		}
	}
	if len(c.talks) == 0 {
		return fmt.Errorf("--blocks: an engine has room for %d tokens, the shortest of the recorded conversations needs more", room)
	}
	return nil
}

// up is the command.
func (p *program) up(ctx context.Context, args []string) int {
	c, err := p.readUpCall(args)
	if err != nil {
		return p.Misuse("up", err)
	}
	if len(c.compare) > 0 {
		if err := p.comparePolicies(ctx, c); err != nil {
			return p.Fail("up", err)
		}
		return cli.ExitOK
	}
	if c.length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.length)
		defer cancel()
	}
	for _, moved := range c.leaveTakenPorts(ctx) {
		fmt.Fprintln(p.Stderr, "kvatlas up: "+moved)
	}
	f, err := wire.StartFleet(c.sim.podConfigs())
	if err != nil {
		return p.Fail("up", portTaken(err))
	}
	if err := errors.Join(p.runUp(ctx, c, f), f.Close()); err != nil {
		return p.Fail("up", err)
	}
	return cli.ExitOK
}

// leaveTakenPorts moves what the call has left at its default away from ports on which something
// listens already. It moves many ports by portStep, a single one to any that is free, and
// returns what it has moved. Where it finds none it leaves them, and the listener fails with an
// error that says so.
func (c *upCall) leaveTakenPorts(ctx context.Context) (moved []string) {
	for _, ports := range []struct {
		flag, what string
		from       *int
	}{{"port", "the engines", &c.sim.port}, {"events-port", "their events", &c.sim.eventsPort}, {"replay-port", "their replay sockets", &c.sim.replaysPort}} {
		if c.given(ports.flag) {
			continue
		}
		for try := range portTries {
			from := *ports.from + try*portStep
			if anyTaken(ctx, c.sim.host, from, c.sim.pods) {
				continue
			}
			if try > 0 {
				moved = append(moved, fmt.Sprintf("something else listens at port %d or above: %s are at %d and above (--%s chooses)", *ports.from, ports.what, from, ports.flag))
				*ports.from = from
			}
			break
		}
	}
	for _, one := range []struct {
		flag, what string
		at         *string
	}{{"listen", "the server", &c.listen}, {"control", "the engines' control page", &c.sim.control}} {
		host, port, err := net.SplitHostPort(*one.at)
		if c.given(one.flag) || err != nil {
			continue
		}
		if n, err := strconv.Atoi(port); err == nil && anyTaken(ctx, host, n, 1) {
			moved = append(moved, fmt.Sprintf("something else listens on %s: %s is at a free port (--%s chooses)", *one.at, one.what, one.flag))
			*one.at = net.JoinHostPort(host, "0")
		}
	}
	return moved
}

// portStep is how far ports are moved that are taken, portTries how often at most: engines,
// events and replay sockets stay below each other.
const (
	portStep  = 1000
	portTries = 7
)

// anyTaken reports whether something listens on one of n ports.
func anyTaken(ctx context.Context, host string, from, n int) bool {
	for port := from; port < from+n; port++ {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			return true
		}
		_ = l.Close()
	}
	return false
}

// runUp serves beside the engines and has conversations with them until ctx ends.
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
	svc, err := newService(cfg, p.newLogger(cfg))
	if err != nil {
		return err
	}
	return svc.run(ctx, func(ctx context.Context, url string) error {
		s := newShow(c, f, p.Stdout, url)
		defer s.http.CloseIdleConnections()
		return serveControl(ctx, c.sim.control, f, func(control string) {
			s.control = control
			s.run(ctx)
		})
	})
}
