package wire

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/sim/engine"
)

// body is what is read of a completion's or a chat completion's request. Other fields are
// for models, and are passed over.
type body struct {
	Model               string          `json:"model"`
	Prompt              json.RawMessage `json:"prompt"`
	Messages            json.RawMessage `json:"messages"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	N                   *int            `json:"n"`
	Stream              bool            `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage         *bool `json:"include_usage"`
		ContinuousUsageStats bool  `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	AddSpecialTokens *bool           `json:"add_special_tokens"`
	CacheSalt        *string         `json:"cache_salt"`
	LoRAPath         json.RawMessage `json:"lora_path"`
	DataParallelRank *int            `json:"data_parallel_rank"`
	RoutedDPRank     *int            `json:"routed_dp_rank"`
	ReturnTokenIDs   bool            `json:"return_token_ids"`
}

// job is a request that has been understood.
type job struct {
	life       *life
	chat       bool
	id         string
	model      string
	created    int64
	stream     bool
	usage      bool // at the end of a stream
	continuous bool // with each part of it
	stops      bool // the answer ends by itself
	ids        bool // it has the token ids of prompt and answer, which vLLM has alone
	parts      []part
}

// part is one prompt with its answer.
type part struct {
	rank   *rank
	id     uint64
	prompt []uint32
	text   string
	said   []uint32
	answer *answer
}

// apiError is an error that the client is told.
type apiError struct {
	status int
	param  string
	text   string
}

func (e *apiError) Error() string { return e.text }

func bad(param, format string, args ...any) error {
	return &apiError{http.StatusBadRequest, param, fmt.Sprintf(format, args...)}
}

// complete answers a completion, or a chat completion.
func (l *life) complete(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		l.open.Add(1)
		defer l.open.Add(-1)
		j, err := l.read(w, r, chat)
		if err != nil {
			l.fail(w, err)
			return
		}
		defer func() {
			for _, p := range j.parts {
				p.rank.cancel(p.id)
			}
		}()
		if j.stream {
			j.writeStream(r.Context(), w)
		} else {
			j.writeWhole(r.Context(), w)
		}
	}
}

// maxSalt bounds a cache salt, in characters.
const maxSalt = 128

// salt is the cache salt of a request, "" for none. In vLLM it may not be empty. Since 0.32 (the oldest release
// whose rule was read) it may not be long either. Nor may it have the characters that caches behind it write
// between their fields.
func (l *life) salt(asked *string) (string, error) {
	vllm := l.pod.config.Engine.Kind == engine.VLLM
	switch {
	case asked == nil:
		return "", nil
	case vllm && *asked == "":
		return "", bad("cache_salt", "cache_salt must be a non-empty string if provided")
	case (!vllm || l.pod.release >= v0(32, 0)) && utf8.RuneCountInString(*asked) > maxSalt:
		return "", bad("cache_salt", "cache_salt has more than %d characters", maxSalt)
	case vllm && l.pod.release >= v0(32, 0) && strings.ContainsAny(*asked, "@/\\\x00"):
		return "", bad("cache_salt", "cache_salt must not contain '@', '/', '\\\\', or NUL")
	}
	return *asked, nil
}

// read reads a request and has the engine work on it.
func (l *life) read(w http.ResponseWriter, r *http.Request, chat bool) (*job, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, bad("", "the body cannot be read: %v", err)
	}
	var b body
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, bad("", "the body is no JSON of a request: %v", err)
	}
	c := &l.pod.config
	j := &job{life: l, chat: chat, model: b.Model, created: time.Now().Unix(), stream: b.Stream, ids: b.ReturnTokenIDs && c.Engine.Kind == engine.VLLM}
	lora, err := l.adapter(&b)
	if err != nil {
		return nil, err
	}
	j.model = cmp.Or(j.model, c.Model)
	if b.N != nil && *b.N != 1 {
		return nil, bad("n", "n is %d: a simulated engine gives one answer", *b.N)
	}
	if o := b.StreamOptions; o != nil {
		j.usage = c.Engine.Kind == engine.TRTLLM || c.Engine.Kind == engine.VLLM && l.pod.release < v0(18, 0)
		if o.IncludeUsage != nil {
			j.usage = *o.IncludeUsage
		}
		j.continuous = j.usage && o.ContinuousUsageStats
	}
	salt, err := l.salt(b.CacheSalt)
	if err != nil {
		return nil, err
	}
	prompts, err := l.prompts(r.Context(), &b, raw, chat)
	if err != nil {
		return nil, err
	}
	first := l.ids.Add(uint64(len(prompts))) - uint64(len(prompts))
	j.id = fmt.Sprintf("%s-%016x", map[bool]string{false: "cmpl", true: "chatcmpl"}[chat], first)
	for i, prompt := range prompts {
		q, text, err := l.request(r.Context(), j, &b, prompt)
		if err != nil {
			return nil, j.abandon(err)
		}
		q.ID, q.LoRA, q.Salt = first+uint64(i), lora, salt
		rank, err := l.rank(r, &b)
		if err != nil {
			return nil, j.abandon(err)
		}
		a, err := rank.submit(q, j.stops)
		if err != nil {
			return nil, j.abandon(bad("", "%v", err))
		}
		j.parts = append(j.parts, part{rank: rank, id: q.ID, prompt: prompt, text: text, said: q.Output, answer: a})
	}
	return j, nil
}

// abandon ends what the engine works on already, as err came.
func (j *job) abandon(err error) error {
	for _, p := range j.parts {
		p.rank.cancel(p.id)
	}
	return err
}

// adapter returns the adapter that a request names.
func (l *life) adapter(b *body) (string, error) {
	c := &l.pod.config
	var path string
	if len(b.LoRAPath) > 0 && json.Unmarshal(b.LoRAPath, &path) == nil && path != "" && c.Engine.Kind == engine.SGLang {
		if !slices.Contains(c.LoRAs, path) {
			return "", bad("lora_path", "the adapter %q is not loaded", path)
		}
		return path, nil
	}
	switch {
	case b.Model == "" || b.Model == c.Model:
		return "", nil
	case slices.Contains(c.LoRAs, b.Model):
		return b.Model, nil
	}
	return "", &apiError{http.StatusNotFound, "model", "The model `" + b.Model + "` does not exist."}
}

// maxPrompts is how many prompts a request may have.
const maxPrompts = 128

// prompts returns the tokens of each prompt.
func (l *life) prompts(ctx context.Context, b *body, raw []byte, chat bool) ([][]uint32, error) {
	c := &l.pod.config
	if chat {
		if len(b.Messages) == 0 {
			return nil, bad("messages", "there are no messages")
		}
		tokens, err := c.Tokenizer.Chat(ctx, raw)
		if err != nil {
			return nil, bad("messages", "%v", err)
		}
		return [][]uint32{tokens}, nil
	}
	var (
		text  string
		texts []string
		ids   []uint32
		lists [][]uint32
	)
	switch {
	case len(b.Prompt) == 0:
		return nil, bad("prompt", "there is no prompt")
	case json.Unmarshal(b.Prompt, &text) == nil:
		texts = []string{text}
	case json.Unmarshal(b.Prompt, &ids) == nil:
		lists = [][]uint32{ids}
	case json.Unmarshal(b.Prompt, &texts) == nil:
	case json.Unmarshal(b.Prompt, &lists) == nil:
		texts = nil // what was read of it before it turned out to be none
	default:
		return nil, bad("prompt", "a prompt is a text, a list of token ids, or a list of such")
	}
	for _, t := range texts {
		tokens, err := c.Tokenizer.Text(ctx, t, b.AddSpecialTokens == nil || *b.AddSpecialTokens)
		if err != nil {
			return nil, bad("prompt", "%v", err)
		}
		lists = append(lists, tokens)
	}
	if len(lists) == 0 || len(lists) > maxPrompts {
		return nil, bad("prompt", "%d prompts, it must be 1 to %d", len(lists), maxPrompts)
	}
	return lists, nil
}

// The lengths of answers whose length is not asked for.
const (
	completionTokens = 16 // OpenAI's
	chatTokens       = 64 // a model ends by itself
)

// request returns what the engine is asked, and the text that it will say.
func (l *life) request(ctx context.Context, j *job, b *body, prompt []uint32) (engine.Request, string, error) {
	c := &l.pod.config
	n := completionTokens
	if j.chat {
		n = chatTokens
		j.stops = true
	}
	for _, m := range []*int{b.MaxTokens, b.MaxCompletionTokens} {
		if m != nil {
			n, j.stops = *m, false
		}
	}
	switch room := c.MaxModelLen - len(prompt); {
	case len(prompt) == 0:
		return engine.Request{}, "", bad("prompt", "the prompt is empty")
	case n < 1:
		return engine.Request{}, "", bad("max_tokens", "max_tokens must be at least 1, got %d.", n)
	case room < 1 || n > room && !j.stops:
		return engine.Request{}, "", bad("max_tokens", "This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the prompt, %d in the completion).",
			c.MaxModelLen, len(prompt)+n, len(prompt), n)
	case n > maxOutput:
		return engine.Request{}, "", bad("max_tokens", "max_tokens is %d, a simulated engine gives %d", n, maxOutput)
	default:
		n = min(n, room)
	}
	output, err := l.answer(ctx, seedOf(prompt), n)
	if err != nil {
		return engine.Request{}, "", err
	}
	text, err := c.Tokenizer.Detokenize(ctx, output, true)
	return engine.Request{Tokens: prompt, Output: output}, text, err
}

// answer returns n tokens of what a model says, by a seed.
func (l *life) answer(ctx context.Context, seed uint64, n int) ([]uint32, error) {
	// A token of English has some five bytes; a few more are tried before it is given up.
	for size := 8 * n; size <= 64*n; size *= 2 {
		output, err := l.pod.config.Tokenizer.Text(ctx, say(seed, size), false)
		if err != nil {
			return nil, err
		}
		if len(output) >= n {
			return output[:n], nil
		}
	}
	return nil, fmt.Errorf("wire: %d tokens are to be said, which the tokenizer makes of no text", n)
}

// seedOf is by what a model says something to a prompt: always the same.
func seedOf(prompt []uint32) uint64 {
	h := fnv.New64a()
	var b [4]byte
	for _, t := range prompt {
		binary.LittleEndian.PutUint32(b[:], t)
		_, _ = h.Write(b[:]) // never fails
	}
	return h.Sum64()
}

// rank returns the rank that a request goes to. It is the one that the request names, or the
// one with the least to do, as vLLM counts it.
func (l *life) rank(r *http.Request, b *body) (*rank, error) {
	named := -1
	if h := r.Header.Get("X-Data-Parallel-Rank"); h != "" {
		n, err := strconv.Atoi(h)
		if err != nil || n < 0 {
			return nil, bad("", "X-Data-Parallel-Rank is %q", h)
		}
		named = n
	}
	for _, n := range []*int{b.DataParallelRank, b.RoutedDPRank} {
		if n != nil {
			named = *n
		}
	}
	if named >= len(l.ranks) || named < -1 {
		return nil, bad("data_parallel_rank", "rank %d: there are %d", named, len(l.ranks))
	}
	if named >= 0 {
		return l.ranks[named], nil
	}
	best, least := l.ranks[0], -1
	turn := int(l.turn.Add(1) % uint64(len(l.ranks)))
	for i := range l.ranks {
		if len(l.ranks) == 1 {
			break
		}
		r := l.ranks[(turn+i)%len(l.ranks)]
		s := r.stats()
		if n := 4*s.Waiting + s.Running; least < 0 || n < least {
			best, least = r, n
		}
	}
	return best, nil
}
