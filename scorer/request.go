package scorer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/prompt"
)

// Errors that callers tell apart with errors.Is. Errors of the tokenizer are its own, wrapped.
var (
	// ErrRequest says that the request cannot be answered as it stands; the
	// message says what is wrong with it.
	ErrRequest = errors.New("scorer: bad request")
	// ErrNoTokenizer says that a text was given to a Scorer without tokenizer.
	ErrNoTokenizer = errors.New("scorer: no tokenizer configured")
)

// Input is the prompt of a request in one of its forms. The zero Input is an
// empty list of tokens.
type Input struct {
	kind   inputKind
	text   string
	chat   *prompt.Chat
	tokens []uint32
	keys   []blockkey.Key
}

type inputKind uint8

const (
	inputTokens inputKind = iota
	inputText
	inputChat
	inputKeys
)

// Prompt is a text, to be tokenized by the model's tokenizer.
func Prompt(text string) Input { return Input{kind: inputText, text: text} }

// Chat is a chat, to be rendered with the model's template and then tokenized.
// Its JSON is not kept after the answer. Request.NoSpecialTokens means nothing for it:
// the template has put those that there are, and the chat itself asks for more.
func Chat(r prompt.Chat) Input { return Input{kind: inputChat, chat: &r} }

// Tokens are the token ids of the whole prompt. The slice is not kept.
func Tokens(ids []uint32) Input { return Input{kind: inputTokens, tokens: ids} }

// BlockKeys is the chain of block keys itself, made with the model's index
// block size. The slice is not kept.
func BlockKeys(keys []blockkey.Key) Input { return Input{kind: inputKeys, keys: keys} }

// Size returns the length of the prompt in tokens. Of texts it is an estimate, 4 bytes a
// token, without media that are inline; of block keys it is not known, and 0.
func (in *Input) Size() (tokens int, estimated bool) {
	const bytesPerToken = 4
	switch in.kind {
	case inputTokens:
		return len(in.tokens), false
	case inputText:
		return len(in.text) / bytesPerToken, true
	case inputChat:
		n := len(in.chat.Instructions)
		for _, part := range [][]byte{in.chat.Messages, in.chat.Tools, in.chat.Documents, in.chat.System, in.chat.Input} {
			n += textBytes(part)
		}
		return n / bytesPerToken, true
	case inputKeys:
	}
	return 0, true
}

// textBytes is the length of JSON without the data: URLs in it.
func textBytes(b []byte) int {
	n := len(b)
	for start := []byte(`"data:`); ; {
		at := bytes.Index(b, start)
		if at < 0 {
			return n
		}
		b = b[at+len(start):]
		end := max(0, bytes.IndexByte(b, '"'))
		n -= end
		b = b[end:]
	}
}

// Request asks for the ranking of pods for one prompt.
type Request struct {
	// Model is the model's name. It chooses tokenizer, index block size and
	// the blocks that can match.
	Model string
	// Input is the prompt.
	Input Input
	// Pods limits the answer to these pods, and has each of them in it even
	// when it holds nothing. With nil it has every pod that holds something.
	Pods []string
	// Top limits the answer to this many pods, the first of the ranking; 0 is all. Best is
	// of all, whatever Top is, and always one of them. Of more equal pods than Top it is the
	// last one in the answer.
	Top int
	// Strategy is how blocks become scores; empty is the Scorer's default.
	Strategy Strategy
	// LoRA and Salt are the adapter's name and the cache salt; they are part
	// of the block keys, so block keys exclude them.
	LoRA, Salt string
	// Scope is prompt.Request's: what is remembered of texts is kept apart by it.
	Scope string
	// Objects are the images, audio and video in Input, which must be tokens with
	// the model's placeholders in their places. Their hashes are part of the block
	// keys.
	Objects []blockkey.Object
	// Media is what is known of the images, audio and video of a Chat, in the order
	// of their parts. Those that are not known end what is scored.
	Media []prompt.Medium
	// Mode and Wait say how long tokenization may take; Wait 0 is the default
	// budget of the tokenizer.
	Mode prompt.Mode
	Wait time.Duration
	// NoSpecialTokens leaves out the special tokens that the tokenizer puts
	// around a text.
	NoSpecialTokens bool
	// Truncation keeps a part of the prompt's tokens. Block keys have none.
	Truncation Truncation
	// EarlyExit stops a longest_prefix walk at the first block at which one
	// candidate is left. The best pod is known then, and its score is a lower
	// bound.
	EarlyExit bool
	// Explain asks for Response.Explanation. All blocks that it has room for are then read.
	Explain bool
	// Match asks for Response.Match.
	Match bool
	// Predicted makes predictions count, as blocks in tier gpu, where the rank holds a block
	// in no other way.
	Predicted bool
	// ReturnTokens asks for Response.TokenIDs.
	ReturnTokens bool
}

// validate checks what does not need the index, and returns how the strategy works.
func (r *Request) validate(def Strategy) (*rule, error) {
	if r.Model == "" {
		return nil, fmt.Errorf("%w: model is empty", ErrRequest)
	}
	if r.Input.kind == inputKeys && (r.LoRA != "" || r.Salt != "") {
		return nil, fmt.Errorf("%w: block keys already contain LoRA and salt, give either", ErrRequest)
	}
	if r.Input.kind != inputTokens && len(r.Objects) > 0 {
		return nil, fmt.Errorf("%w: objects go with tokens only", ErrRequest)
	}
	if r.Input.kind != inputChat && len(r.Media) > 0 {
		return nil, fmt.Errorf("%w: media go with a chat only", ErrRequest)
	}
	st := r.Strategy
	st = cmp.Or(st, def)
	how, err := ruleOf(st)
	if err != nil {
		return nil, err
	}
	if r.EarlyExit && st != LongestPrefix {
		return nil, fmt.Errorf("%w: early exit is for longest_prefix, not for %s", ErrRequest, st)
	}
	if r.Top < 0 {
		return nil, fmt.Errorf("%w: top is %d, it must be at least 0", ErrRequest, r.Top)
	}
	if slices.Contains(r.Pods, "") {
		return nil, fmt.Errorf("%w: a pod's name is empty", ErrRequest)
	}
	return how, nil
}

// Degradation says why an answer shows less than the index may hold. A score
// is then a lower bound.
type Degradation string

// The reasons, as the API gives them in degraded.reason.
const (
	// IndexUnavailable: the index could not be reached.
	IndexUnavailable Degradation = "index_unavailable"
	// IndexTimeout: the index did not answer within its budget.
	IndexTimeout Degradation = "index_timeout"
	// IndexStale: the index could not be reached, and a copy of it has answered,
	// whose age is Response.Stale.
	IndexStale Degradation = "index_stale"
	// TokenizationBudget: the tokenizer was not done within its budget, or was not
	// waited for.
	TokenizationBudget Degradation = "tokenization_budget"
	// TokenizationBusy: the tokenizer's queue is full.
	TokenizationBusy Degradation = "tokenization_busy"
	// Multimodal: neither the caller nor the model's rules say what stands in the place of
	// the chat's images, audio or video. What comes before them is scored.
	Multimodal Degradation = "multimodal"
)

// Response is the ranking.
type Response struct {
	// Pods are the candidates: highest score first, equal ones by name.
	Pods []PodScore
	// LeftOut is how many more there are, which Request.Top has left out.
	LeftOut int
	// Best names a pod of the highest score, empty when no pod scores above 0. Of
	// equal pods the prompt decides: the same one in every process, and another one
	// for other prompts.
	Best string
	// Blocks is the number of full index blocks of the prompt (of as much of
	// it as is tokenized), BlockSize the tokens in each.
	Blocks, BlockSize int
	// Tokens is the number of tokens that the blocks were cut from. Source is
	// where they come from, and Exact whether they are those of the whole
	// prompt.
	Tokens int
	Source string
	Exact  bool
	// Frequencies has how often each leading block that a candidate holds was
	// asked for before, within the configured window. It is nil when that is not
	// counted.
	Frequencies []int
	// Degraded is empty when nothing was cut off.
	Degraded Degradation
	// Stale is how old the picture of the index is that has answered; 0 is present.
	Stale time.Duration
	// TokenIDs are the tokens of the whole prompt, if they were asked for and are Exact. They
	// belong to the caller.
	TokenIDs []uint32
	// Match is set when asked for: what each rank holds, of which Pods are made.
	Match *Match
	// Explanation is set when asked for.
	Explanation *Explanation
}

// The sources of tokens that are not the tokenizer's (prompt.Source).
const (
	SourceTokens    = "tokens"
	SourceBlockKeys = "block_keys"
)

// PodScore is one pod's place in the ranking.
type PodScore struct {
	Pod string
	// Score is by the strategy, of the pod's best rank.
	Score float64
	// Blocks and Tokens are what the best rank holds of what the strategy
	// counts.
	Blocks, Tokens int
	// Reusable is how many tokens the best rank's engine can reuse of them. They end at a
	// boundary of its own blocks, below the prompt's last token and, with window groups,
	// where these hold the window. It is -1 with strategies other than longest_prefix.
	Reusable int
	// Predicted is how many of Blocks are only predicted: see Request.Predicted.
	Predicted int
	// Tiers are the best rank's blocks by the best tier that holds each. Pods that hold as
	// much may share one list, which is only to be read; of Ranks too.
	Tiers []TierBlocks
	// Ranks are the blocks of each rank that holds any, by rank.
	Ranks []RankBlocks
}

// TierBlocks counts blocks in a tier.
type TierBlocks struct {
	Tier   string
	Blocks int
}

// RankBlocks counts blocks of a rank.
type RankBlocks struct {
	Rank, Blocks int
}

// The limits of what Score and ScoreAll explain in one call, of all its requests together,
// which have equal shares. A client needs a short request for a long explanation.
const (
	MaxExplainedBlocks  = 16_384
	MaxExplainedHolders = 65_536
)

// Explanation shows the inside of one request.
type Explanation struct {
	// Blocks are the leading blocks in order, each with all its live holders.
	Blocks []BlockHolders
	// LeftOut is how many blocks of the prompt are not in Blocks because of
	// MaxExplainedBlocks or MaxExplainedHolders.
	LeftOut int
	// Keys are the keys of all blocks of the prompt, in order.
	Keys []blockkey.Key
	// Stages are the times of the pipeline's stages, in order.
	Stages []Stage
}

// BlockHolders is one block and its holders.
type BlockHolders struct {
	Key     blockkey.Key
	Holders []BlockHolder
}

// BlockHolder is one holder of a block.
type BlockHolder struct {
	Pod  string
	Rank int
	Tier string
	// Kind is empty for what counts as prefix, and KindWindow where the engine's window
	// groups hold their part of the block.
	Kind string
}

// KindWindow is BlockHolder.Kind of window groups, KindPredicted that of predictions.
const (
	KindWindow    = "window"
	KindPredicted = "predicted"
)

// Stage is the time that one stage took. Several prompts scored together share
// their stages.
type Stage struct {
	Name string
	Took time.Duration
}
