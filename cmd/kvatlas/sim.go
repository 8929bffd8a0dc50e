package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	simengine "github.com/kvatlas/kvatlas/sim/engine"
	simtokens "github.com/kvatlas/kvatlas/sim/tokens"
	"github.com/kvatlas/kvatlas/sim/wire"
	"github.com/kvatlas/kvatlas/tokenpool"
)

const simUsage = `kvatlas sim runs simulated engines: they have the API, the metrics and the KV
events of real ones, and no model. What they say is made up; what they keep in
their caches, and how long they take, is not.

  kvatlas sim --pods 8 --engine vllm
  kvatlas sim --engine sglang --ranks 2 --blocks 2000 --speed 10

Pod n has the HTTP port --port + n. Events are at --events-port and the ports
above it, one for each rank of each pod, replay sockets at --replay-port and
above. At --control GET /pods says what the pods are doing, and POST
/pods/NAME/faults has something go wrong with one, or with all as *:

  {"fault":"restart"}  {"fault":"kill"}  {"fault":"revive"}  {"fault":"clear"}
  {"fault":"freeze"}  {"fault":"thaw"}  {"fault":"full","part":0.9}
  {"fault":"lose","count":3}  {"fault":"lose","count":3,"burn":true}
  {"fault":"delay","ms":500}  {"fault":"slow","bytes_per_second":10000}
  {"fault":"throttle","factor":10}

With --tokenizers, texts and chats have the tokens of the model: --model names
it, and its folder below the directory has its tokenizer.json. Without, a text's
tokens are its bytes: no model has these. Prompts can be token ids in both cases.

`

// simCall is one call of kvatlas sim.
type simCall struct {
	pods                          int
	config                        wire.Config
	tokenizers                    string
	host                          string
	port, eventsPort, replaysPort int
	control                       string
}

// The bounds of a call.
const (
	maxSimPods   = 1024
	maxSimBlocks = 1 << 26 // of all pods together: about 4 GB
)

func (p *program) readSimCall(args []string) (*simCall, error) {
	fs := flag.NewFlagSet("kvatlas sim", flag.ContinueOnError)
	c := &simCall{}
	e := &c.config.Engine
	fs.IntVar(&c.pods, "pods", 1, "how many engines")
	kind := fs.String("engine", "vllm", "whose they are: `"+strings.Join(simengine.Kinds(), "|")+"`")
	fs.StringVar(&c.config.Version, "engine-version", "", "the `RELEASE` whose events and pages they have; the newest that is known when empty")
	fs.StringVar(&c.config.Model, "model", "sim/model", "the model's `NAME`")
	fs.StringVar(&c.tokenizers, "tokenizers", "", "`DIRECTORY` of tokenizers, as of kvatlas serve; none when empty")
	loras := fs.String("loras", "", "the names of adapters, a `LIST` with commas")
	fs.IntVar(&c.config.Ranks, "ranks", 1, "data-parallel ranks of each engine")
	fs.IntVar(&e.BlockSize, "block-size", 16, "tokens a block, or a page")
	fs.IntVar(&e.Blocks, "blocks", 1<<16, "blocks of the GPU of each rank")
	fs.IntVar(&e.HostBlocks, "host-blocks", 0, "blocks of the host's memory, to which the GPU's are offloaded; 0 means none")
	fs.IntVar(&e.DiskBlocks, "disk-blocks", 0, "blocks of the disk below that; 0 means none")
	fs.IntVar(&e.Window, "window", 0, "tokens of a sliding window in half of the layers (vllm only); 0 means none")
	fs.BoolVar(&e.State, "states", false, "states as Mamba's in half of the layers (vllm only)")
	retention := fs.String("retention", "", "`WHAT` is kept of windows and states: all, or what is before the ends of prompts, as ends, or each so many tokens as well; the release's own when empty")
	fs.Float64Var(&c.config.Speed, "speed", 1, "how many times faster than a real engine")
	fs.StringVar(&c.host, "host", "127.0.0.1", "the `ADDRESS` at which engines listen")
	fs.IntVar(&c.port, "port", 8000, "HTTP port of the first engine")
	fs.IntVar(&c.eventsPort, "events-port", 15557, "port of the events of the first rank")
	fs.IntVar(&c.replaysPort, "replay-port", 25557, "port of the first rank's replay socket")
	fs.StringVar(&c.control, "control", "127.0.0.1:7999", "`ADDRESS` of the control page")
	words, err := p.ReadFlags(fs, args, simUsage)
	if err != nil {
		return nil, err
	}
	if len(words) > 0 {
		return nil, fmt.Errorf("%q: it takes flags only", words[0])
	}
	if e.Kind, err = simengine.ParseKind(*kind); err != nil {
		return nil, fmt.Errorf("--engine: %w", err)
	}
	if e.Retention, err = parseRetention(*retention); err != nil {
		return nil, fmt.Errorf("--retention: %w", err)
	}
	c.config.LoRAs = cli.SplitList(*loras)
	if c.pods < 1 || c.pods > maxSimPods {
		return nil, fmt.Errorf("--pods is %d, it must be 1 to %d", c.pods, maxSimPods)
	}
	if c.config.Ranks < 1 || c.config.Ranks > wire.MaxRanks {
		return nil, fmt.Errorf("--ranks is %d, it must be 1 to %d", c.config.Ranks, wire.MaxRanks)
	}
	if n := int64(c.pods) * int64(c.config.Ranks) * int64(e.Blocks); n > maxSimBlocks {
		return nil, fmt.Errorf("--blocks: %d in all, it must be at most %d", n, maxSimBlocks)
	}
	for _, port := range []struct {
		name    string
		from, n int
	}{{"port", c.port, c.pods}, {"events-port", c.eventsPort, c.pods * c.config.Ranks}, {"replay-port", c.replaysPort, c.pods * c.config.Ranks}} {
		if port.from < 1 || port.from+port.n-1 > 65535 {
			return nil, fmt.Errorf("--%s is %d: %d ports from there on are needed", port.name, port.from, port.n)
		}
	}
	// The rest is checked before anything is bound.
	if _, err := wire.NewPod(c.podConfigs()[0]); err != nil {
		return nil, err
	}
	return c, nil
}

// parseRetention reads an engine's Retention.
func parseRetention(s string) (int, error) {
	switch s {
	case "":
		return 0, nil
	case "all":
		return simengine.RetainAll, nil
	case "ends":
		return simengine.RetainEnds, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is not one of all, ends, and a number of tokens", s)
	}
	return n, nil
}

// openTokenizer gives all pods the tokenizer of their model, if the call names a directory
// of some. The function that it returns releases it.
func (c *simCall) openTokenizer(ctx context.Context) (release func() error, err error) {
	if c.tokenizers == "" {
		return func() error { return nil }, nil
	}
	origin, err := tokenpool.NewDirectory(c.tokenizers)
	if err != nil {
		return nil, fmt.Errorf("--tokenizers: %w", err)
	}
	t, err := simtokens.Open(ctx, origin, c.config.Model, c.config.Engine.Kind)
	if err != nil {
		return nil, fmt.Errorf("--tokenizers: %w\n--model names the model; scripts/fetch-tokenizers.sh prepares %s", err, demoTokenizers)
	}
	c.config.Tokenizer = t
	return t.Close, nil
}

// podConfigs are the configurations of the pods.
func (c *simCall) podConfigs() (out []wire.Config) {
	for n := range c.pods {
		one := c.config
		one.Name = "sim-" + strconv.Itoa(n)
		one.Listen = net.JoinHostPort(c.host, strconv.Itoa(c.port+n))
		one.Events = "tcp://" + net.JoinHostPort(c.host, strconv.Itoa(c.eventsPort+n*c.config.Ranks))
		one.Replay = "tcp://" + net.JoinHostPort(c.host, strconv.Itoa(c.replaysPort+n*c.config.Ranks))
		out = append(out, one)
	}
	return out
}

// podSetting is a simulated pod as the setting pods of a server takes it.
func podSetting(p *wire.Pod) string {
	c := p.Config()
	q := url.Values{}
	q.Set("model", c.Model)
	q.Set("engine", c.Engine.Kind.String())
	q.Set("events", c.Events)
	q.Set("replay", c.Replay)
	if c.Ranks > 1 {
		q.Set("ranks", strconv.Itoa(c.Ranks))
	}
	text, err := url.QueryUnescape(q.Encode())
	if err != nil || strings.ContainsAny(c.Model, "&+%#, ") {
		text = q.Encode()
	}
	return p.Address() + "?" + text
}

// sim is the command.
func (p *program) sim(ctx context.Context, args []string) int {
	c, err := p.readSimCall(args)
	if err != nil {
		return p.Misuse("sim", err)
	}
	closeTokenizer, err := c.openTokenizer(ctx)
	if err != nil {
		return p.Fail("sim", err)
	}
	f, err := wire.StartFleet(c.podConfigs())
	if err != nil {
		return p.Fail("sim", errors.Join(portTaken(err), closeTokenizer()))
	}
	err = serveControl(ctx, c.control, f, func(address string) {
		settings := make([]string, 0, c.pods)
		for _, pod := range f.Pods() {
			settings = append(settings, podSetting(pod))
		}
		more := ""
		if c.tokenizers == "" {
			fmt.Fprintln(p.Stdout, "# texts have a token for each byte, as no model has; --tokenizers DIRECTORY gives them those of --model")
		} else {
			fmt.Fprintf(p.Stdout, "# texts and chats have the tokens of %s\n", c.config.Model)
			more = " --tokenizers '" + c.tokenizers + "'"
		}
		fmt.Fprintf(p.Stdout, "# %d simulated %v %s, control at http://%s/pods; a server that reads their events:\n", c.pods, c.config.Engine.Kind, f.Pods()[0].Config().Version, address)
		fmt.Fprintf(p.Stdout, "kvatlas serve --pods '%s'%s\n", strings.Join(settings, ","), more)
	})
	if err = errors.Join(portTaken(err), f.Close(), closeTokenizer()); err != nil {
		return p.Fail("sim", err)
	}
	return cli.ExitOK
}

// portTaken says what to do where a port of simulated engines has been taken.
func portTaken(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: stop what listens there (another kvatlas sim or up?), or choose other ports with --port, --events-port, --replay-port and --control", err)
	}
	return err
}

// serveControl serves the control page until ctx ends. It sends the address to ready.
func serveControl(ctx context.Context, address string, f *wire.Fleet, ready func(address string)) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--control: %w", err)
	}
	s := &http.Server{Handler: f.Handler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	ready(l.Addr().String())
	select {
	case <-ctx.Done():
		if err := s.Close(); err != nil {
			return err
		}
		if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	case err := <-failed:
		return err
	}
}
