package client

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"
)

// ScoreRequest asks for the ranking of pods for one prompt, which is given in one form.
// That is the first that is not nil of BlockKeys, Tokens, Body and Chat, else Prompt.
type ScoreRequest struct {
	// Model is the model's name. Required, unless Body has it.
	Model string
	// Body is a request to an engine as a client has sent it. It is a JSON object
	// with the fields of a completion, a chat completion, Anthropic's messages or
	// OpenAI's responses. Those of it that are set here too are sent as they are
	// here. With a list of prompts the answer has several results, which Score does
	// not read.
	Body json.RawMessage
	// Prompt is the text. It may be empty.
	Prompt string
	// Chat is a chat.
	Chat *Chat
	// Tokens are the token ids of the whole prompt.
	Tokens []uint32
	// BlockKeys is the chain of block keys itself, 16 hex digits each, made
	// with the model's index block size. They exclude LoRA and CacheSalt.
	BlockKeys []string
	// Pods limits the answer to these pods, and has each in it even when it
	// holds nothing. nil means every pod that holds something.
	Pods []string
	// Top limits the answer to the first so many pods of the ranking, Best always among them; 0 is
	// all.
	Top int
	// Strategy is longest_prefix, highest_block or coverage; empty is the
	// server's default.
	Strategy string
	// LoRA and CacheSalt are the adapter's name and the cache salt.
	LoRA, CacheSalt string
	// Explain asks for Explanation.
	Explain bool
	// Predicted makes blocks count that routers predict. Routes count them anyway.
	Predicted bool
	// ReturnTokens asks for the tokens of the prompt: "ids" for TokenIDs, "packed" for
	// PackedTokens, "body" for Body; "" for none.
	ReturnTokens string
	// Mode is how long the server waits for the tokens of a text. It is "wait" (up
	// to Wait; the default), "async" (not at all) or "sync" (until they are there).
	Mode string
	// Wait is the budget of mode "wait", in whole milliseconds, rounded up; 0 is
	// the server's default.
	Wait time.Duration
	// NoSpecialTokens leaves out the special tokens that the tokenizer puts
	// around a text.
	NoSpecialTokens bool
	// EarlyExit lets the server stop once the best pod is known; scores are
	// then lower bounds. For longest_prefix only.
	EarlyExit bool
}

// promptForm is the prompt in the form in which it is sent.
type promptForm struct {
	Prompt *string `json:"prompt,omitempty"`
	*Chat
	Prompts   []string `json:"prompts,omitempty"`
	TokensB64 *packed  `json:"tokens_b64,omitempty"`
	BlockKeys []string `json:"block_keys,omitzero"`
}

type scoreWire struct {
	Model string `json:"model,omitempty"`
	promptForm
	Pods      []string `json:"pods,omitzero"`
	Top       int      `json:"top,omitzero"`
	Strategy  string   `json:"strategy,omitempty"`
	LoRA      string   `json:"lora,omitempty"`
	CacheSalt string   `json:"cache_salt,omitempty"`
	Explain   bool     `json:"explain,omitempty"`
	Predicted bool     `json:"predicted,omitempty"`
	Returns   string   `json:"return_tokens,omitempty"`
	Mode      string   `json:"mode,omitempty"`
	WaitMS    int64    `json:"wait_ms,omitempty"`
	EarlyExit bool     `json:"early_exit,omitempty"`
	Special   *bool    `json:"add_special_tokens,omitempty"`
}

func (r *ScoreRequest) wire() scoreWire {
	w := scoreWire{
		Model:     r.Model,
		Pods:      r.Pods,
		Top:       r.Top,
		Strategy:  r.Strategy,
		LoRA:      r.LoRA,
		CacheSalt: r.CacheSalt,
		Explain:   r.Explain,
		Predicted: r.Predicted,
		Returns:   r.ReturnTokens,
		Mode:      r.Mode,
		WaitMS:    milliseconds(r.Wait),
		EarlyExit: r.EarlyExit,
	}
	if r.NoSpecialTokens {
		w.Special = new(bool)
	}
	switch {
	case r.BlockKeys != nil:
		w.BlockKeys = r.BlockKeys
	case r.Tokens != nil:
		w.TokensB64 = (*packed)(&r.Tokens)
	case r.Body != nil:
	case r.Chat != nil:
		w.Chat = r.Chat
	default:
		w.Prompt = &r.Prompt
	}
	return w
}

// MarshalJSON writes the body of POST /v1/score. It refuses texts that are not
// UTF-8, which JSON could only carry changed.
func (r ScoreRequest) MarshalJSON() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.Body != nil && r.Tokens == nil && r.BlockKeys == nil {
		return over(r.Body, r.wire())
	}
	return json.Marshal(r.wire())
}

func (r *ScoreRequest) check() error {
	texts := []string{"model", r.Model, "prompt", r.Prompt, "lora", r.LoRA, "cache_salt", r.CacheSalt}
	texts = append(append(texts, named("pods", r.Pods)...), "body", string(r.Body))
	return checkTexts(append(texts, r.Chat.texts()...)...)
}

// milliseconds rounds up, so that a short wait does not become the default.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// packed are tokens whose JSON form is base64 of u32 little-endian.
type packed []uint32

// MarshalJSON implements json.Marshaler.
func (p packed) MarshalJSON() ([]byte, error) {
	b := make([]byte, 4*len(p))
	for i, t := range p {
		binary.LittleEndian.PutUint32(b[4*i:], t)
	}
	return json.Marshal(b)
}

// ScoreResponse is the ranking.
type ScoreResponse struct {
	// Scores are the pods' scores.
	Scores map[string]float64 `json:"scores"`
	// Best is the pod to choose; empty when all scores are 0. Of pods with the
	// same highest score it is not always the same one: different prompts spread
	// over them.
	Best string `json:"best"`
	// Matched says for each pod in Scores that holds something what it holds.
	Matched map[string]Match `json:"matched"`
	// Blocks are the full index blocks of the prompt.
	Blocks BlockCount `json:"blocks"`
	// Tokens are the tokens that the blocks were cut from.
	Tokens TokenCount `json:"tokens"`
	// Resolved is what the request's model means, where it is an alias or an adapter of
	// the pods; else nil.
	Resolved *Resolved `json:"resolved"`
	// Degraded is set when something was cut off; the scores are then lower
	// bounds.
	Degraded *Degraded `json:"degraded"`
	// LeftOut is how many pods are not in Scores because of Top.
	LeftOut int `json:"left_out"`
	// Frequencies has for each leading block that a pod holds how often it was
	// asked for before; nil when the server does not count that.
	Frequencies []int `json:"frequencies"`
	// Explain is set when asked for.
	Explain *Explanation `json:"explain"`
	ReturnedTokens
}

// ReturnedTokens are the tokens of a prompt, in the form of ReturnTokens. They are left out
// where they are not exact.
type ReturnedTokens struct {
	// TokenIDs are the tokens; PackedTokens the same, each as u32 little-endian.
	TokenIDs     []uint32 `json:"token_ids"`
	PackedTokens []byte   `json:"token_ids_b64"`
	// Body is what an engine's /v1/completions takes.
	Body json.RawMessage `json:"body"`
}

// Resolved is what the name of a model means.
type Resolved struct {
	// Model is the model that the pods are registered for, LoRA the adapter; "" means none.
	Model string `json:"model"`
	LoRA  string `json:"lora,omitempty"`
}

// Match is what a pod holds of a prompt.
type Match struct {
	// Blocks and Tokens are those of the pod's best rank.
	Blocks int `json:"blocks"`
	Tokens int `json:"tokens"`
	// Reusable is how many tokens that rank's engine can reuse of them; nil with strategies
	// other than longest_prefix, which do not tell.
	Reusable *int `json:"reusable,omitempty"`
	// PredictedBlocks is how many of Blocks, in tier gpu, are only predicted.
	PredictedBlocks int `json:"predicted_blocks,omitempty"`
	// Tiers are the best rank's blocks by the best tier that holds each.
	Tiers map[string]int `json:"tiers"`
	// Ranks are the blocks of each data-parallel rank that holds any.
	Ranks map[int]int `json:"ranks"`
}

// BlockCount counts index blocks.
type BlockCount struct {
	// Total is the number of full blocks, Size the tokens in each.
	Total int `json:"total"`
	Size  int `json:"size"`
}

// TokenCount counts tokens.
type TokenCount struct {
	Total int `json:"total"`
	// Source is where they come from: tokens, tokenizer, prefix_store,
	// block_keys or none.
	Source string `json:"source"`
	// Exact is false when they are those of a part of the prompt.
	Exact bool `json:"exact"`
}

// Degraded says why an answer shows less than the index may hold.
type Degraded struct {
	Reason string `json:"reason"`
	// StaleMS is how old the copy of the index is that has answered, in
	// milliseconds, with the reason index_stale.
	StaleMS int64 `json:"stale_ms,omitempty"`
}

// Ranking returns the pods of Scores, the highest score first and equal ones
// by name, as the server orders them.
func (r *ScoreResponse) Ranking() []string {
	return slices.SortedFunc(maps.Keys(r.Scores), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Scores[b], r.Scores[a]), cmp.Compare(a, b))
	})
}

// Score ranks the pods for one prompt.
func (c *Client) Score(ctx context.Context, r ScoreRequest) (*ScoreResponse, error) {
	return ask[ScoreResponse](ctx, c, http.MethodPost, "/v1/score", r)
}

// ScorePrompts ranks the pods for each of several texts in one call. The
// prompt, body, chat, tokens and block keys of r are not used.
func (c *Client) ScorePrompts(ctx context.Context, r ScoreRequest, prompts []string) ([]*ScoreResponse, error) {
	if err := checkTexts(named("prompts", prompts)...); err != nil {
		return nil, err
	}
	r.Prompt, r.Chat, r.Body = "", nil, nil
	if err := r.check(); err != nil {
		return nil, err
	}
	w := r.wire()
	w.promptForm = promptForm{Prompts: prompts}
	var out struct {
		Results []*ScoreResponse `json:"results"`
	}
	if err := c.Call(ctx, http.MethodPost, "/v1/score", w, &out); err != nil {
		return nil, err
	}
	return out.Results, nil
}
