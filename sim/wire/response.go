package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/sim/engine"
)

// details are usage's prompt_tokens_details.
type details struct {
	CachedTokens int `json:"cached_tokens"`
}

// usage is OpenAI's.
type usage struct {
	PromptTokens        int      `json:"prompt_tokens"`
	TotalTokens         int      `json:"total_tokens"`
	CompletionTokens    int      `json:"completion_tokens"`
	PromptTokensDetails *details `json:"prompt_tokens_details"`
}

// usageOf returns the usage of so many tokens. What was cached is said as the release says
// it, as if it were asked to.
func (l *life) usageOf(prompt, completion, cached int) *usage {
	u := &usage{PromptTokens: prompt, CompletionTokens: completion, TotalTokens: prompt + completion}
	if cached > 0 || tellsZero(l.pod.config.Engine.Kind, l.pod.release) {
		u.PromptTokensDetails = &details{cached}
	}
	return u
}

// next waits for the next token of an answer. Where the client or the engine has gone, it ends the
// connection as a process that died does.
func (p *part) next(ctx context.Context) engine.Output {
	select {
	case o, ok := <-p.answer.outputs:
		if ok {
			return o
		}
	case <-ctx.Done():
	}
	panic(http.ErrAbortHandler)
}

// piece is the text of the n-th token: its share of all of it.
func (p *part) piece(n int) string {
	edge := func(i int) int {
		at := len(p.text) * i / len(p.said)
		for at < len(p.text) && !utf8.RuneStart(p.text[at]) {
			at++
		}
		return at
	}
	return p.text[edge(n):edge(n+1)]
}

// tellPrompt puts the token ids of the prompt where a chat has them, or a completion.
func (p *part) tellPrompt(r *response, c *choice, chat bool) {
	if chat {
		r.PromptIDs = p.prompt
	} else {
		c.PromptIDs = p.prompt
	}
}

// finish is why an answer has ended.
func (j *job) finish() string {
	if j.stops {
		return "stop"
	}
	return "length"
}

// message is a chat's answer, or a part of one.
type message struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

// choice is one answer, or a part of one.
type choice struct {
	Index        int       `json:"index"`
	Text         *string   `json:"text,omitempty"`
	Message      *message  `json:"message,omitempty"`
	Delta        *message  `json:"delta,omitempty"`
	Logprobs     *struct{} `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
	TokenIDs     []uint32  `json:"token_ids,omitempty"`
	PromptIDs    []uint32  `json:"prompt_token_ids,omitempty"` // of a completion; a chat has them beside its choices
}

// response is what is answered, or a chunk of it.
type response struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
	// PromptIDs are of a chat.
	PromptIDs []uint32 `json:"prompt_token_ids,omitempty"`
}

func (j *job) response(object string, choices ...choice) *response {
	if choices == nil {
		choices = []choice{}
	}
	return &response{ID: j.id, Object: object, Created: j.created, Model: j.model, Choices: choices}
}

// writeWhole answers at once.
func (j *job) writeWhole(ctx context.Context, w http.ResponseWriter) {
	object := "text_completion"
	if j.chat {
		object = "chat.completion"
	}
	out := j.response(object)
	var prompt, completion, cached int
	for i := range j.parts {
		p := &j.parts[i]
		for {
			o := p.next(ctx)
			if o.First {
				cached += o.Hit.Tokens()
			}
			if o.Last {
				break
			}
		}
		prompt += len(p.prompt)
		completion += len(p.said)
		reason := j.finish()
		c := choice{Index: i, FinishReason: &reason}
		if j.chat {
			c.Message = &message{Role: "assistant", Content: &p.text}
		} else {
			c.Text = &p.text
		}
		if j.ids {
			c.TokenIDs = p.said
			p.tellPrompt(out, &c, j.chat)
		}
		out.Choices = append(out.Choices, c)
	}
	out.Usage = j.life.usageOf(prompt, completion, cached)
	writeJSON(w, http.StatusOK, out)
}

// writeStream answers token by token, as server-sent events.
func (j *job) writeStream(ctx context.Context, w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	control := http.NewResponseController(w)
	object := "text_completion"
	if j.chat {
		object = "chat.completion.chunk"
	}
	var prompt, completion, cached int
	send := func(r *response) {
		b, err := json.Marshal(r)
		if err == nil {
			_, err = fmt.Fprintf(w, "data: %s\n\n", b)
		}
		if err == nil {
			err = control.Flush()
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the client has gone
		}
	}
	for i := range j.parts {
		p := &j.parts[i]
		for n := 0; ; n++ {
			o := p.next(ctx)
			if o.First {
				cached += o.Hit.Tokens()
				prompt += len(p.prompt)
				if j.chat {
					empty := ""
					r := j.response(object, choice{Index: i, Delta: &message{Role: "assistant", Content: &empty}})
					if j.ids {
						p.tellPrompt(r, nil, true)
					}
					send(r)
				}
			}
			completion++
			text := p.piece(n)
			c := choice{Index: i}
			if j.chat {
				c.Delta = &message{Content: &text}
			} else {
				c.Text = &text
			}
			if o.Last {
				reason := j.finish()
				c.FinishReason = &reason
			}
			if j.ids {
				c.TokenIDs = p.said[n : n+1]
				if o.First && !j.chat {
					p.tellPrompt(nil, &c, false)
				}
			}
			r := j.response(object, c)
			if j.continuous {
				r.Usage = j.life.usageOf(prompt, completion, cached)
			}
			send(r)
			if o.Last {
				break
			}
		}
	}
	if j.usage {
		r := j.response(object)
		r.Usage = j.life.usageOf(prompt, completion, cached)
		send(r)
	}
	if _, err := io.WriteString(w, "data: [DONE]\n\n"); err == nil {
		_ = control.Flush() // nothing follows
	}
}
