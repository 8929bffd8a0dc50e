package prompt

import "time"

// Mode says how long a Request waits for the tokenizer.
type Mode uint8

// The modes.
const (
	// Wait answers from the prefix store when it knows the whole text. Else it
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
	// Chat is the prompt as a chat, in place of Text. It is rendered with the
	// model's template, which has put all special tokens. So none are added unless
	// the chat asks for them (Chat.AddSpecialTokens).
	Chat *Chat
	// Media is what is known of the images, audio and video of Chat, in the order of their
	// parts. Of those that are left out at the end nothing is known. They are put into the
	// tokens where the model's processor would put them.
	Media []Medium
	// NoSpecialTokens leaves out the special tokens that the tokenizer puts
	// around a text (a chat template has put its own). Special tokens written
	// in the text are recognised in both cases, as engines do.
	NoSpecialTokens bool
	// Scope keeps apart what is remembered of texts: whether one is known, which an answer and
	// its time show, is known within its scope only. There should be few of them.
	Scope string
	// Mode says how long to wait, Budget how long Wait does; 0 is the tokenizer's
	// default, and less than 0 is not at all. The time in which a tokenizer is
	// loaded counts.
	Mode   Mode
	Budget time.Duration
	// Room is memory that Result.Tokens may be written to, so that those of a known text need
	// no new one. The caller uses it for nothing else until it is done with the Result.
	Room []uint32
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
	// Tokens are the token ids, in Request.Room or shared with other callers: read only.
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
