package engine

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/defaults"
	"github.com/kvatlas/kvatlas/internal/nearest"
)

// Kind is the engine that is simulated.
type Kind uint8

// The kinds.
const (
	VLLM Kind = iota
	SGLang
	TRTLLM
)

var kindNames = [...]string{"vllm", "sglang", "trtllm"}

// String returns the kind as ParseKind reads it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ParseKind reads the name of a kind: vllm, sglang or trtllm.
func ParseKind(s string) (Kind, error) {
	for i, n := range kindNames {
		if s == n {
			return Kind(i), nil
		}
	}
	return 0, fmt.Errorf("%.40q is not one of %s%s", s, strings.Join(kindNames[:], ", "), nearest.Clause(s, kindNames[:]))
}

// Kinds returns the names of all kinds.
func Kinds() []string { return kindNames[:] }

// ErrConfig is what every error of New is.
var ErrConfig = errors.New("engine: wrong configuration")

// The limits of a Config.
const (
	MaxBlocks    = 1 << 24
	MaxBlockSize = 8192
)

// Values of Config.Retention, which is vLLM's prefix_cache_retention_interval.
const (
	// RetainAll keeps what there is before each block: None.
	RetainAll = -1
	// RetainEnds keeps it before the end of each prompt, and where a prompt left one that
	// came before: 0.
	RetainEnds = -2
)

// Config says what an engine is. The zero value of each field is its default.
type Config struct {
	Kind Kind
	// BlockSize is how many tokens a block has, 16.
	BlockSize int
	// Blocks is how many blocks the GPU has room for, 65,536. A vLLM has one less to
	// give, as it keeps one for itself.
	Blocks int
	// HostBlocks and DiskBlocks are how many the host and the disk below it have room
	// for; 0 is no such tier. A disk takes what the host evicts. TensorRT-LLM has no
	// disk.
	HostBlocks, DiskBlocks int
	// Window adds to a vLLM a group of layers with a sliding window of so many tokens;
	// 0 means none. It goes with no host.
	Window int
	// State adds to a vLLM a group of layers with a state, as Mamba's. There is one state
	// for each block that a chunk of a prompt ends with (mamba_cache_mode align). It goes
	// with no host.
	State bool
	// Retention is what vLLM keeps of windows and states to go on from: RetainAll,
	// RetainEnds, or a number. A number, a multiple of BlockSize, is RetainEnds and in
	// addition each so many tokens. The default is RetainAll.
	Retention int
	// Keys is how vLLM's version writes adapters and salts into its hashes.
	Keys blockkey.VLLMKeys
	// BatchTokens and BatchRequests bound an iteration: 8,192 tokens, 256 requests.
	BatchTokens, BatchRequests int
	// Reserve admits a request only when its whole prompt and output have room, so
	// that none is ever preempted. TensorRT-LLM always does.
	Reserve bool
	// Timing is how long things take.
	Timing Timing
}

// Timing is how long an iteration takes, and what is brought up from below.
type Timing struct {
	// Prefill and Decode scale the time of prompts and of generation, 4 and 1.5: a
	// model of 70 billion parameters. Negative is no time at all.
	Prefill, Decode float64
	// Host and Disk are how long it takes to bring up a token from there, 4 us and 40
	// us. Negative is no time.
	Host, Disk time.Duration
}

func (c Config) withDefaults() (Config, error) {
	err := cmp.Or(
		defaults.Within("BlockSize", &c.BlockSize, 16, 1, MaxBlockSize),
		defaults.Within("Blocks", &c.Blocks, 1<<16, 2, MaxBlocks),
		defaults.Within("HostBlocks", &c.HostBlocks, 0, 0, MaxBlocks),
		defaults.Within("DiskBlocks", &c.DiskBlocks, 0, 0, MaxBlocks),
		defaults.Within("Window", &c.Window, 0, 0, 1<<30),
		defaults.Within("Retention", &c.Retention, RetainAll, RetainEnds, 1<<30),
		defaults.Within("BatchTokens", &c.BatchTokens, 8192, 1, 1<<30),
		defaults.Within("BatchRequests", &c.BatchRequests, 256, 1, 1<<20),
	)
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	switch {
	case int(c.Kind) >= len(kindNames):
		return c, fmt.Errorf("%w: Kind is %v", ErrConfig, c.Kind)
	case c.hybrid() && c.Kind != VLLM:
		return c, fmt.Errorf("%w: Window and State are for vLLM", ErrConfig)
	case c.hybrid() && c.HostBlocks > 0:
		return c, fmt.Errorf("%w: Window and State go with no HostBlocks", ErrConfig)
	case c.State && c.Reserve:
		return c, fmt.Errorf("%w: State goes with no Reserve", ErrConfig)
	case c.Retention > 0 && c.Retention%c.BlockSize != 0:
		return c, fmt.Errorf("%w: Retention is %d, it must be a multiple of BlockSize %d", ErrConfig, c.Retention, c.BlockSize)
	case c.DiskBlocks > 0 && c.HostBlocks == 0:
		return c, fmt.Errorf("%w: DiskBlocks needs HostBlocks", ErrConfig)
	case c.DiskBlocks > 0 && c.Kind == TRTLLM:
		return c, fmt.Errorf("%w: TensorRT-LLM has no DiskBlocks", ErrConfig)
	case c.Kind == SGLang && c.BatchTokens < c.BlockSize:
		return c, fmt.Errorf("%w: BatchTokens is %d, less than a page of SGLang", ErrConfig, c.BatchTokens)
	}
	if c.Kind == TRTLLM {
		c.Reserve = true
	}
	c.Timing = c.Timing.withDefaults()
	return c, nil
}

// hybrid reports whether there are groups of layers beside full attention.
func (c Config) hybrid() bool { return c.Window > 0 || c.State }

func (t Timing) withDefaults() Timing {
	t.Prefill, t.Decode = cmp.Or(t.Prefill, 4), cmp.Or(t.Decode, 1.5)
	t.Host, t.Disk = cmp.Or(t.Host, 4*time.Microsecond), cmp.Or(t.Disk, 40*time.Microsecond)
	return t
}

// The coefficients of Dynamo's mocker: milliseconds of prompts of a small model.
const (
	prefillSquare = 4.209989e-07 // a token pair of attention
	prefillToken  = 1.518344e-02 // a token
	prefillBatch  = 16.50142     // an iteration
)

// prefill returns how long it takes to compute n tokens behind c others, but for what an
// iteration takes at the least.
func (t Timing) prefill(c, n int) time.Duration {
	a, b := float64(c), float64(c+n)
	return milliseconds(max(t.Prefill, 0) * (prefillSquare*(b*b-a*a) + prefillToken*float64(n)))
}

// decode returns how long an iteration takes to generate where this part, 0 to 1, of the
// cache is in use.
func (t Timing) decode(active float64) time.Duration {
	return milliseconds(max(t.Decode, 0) * max(1, -25.74*active*active+54.01*active+5.74))
}

// batch returns what an iteration with a prompt takes at the least.
func (t Timing) batch() time.Duration { return milliseconds(max(t.Prefill, 0) * prefillBatch) }

// fetch returns how long it takes to bring up what was not on the GPU.
func (t Timing) fetch(h Hit) time.Duration {
	return time.Duration(h.Host)*max(t.Host, 0) + time.Duration(h.Disk)*max(t.Disk, 0)
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
