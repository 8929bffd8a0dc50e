package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/sim/engine"
)

// ErrConfig is what every error of a wrong configuration is.
var ErrConfig = errors.New("wire: wrong configuration")

// The limits of a pod.
const (
	// MaxRanks is how many data-parallel ranks there may be.
	MaxRanks = 64
	// maxBody bounds a request's body in bytes.
	maxBody = 64 << 20
	// maxOpen bounds the requests that a pod has at once; more are refused.
	maxOpen = 4096
	// bufferSteps is how many messages can be replayed.
	bufferSteps = 10_000
	// maxOutput bounds the tokens of an answer.
	maxOutput = 1 << 16
)

// Tokenizer makes tokens of texts, and texts of tokens.
type Tokenizer interface {
	// Text returns the tokens of a text, with those that the tokenizer puts around it if
	// special is set. Its errors, and those of Chat, are the client's fault.
	Text(ctx context.Context, text string, special bool) ([]uint32, error)
	// Chat returns the tokens of a chat completion's prompt, given the whole body of the
	// request.
	Chat(ctx context.Context, body []byte) ([]uint32, error)
	// Detokenize returns the text of tokens, without the special ones if plain is set.
	Detokenize(ctx context.Context, tokens []uint32, plain bool) (string, error)
}

// Config says what a pod is. The zero value of each field is its default, if it says one.
type Config struct {
	// Name is what the pod is called in messages and in faults.
	Name string
	// Engine is each rank's engine. Keys follow from the version, and so does Retention
	// where it is 0.
	Engine engine.Config
	// Version is the release whose wire it has: 0.33.0 of vLLM (from 0.10.2), 0.5.23 of
	// SGLang (from 0.5.18), 1.3.0 of TensorRT-LLM.
	Version string
	// Model is the model's name, and LoRAs the names of adapters of it.
	Model string
	LoRAs []string
	// MaxModelLen is the longest prompt and output together in tokens, 131,072 or what
	// the cache has room for.
	MaxModelLen int
	// Ranks is how many data-parallel ranks there are, 1.
	Ranks int
	// Listen is the address of its HTTP server, such as 127.0.0.1:8000.
	Listen string
	// Events and Replay are the endpoints of rank 0, such as tcp://127.0.0.1:5557; rank n
	// has the port n above. Without Replay there is no replay.
	Events, Replay string
	// Topic is what events are published under.
	Topic string
	// Speed is how many times faster than a real engine it runs, 1.
	Speed float64
	// Tokenizer is Bytes by default.
	Tokenizer Tokenizer
}

func (c Config) withDefaults() (Config, release, error) {
	wrong := func(format string, args ...any) (Config, release, error) {
		return c, 0, fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
	version, r, err := checkRelease(c.Engine.Kind, c.Version)
	if err != nil {
		return wrong("%v", err)
	}
	c.Version = version
	c.Engine.Keys = keys(r)
	c.Engine.Retention = cmp.Or(c.Engine.Retention, retention(c.Engine.Kind, r))
	e, err := engine.New(c.Engine)
	if err != nil {
		return wrong("%v", err)
	}
	c.Engine = e.Config()
	c.Ranks, c.MaxModelLen = cmp.Or(c.Ranks, 1), cmp.Or(c.MaxModelLen, min(131072, e.Capacity()))
	c.Speed = cmp.Or(c.Speed, 1)
	if c.Tokenizer == nil {
		c.Tokenizer = Bytes{}
	}
	switch {
	case c.Model == "":
		return wrong("there is no model")
	case c.Ranks < 1 || c.Ranks > MaxRanks:
		return wrong("%d ranks, it must be 1 to %d", c.Ranks, MaxRanks)
	case c.Speed < 0 || math.IsNaN(c.Speed) || math.IsInf(c.Speed, 0):
		return wrong("a speed of %v, it must be above 0", c.Speed)
	case c.MaxModelLen < 2 || c.MaxModelLen > e.Capacity():
		return wrong("MaxModelLen is %d, it must be 2 to %d, which have room", c.MaxModelLen, e.Capacity())
	}
	for _, endpoint := range []string{c.Events, c.Replay} {
		if _, err := rankEndpoint(endpoint, c.Ranks-1); err != nil {
			return wrong("%v", err)
		}
	}
	return c, r, nil
}

// rankEndpoint returns the endpoint of a rank, given that of rank 0: the port above it.
func rankEndpoint(endpoint string, rank int) (string, error) {
	if endpoint == "" {
		return "", nil
	}
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("endpoint %q is no tcp://host:port", endpoint)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n+rank > 65535 {
		return "", fmt.Errorf("endpoint %q: port %s has no place for rank %d", endpoint, port, rank)
	}
	host = cmp.Or(host, "*")
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n+rank)), nil
}
