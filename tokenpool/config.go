package tokenpool

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"time"

	"github.com/kvatlas/kvatlas/internal/defaults"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// MaxTextLimit is the largest Config.MaxTextBytes. A text of 10 MB that cannot be cut takes up to two
// gigabytes while it is tokenized. On about ten million equal characters the regular expression engine under
// most tokenizers gives up, which is ErrTokenizer.
const MaxTextLimit = 32 << 20

// Config configures a Pool. Zero fields take the default; New refuses values
// outside the limits.
type Config struct {
	// Origin is where tokenizers come from. Required.
	Origin Origin
	// Store remembers tokens of texts. Optional; without one every text is
	// tokenized, and Async never comes to an exact answer.
	Store prefixcache.Store
	// Workers is how many texts are tokenized at a time, each on a thread of
	// its own. As many chats are rendered beside them, and half as many that are
	// long or bring their template. Default GOMAXPROCS, limit 1024.
	Workers int
	// WorkBytes bounds the memory outside of Go's heap that texts take while they
	// are tokenized. It counts 350 bytes for each byte of a part that cannot be
	// cut. A text with a part that would take more is ErrTooLong, but for parts
	// of up to 16 KiB. Default 350 MiB, a part of one mebibyte; at least 1 MiB.
	WorkBytes int64
	// Queue is how many texts may wait for a worker, and as many again for a
	// tokenizer that is being loaded. Default 1024, limit 1,000,000.
	Queue int
	// QueueBytes bounds the sum of the texts that wait or are worked on, in
	// bytes. Default 64 MiB or MaxTextBytes, whichever is more; not less than
	// MaxTextBytes.
	QueueBytes int64
	// MaxTextBytes is the longest text taken, in bytes. A mebibyte is about
	// 250,000 tokens of English and takes 0.5 to 0.9 s. Default 1 MiB, limit
	// MaxTextLimit.
	MaxTextBytes int
	// PieceBytes bounds the memory for the tokens of pieces of texts, in bytes. With them
	// a text that goes on where another ended, such as a chat's next turn, costs only what
	// is new. Default 64 MiB; less than 0 keeps none.
	PieceBytes int64
	// Shared keeps pieces for other pools as well; nil does not. Its values are
	// sealed under SharedSecret, of MinSharedSecret bytes or more, which all pools of
	// a fleet have. It needs PieceBytes.
	Shared       Shared
	SharedSecret []byte
	// SharedTimeout is how long a text waits for an answer of Shared before it is
	// tokenized. Default 20 ms, limit 10 s.
	SharedTimeout time.Duration
	// Fast tokenizes byte-level BPE with code of this project's own, which is at least ten
	// times as fast. A tokenizer uses it once it is proven to give the same tokens as
	// Hugging Face's. False leaves all to Hugging Face's.
	Fast bool
	// CheckEvery is of how many texts one is tokenized by Hugging Face's library as well,
	// behind its answer. One difference leaves the tokenizer to that library from then on.
	// 0 checks none, the limit is 1,000,000,000.
	CheckEvery int
	// ProofDir is a folder that keeps what is proven of fast tokenizers, and their tables,
	// for later pools of the same program. These serve at once, and read the library
	// behind. Only this program may be able to write to it. It is made when it is needed,
	// and has 256 MiB at most. Empty keeps nothing.
	ProofDir string
	// Budget is how long Wait waits when the request says nothing. Default
	// 50 ms, limit 1 minute.
	Budget time.Duration
	// MaxTokenizers is how many tokenizers are in memory at most, those being
	// loaded and those still finishing work included. One takes 13 MB (BERT)
	// to 300 MB (Gemma 3). Default 8, limit 1024.
	MaxTokenizers int
	// Pins are what the tokenizers of single models must be, by name. A model
	// whose tokenizer is another one is not loaded: ErrLoad and ErrPinned.
	Pins map[string]Pin
	// LoadTimeout bounds one load, download included. Default 10 minutes,
	// limit 1 hour.
	LoadTimeout time.Duration
	// FailureTTL is how long a failed load is given as the answer before another
	// one begins, unless the origin has another version by then. That there is no
	// tokenizer, or a broken one, is the answer until the other load ends. Default
	// 5 s, limit 5 minutes.
	FailureTTL time.Duration
	// Recheck is how often the origin is asked whether a loaded tokenizer has
	// been replaced or removed. Default 10 s, limit 1 hour.
	Recheck time.Duration
	// Chat says how chats are rendered. Its Limits.OutputBytes are
	// MaxTextBytes by default: what is longer cannot be tokenized.
	Chat chat.Options
	// Observer receives what happens. All of its funcs may be nil.
	Observer Observer
}

// validate fills the defaults of c and checks its limits.
func (c *Config) validate() error {
	if c.Origin == nil {
		return errors.New("tokenpool: config: Origin is missing")
	}
	defaults.Funcs(&c.Observer)
	text := defaults.Within("MaxTextBytes", &c.MaxTextBytes, 1<<20, 1, MaxTextLimit) // before what follows from it
	c.Chat.Limits.OutputBytes = cmp.Or(c.Chat.Limits.OutputBytes, uint64(max(c.MaxTextBytes, 0)))
	if c.Chat.Given == nil {
		c.Chat.Given = chat.NewTemplates() // all models share it
	}
	_, err := chat.NewRenderer(chat.Files{}, c.Chat)
	if err != nil {
		err = fmt.Errorf("tokenpool: config: Chat: %w", err)
	}
	var shared error
	switch {
	case c.Shared == nil:
	case c.PieceBytes < 0:
		shared = errors.New("tokenpool: config: Shared without PieceBytes")
	case len(c.SharedSecret) < MinSharedSecret:
		shared = fmt.Errorf("tokenpool: config: SharedSecret has %d bytes, it needs %d", len(c.SharedSecret), MinSharedSecret)
	}
	c.Pins = maps.Clone(c.Pins)
	var pins []error
	for model, pin := range c.Pins {
		if err := pin.validate(); err != nil {
			pins = append(pins, fmt.Errorf("tokenpool: config: Pins of %s: %w", tokenfile.Quote(model), err))
		}
	}
	limits := errors.Join(
		text,
		defaults.Within("SharedTimeout", &c.SharedTimeout, 20*time.Millisecond, time.Microsecond, 10*time.Second),
		defaults.Within("Workers", &c.Workers, runtime.GOMAXPROCS(0), 1, 1024),
		defaults.Within("Queue", &c.Queue, 1024, 1, 1_000_000),
		defaults.Within("QueueBytes", &c.QueueBytes, max(64<<20, int64(c.MaxTextBytes)), int64(c.MaxTextBytes), 1<<40),
		defaults.Within("WorkBytes", &c.WorkBytes, bytesPerByte<<20, 1<<20, 1<<40),
		defaults.Within("PieceBytes", &c.PieceBytes, 64<<20, math.MinInt64, 1<<40),
		defaults.Within("CheckEvery", &c.CheckEvery, 0, 0, 1_000_000_000),
		defaults.Within("Budget", &c.Budget, 50*time.Millisecond, time.Microsecond, time.Minute),
		defaults.Within("MaxTokenizers", &c.MaxTokenizers, 8, 1, 1024),
		defaults.Within("LoadTimeout", &c.LoadTimeout, 10*time.Minute, time.Millisecond, time.Hour),
		defaults.Within("FailureTTL", &c.FailureTTL, 5*time.Second, time.Millisecond, 5*time.Minute),
		defaults.Within("Recheck", &c.Recheck, 10*time.Second, time.Millisecond, time.Hour),
	)
	if limits != nil {
		limits = fmt.Errorf("tokenpool: config: %w", limits)
	}
	return errors.Join(err, shared, errors.Join(pins...), limits)
}

// Observer is told what a Pool does. Its funcs are called without a lock held, by
// many goroutines at once. They should return quickly, since they hold up the
// worker or load that calls them. None is given any prompt text.
type Observer struct {
	// Tokenized is called when the tokenizer has run over a text.
	Tokenized func(TokenizedEvent)
	// Loaded is called when a load has ended, in a tokenizer or in err.
	Loaded func(m Model, err error)
	// Dropped is called when a tokenizer leaves the pool. The reason is "room",
	// "replaced", "removed", "differs", "reference" (which could not be read behind the
	// load) or "closed". It may still finish work after that.
	Dropped func(m Model, reason string)
	// Proven is called when Config.Fast is in use for a model, or with why that is not
	// possible.
	Proven func(model string, err error)
	// ProofNotKept is called when Config.ProofDir did not take a proof: the next process
	// proves again.
	ProofNotKept func(model string, err error)
	// Differed is called when the fast tokenizer of a model has given other tokens than
	// Hugging Face's, which it is left to from then on. The error has no prompt text.
	Differed func(model string, err error)
	// StoreRefused is called when the prefix store would not keep a text.
	StoreRefused func(model string, err error)
}

// TokenizedEvent reports one run of a tokenizer.
type TokenizedEvent struct {
	// Model is the model asked for.
	Model string
	// Bytes is the length of the text, Tokens how many came of it, and Fresh how many of
	// these the tokenizer has made. The others are known from pieces of earlier texts.
	Bytes, Tokens, Fresh int
	// Queued is the time from the request to the run, the load of the
	// tokenizer included; Took is the run itself.
	Queued, Took time.Duration
	// Err is nil, or wraps ErrTokenizer.
	Err error
}
