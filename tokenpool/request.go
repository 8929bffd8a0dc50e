package tokenpool

import (
	"errors"
	"time"

	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrUnknownModel says that no tokenizer is to be had for the model.
	ErrUnknownModel = errors.New("tokenpool: no tokenizer for model")
	// ErrUnsupported says, beside ErrUnknownModel, that the model is there, but has
	// its tokenizer in a form that only Python code can run.
	ErrUnsupported = errors.New("tokenpool: kind of tokenizer that cannot be run")
	// ErrPinned says that a model's tokenizer is not the one that Config.Pins asks
	// for.
	ErrPinned = errors.New("tokenpool: tokenizer is not the pinned one")
	// ErrMedia says that what a request tells of its media cannot be: it has others.
	ErrMedia = errors.New("tokenpool: media")
	// ErrBusy says that the queue is full; try again later.
	ErrBusy = errors.New("tokenpool: queue is full")
	// ErrTooLong says that the text is longer than the configured limit.
	ErrTooLong = errors.New("tokenpool: text is too long")
	// ErrInvalidText says that the text cannot be tokenized as it stands: it
	// holds a NUL byte or is not valid UTF-8.
	ErrInvalidText = errors.New("tokenpool: invalid text")
	// ErrInvalidTokens says that tokens are not the tokenizer's, or that their text
	// cannot be given: it holds a NUL byte.
	ErrInvalidTokens = errors.New("tokenpool: invalid tokens")
	// ErrTokenizer says that the tokenizer failed on the text.
	ErrTokenizer = errors.New("tokenpool: tokenizer failed")
	// ErrLoad says that there is a tokenizer for the model, as far as known, but
	// that it could not be fetched or read; try again later.
	ErrLoad = errors.New("tokenpool: tokenizer cannot be loaded")
	// ErrClosed says that the pool has been closed.
	ErrClosed = errors.New("tokenpool: pool closed")
)

// Mode says how long Tokens waits for the tokenizer.
type Mode uint8

// The modes of DESIGN section 8.
const (
	// Wait answers from the prefix store when it knows the whole text; else it
	// waits for the tokenizer up to the budget, then answers with the known
	// prefix and says so. The tokenization goes on behind.
	Wait Mode = iota
	// Async answers at once with what the prefix store knows, and tokenizes
	// behind what it does not.
	Async
	// Sync waits for the tokenizer as long as the context allows.
	Sync
)

// Request asks for the tokens of one text.
type Request struct {
	// Model chooses the tokenizer.
	Model string
	// Text is the prompt. It must be valid UTF-8 without NUL.
	Text string
	// Chat is the prompt as a chat, in place of Text: it is rendered with the
	// model's template, which has put all special tokens, so that none are added
	// unless the chat asks for them (chat.Request.AddSpecialTokens).
	// The errors of package chat are those of Tokens then.
	Chat *chat.Request
	// Media is what is known of the images, audio and video of Chat, in the order of
	// their parts; of those that are left out at the end nothing is. They are put
	// into the tokens where the model's processor would put them.
	Media []Medium
	// NoSpecialTokens leaves out the special tokens that the tokenizer puts
	// around a text (a chat template has put its own). Special tokens written
	// in the text are recognised in both cases, as engines do.
	NoSpecialTokens bool
	// Mode says how long to wait, Budget how long Wait does; 0 is the pool's
	// default, and less than 0 is not at all. The time in which a tokenizer is
	// loaded counts.
	Mode   Mode
	Budget time.Duration
}

// AddsSpecialTokens reports whether the tokenizer puts its special tokens around the
// prompt.
func (r *Request) AddsSpecialTokens() bool {
	if r.Chat != nil {
		return r.Chat.AddsSpecialTokens()
	}
	return !r.NoSpecialTokens
}

// Source says where the tokens of a Result come from.
type Source string

// The sources, as the API gives them in tokens.source.
const (
	// FromTokenizer: the tokenizer ran over the whole text for this request
	// or for an equal one at the same time.
	FromTokenizer Source = "tokenizer"
	// FromPrefixStore: the prefix store knew the text, or the part that is
	// given.
	FromPrefixStore Source = "prefix_store"
	// FromNowhere: nothing is known yet.
	FromNowhere Source = "none"
)

// Result is the answer to a Request.
type Result struct {
	// Tokens are the token ids, shared with other callers: read only.
	Tokens []uint32
	// Source says where they come from.
	Source Source
	// Exact is true when they are the tokens of the whole text, and false when
	// they are those of a prefix of it.
	Exact bool
	// Bytes is how much of the text, or of the rendered chat, they cover.
	Bytes int
	// Media are the media that are in Tokens, in their order.
	Media []PlacedMedium
	// Behind says why Exact is false; empty when Exact.
	Behind Behind
}

// Behind says why a Result covers only a part of the text.
type Behind string

// The reasons.
const (
	// BehindBudget: the budget of Wait ran out.
	BehindBudget Behind = "budget"
	// BehindAsync: the caller did not want to wait.
	BehindAsync Behind = "async"
	// BehindBusy: the queue is full.
	BehindBusy Behind = "busy"
	// BehindMedia: a chat has images, audio or video of which it is not known what
	// stands in their place. The tokens are those before the first such one, or
	// before the content of the first message that has any.
	BehindMedia Behind = "media"
)
