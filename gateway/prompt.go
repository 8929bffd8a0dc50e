package gateway

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
)

// api is an API whose requests are understood.
type api uint8

const (
	apiOther api = iota
	apiCompletions
	apiChat
	apiEmbeddings
	apiResponses
	apiMessages
)

// apis are the paths of requests that are understood. A POST there asks an engine to compute
// something and changes nothing, so it may be sent again.
var apis = map[string]api{
	"/v1/completions": apiCompletions, "/v1/chat/completions": apiChat, "/v1/embeddings": apiEmbeddings,
	"/v1/responses": apiResponses, "/v1/messages": apiMessages,
}

// asked is what a request's body asks, as far as it matters here.
type asked struct {
	model  string
	stream bool
	// score has what is known of the prompt; unread says why that is nothing.
	score  scorer.Request
	unread string
	// usage is where the body has stream_options, and what they say.
	usage usageAsked
}

// usageAsked is what a body says about the usage of a stream.
type usageAsked struct {
	told     bool // include_usage is there, true or false
	from, to int  // the bytes of stream_options; 0, 0 if it is missing
	empty    bool // it has no members, or is null
}

// errNoObject is a body that is no JSON object.
var errNoObject = errors.New("the body is no JSON object")

// changesPrompt are fields that change the prompt in a way that is known to the engine alone,
// by the APIs that have them.
var changesPrompt = map[string][]api{
	"prompt_embeds": {apiCompletions}, "suffix": {apiCompletions}, "extra_key": {apiCompletions, apiChat},
	"previous_response_id": {apiResponses}, "conversation": {apiResponses}, "previous_input_messages": {apiResponses},
}

// readAsked reads a body as engines do: what is unknown is let pass. The JSON of a chat is the
// body's own memory.
func readAsked(of api, body []byte) (*asked, error) {
	top := gjson.Parse(unsafe.String(unsafe.SliceData(body), len(body))) // it is never written to
	if !top.IsObject() {
		return nil, errNoObject
	}
	a := &asked{}
	r := &reader{of: of, body: body, asked: a}
	top.ForEach(func(key, value gjson.Result) bool {
		r.read(key.String(), value)
		return true
	})
	r.finish()
	return a, nil
}

// reader reads the members of one body.
type reader struct {
	of   api
	body []byte
	*asked
	chat             prompt.Chat
	inputIDs, prompt gjson.Result
	lora             string
}

func (r *reader) read(name string, v gjson.Result) {
	if slices.Contains(changesPrompt[name], r.of) && v.Type != gjson.Null && v.Raw != `""` {
		r.unread = name
		return
	}
	if to := r.rawField(name); to != nil {
		if v.Type != gjson.Null {
			*to = r.body[v.Index : v.Index+len(v.Raw)]
		}
		return
	}
	if v.Type == gjson.Null && name != "stream_options" {
		return
	}
	switch name {
	case "model":
		r.model = strings.Clone(v.String())
	case "stream":
		r.stream = v.Bool()
	case "stream_options":
		r.readStreamOptions(v)
	case "prompt":
		r.prompt = v
	case "input_ids":
		r.inputIDs = v
	case "cache_salt":
		r.score.Salt = strings.Clone(oneText(v))
	case "lora_path":
		r.lora = strings.Clone(oneText(v))
	case "truncate_prompt_tokens":
		if n := v.Int(); n > 0 && n <= math.MaxInt32 {
			r.score.Truncation.Keep = int(n)
		}
	case "truncation_side":
		switch v.String() {
		case "left":
			r.score.Truncation.Side = scorer.CutLeft
		case "right":
			r.score.Truncation.Side = scorer.CutRight
		}
	case "add_special_tokens":
		add := laxBool(v)
		r.score.NoSpecialTokens, r.chat.AddSpecialTokens = !add, &add
	case "add_generation_prompt":
		add := laxBool(v)
		r.chat.AddGenerationPrompt = &add
	case "continue_final_message":
		r.chat.ContinueFinalMessage = laxBool(v)
	case "chat_template":
		r.chat.ChatTemplate = v.String()
	case "reasoning_effort":
		r.chat.ReasoningEffort = v.String()
	case "instructions":
		r.chat.Instructions = v.String()
	}
}

// rawField is where the JSON of a field goes on as it is: templates write out keys and numbers
// as they were sent.
func (r *reader) rawField(name string) *json.RawMessage {
	c := &r.chat
	switch name {
	case "messages":
		return &c.Messages
	case "tools":
		return &c.Tools
	case "documents":
		return &c.Documents
	case "chat_template_kwargs":
		return &c.ChatTemplateKwargs
	case "system":
		return &c.System
	case "thinking":
		return &c.Thinking
	case "output_config":
		return &c.OutputConfig
	case "input":
		return &c.Input
	case "reasoning":
		return &c.Reasoning
	}
	return nil
}

func (r *reader) readStreamOptions(v gjson.Result) {
	u := &r.usage
	u.from, u.to, u.empty = v.Index, v.Index+len(v.Raw), true
	if v.Type == gjson.Null {
		return
	}
	if !v.IsObject() {
		u.told = true // the engine will refuse it, and say why: it gets what the client has sent
		return
	}
	v.ForEach(func(key, value gjson.Result) bool {
		u.empty = false
		u.told = u.told || key.String() == "include_usage" && value.Type != gjson.Null
		return true
	})
}

// finish puts the prompt together.
func (r *reader) finish() {
	r.score.LoRA = r.lora
	if r.unread != "" {
		return
	}
	switch r.of {
	case apiCompletions:
		r.readPrompts(r.prompt, "prompt")
	case apiEmbeddings:
		if len(r.chat.Messages) > 0 {
			r.readChat(prompt.APIChat)
		} else {
			r.readPrompts(gjson.ParseBytes(r.chat.Input), "input")
		}
	case apiChat:
		if r.inputIDs.Exists() {
			r.readPrompts(r.inputIDs, "input_ids")
		} else {
			r.readChat(prompt.APIChat)
		}
	case apiMessages:
		r.readChat(prompt.APIMessages)
	case apiResponses:
		r.readChat(prompt.APIResponses)
	case apiOther:
	}
}

func (r *reader) readChat(of prompt.API) {
	c := &r.chat
	c.API = of
	if of == prompt.APIResponses {
		c.Messages = nil
	} else {
		c.Input = nil
	}
	if len(c.Messages) == 0 && len(c.Input) == 0 {
		r.unread = "no messages"
		return
	}
	r.score.Input = scorer.Chat(*c)
}

// readPrompts reads a text, tokens, or a list of either. Of several the longest counts: all of
// a request go to one pod, where the longest has most to save.
func (r *reader) readPrompts(v gjson.Result, field string) {
	if v.Type == gjson.String {
		r.score.Input = scorer.Prompt(v.String())
		return
	}
	if !v.IsArray() {
		r.unread = "no " + field
		return
	}
	var longest gjson.Result
	numbers := false
	v.ForEach(func(_, one gjson.Result) bool {
		numbers = one.Type == gjson.Number
		if len(one.Raw) > len(longest.Raw) {
			longest = one
		}
		return !numbers
	})
	if numbers {
		longest = v
	}
	if longest.Type == gjson.String {
		r.score.Input = scorer.Prompt(longest.String())
		return
	}
	tokens, ok := readTokens(longest)
	if !ok {
		r.unread = field + " is no text and no tokens"
		return
	}
	r.score.Input = scorer.Tokens(tokens)
}

// readTokens reads an array of token ids.
func readTokens(v gjson.Result) (tokens []uint32, ok bool) {
	raw, ok := strings.CutPrefix(v.Raw, "[")
	if !ok {
		return nil, false
	}
	tokens = make([]uint32, 0, len(raw)/5)
	n, digits := uint64(0), 0
	for i := range len(raw) {
		switch c := raw[i]; {
		case c >= '0' && c <= '9':
			n, digits = n*10+uint64(c-'0'), digits+1
			if n > math.MaxUint32 || digits > 10 {
				return nil, false
			}
		case c == ',' || c == ']':
			if digits == 0 {
				return nil, false
			}
			tokens = append(tokens, uint32(n))
			n, digits = 0, 0
		case c == ' ' || c == '\n' || c == '\r' || c == '\t':
		default:
			return nil, false
		}
	}
	return tokens, len(tokens) > 0
}

// oneText reads a text, or a list of one, which SGLang takes for it.
func oneText(v gjson.Result) string {
	if v.IsArray() {
		v = v.Get("0")
	}
	return v.String()
}

// laxBool reads true or false in the words that engines take for them (pydantic's).
func laxBool(v gjson.Result) bool {
	switch strings.ToLower(v.String()) {
	case "1", "true", "t", "yes", "y", "on":
		return true
	}
	return false
}

// withUsage returns a body in which a stream is asked for its usage.
func (a *asked) withUsage(body []byte) []byte {
	const ask = `"include_usage":true`
	u := &a.usage
	switch {
	case u.to == 0:
		at := slices.Index(body, '{') + 1
		return splice(body, at, at, `"stream_options":{`+ask+`},`)
	case u.empty:
		return splice(body, u.from, u.to, `{`+ask+`}`)
	}
	return splice(body, u.from+1, u.from+1, ask+`,`)
}

// splice returns a copy of b with the bytes from one place to another replaced.
func splice(b []byte, from, to int, with string) []byte {
	out := make([]byte, 0, len(b)-(to-from)+len(with))
	return append(append(append(out, b[:from]...), with...), b[to:]...)
}
