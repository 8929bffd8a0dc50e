package request

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

// EngineForms are the fields that have the prompt in what a client sends an engine. They
// are those of a completion, of a chat completion or Anthropic's messages, and of
// OpenAI's responses.
var EngineForms = []string{"prompt", "messages", "input"}

// Fields that belong to some of the forms.
var (
	chatNames = []string{
		"documents", "add_generation_prompt", "continue_final_message", "chat_template", "reasoning_effort", "input_ids",
		"system", "thinking", "output_config",
	}
	renderedNames = []string{"mm_items", "tools", "chat_template_kwargs", "reasoning"}
	inputNames    = []string{"instructions"}
	engineNames   = []string{"lora_path", "truncate_prompt_tokens", "truncation_side", "mm_processor_kwargs", "media_io_kwargs"}
)

// engineFields are the fields of engines' bodies that make the prompt. The JSON of some
// goes on as it is: templates write out keys and numbers as they were sent.
func engineFields[T any](at func(*T) *Input) scan.Fields[T] {
	raw := func(name, what, begin string, to func(*prompt.Chat) *json.RawMessage) scan.Field[T] {
		return InputOf(name, at, func(s *scan.Scanner, in *Input) error {
			if c := s.Peek(); !strings.Contains(begin, string(c)) && c != 'n' {
				return s.Unexpected(what)
			}
			b, err := s.Raw(what)
			*to(&in.Chat) = b
			return err
		})
	}
	plain := func(name string, read func(*scan.Scanner, *Input) error) scan.Field[T] {
		return InputOf(name, at, func(s *scan.Scanner, in *Input) error {
			if s.Null() {
				return nil
			}
			return read(s, in)
		})
	}
	return scan.Fields[T]{
		raw("messages", "an array of messages", "[", func(r *prompt.Chat) *json.RawMessage { return &r.Messages }),
		raw("tools", "an array of tools", "[", func(r *prompt.Chat) *json.RawMessage { return &r.Tools }),
		raw("documents", "an array of documents", "[", func(r *prompt.Chat) *json.RawMessage { return &r.Documents }),
		raw("chat_template_kwargs", "an object", "{", func(r *prompt.Chat) *json.RawMessage { return &r.ChatTemplateKwargs }),
		InputOf("mm_items", at, readMedia),
		plain("add_generation_prompt", readAddGenerationPrompt),
		plain("continue_final_message", readContinueFinalMessage),
		plain("chat_template", func(s *scan.Scanner, in *Input) error { return s.Text(&in.Chat.ChatTemplate) }),
		plain("reasoning_effort", func(s *scan.Scanner, in *Input) error { return s.Text(&in.Chat.ReasoningEffort) }),

		raw("system", "a string or an array of blocks", `"[`, func(r *prompt.Chat) *json.RawMessage { return &r.System }),
		raw("thinking", "an object", "{", func(r *prompt.Chat) *json.RawMessage { return &r.Thinking }),
		raw("output_config", "an object", "{", func(r *prompt.Chat) *json.RawMessage { return &r.OutputConfig }),
		raw("input", "a string or an array of items", `"[`, func(r *prompt.Chat) *json.RawMessage { return &r.Input }),
		plain("instructions", func(s *scan.Scanner, in *Input) error { return s.Text(&in.Chat.Instructions) }),
		raw("reasoning", "an object", "{", func(r *prompt.Chat) *json.RawMessage { return &r.Reasoning }),

		InputOf("prompt", at, readPrompt),
		InputOf("input_ids", at, ReadTokens),
		InputOf("add_special_tokens", at, readAddSpecialTokens),
		InputOf("cache_salt", at, func(s *scan.Scanner, in *Input) error { return s.OneText(&in.Salt) }),
		InputOf("lora_path", at, func(s *scan.Scanner, in *Input) error { return s.OneText(&in.LoRAPath) }),
		InputOf("truncate_prompt_tokens", at, readTruncation),
		InputOf("truncation_side", at, readTruncationSide),
		InputOf("mm_processor_kwargs", at, readProcessing),
		InputOf("media_io_kwargs", at, readProcessing),
	}
}

func readAddGenerationPrompt(s *scan.Scanner, in *Input) error {
	in.Chat.AddGenerationPrompt = new(bool)
	return s.LaxBool(in.Chat.AddGenerationPrompt)
}

func readContinueFinalMessage(s *scan.Scanner, in *Input) error {
	return s.LaxBool(&in.Chat.ContinueFinalMessage)
}

func readAddSpecialTokens(s *scan.Scanner, in *Input) error {
	var add bool
	err := s.LaxBool(&add)
	in.NoSpecialTokens, in.Chat.AddSpecialTokens = !add, &add
	return err
}

// readTruncation reads how many tokens are left of a prompt. With -1 they are as many as
// the model takes: what is longer is no prompt for an engine otherwise.
func readTruncation(s *scan.Scanner, in *Input) error {
	if s.IsAt('-') {
		b, err := s.Raw("a whole number")
		if err == nil && string(b) != "-1" {
			err = s.Wrong("is " + refusal.Clip(string(b)) + ", it must be a whole number from 1, or -1")
		}
		return err
	}
	n, err := s.Uint(math.MaxInt64, "a whole number")
	if err == nil && n == 0 {
		return s.Wrong("is 0, which leaves nothing of the prompt")
	}
	in.Truncation.Keep = int(min(n, math.MaxInt))
	return err
}

func readTruncationSide(s *scan.Scanner, in *Input) error {
	b, err := s.StringBytes("a string")
	if err != nil {
		return err
	}
	switch string(b) {
	case "left":
		in.Truncation.Side = scorer.CutLeft
	case "right":
		in.Truncation.Side = scorer.CutRight
	default:
		return s.Wrong("is not one of left, right")
	}
	return nil
}

// readProcessing reads how media are to be processed, of which it matters whether that
// is as always.
func readProcessing(s *scan.Scanner, in *Input) error {
	if !s.IsAt('{') {
		return s.Unexpected("an object")
	}
	b, err := s.Raw("an object")
	if err != nil {
		return err
	}
	for _, c := range b[1 : len(b)-1] {
		in.processed = in.processed || !scan.IsSpace(c)
	}
	return nil
}

// CheckEngine holds the rules between the fields of an engine's body and the others,
// and says of which API a chat is.
func (in *Input) CheckEngine(f scan.Form, kind string) error {
	for _, group := range []struct {
		names []string
		to    []string
	}{
		{chatNames, []string{"messages"}}, {renderedNames, []string{"messages", "input"}}, {inputNames, []string{"input"}}, {engineNames, EngineForms},
	} {
		if !slices.Contains(group.to, kind) && f.HasAny(group.names) {
			if err := f.Exclude("it belongs to "+strings.Join(group.to, ", "), group.names...); err != nil {
				return err
			}
		}
	}
	for _, name := range f.Refused {
		if slices.Contains(refusedFields[name].beside, kind) {
			return RefusedField(name)
		}
	}
	switch {
	case kind == "messages":
		in.Chat.API = chat.APIOf(&in.Chat)
	case kind == "input":
		in.Chat.API = prompt.APIResponses
	case !slices.Contains(EngineForms, kind):
		if f.Skipped != "" {
			return refusal.Invalid(f.Skipped, "%s cannot be given: it belongs to %s", f.Skipped, strings.Join(EngineForms, ", "))
		}
		return nil
	}
	in.LoRA = cmp.Or(in.LoRA, in.LoRAPath)
	if in.processed {
		// An engine's name of a medium is then not that of the part alone.
		for i := range in.Media {
			if in.Media[i].Hash == "" {
				in.Media[i] = prompt.Medium{}
			}
		}
	}
	return nil
}

// Rendered reports whether the prompt of a request is a chat, which the template makes:
// SGLang takes the tokens of one beside it.
func (in *Input) Rendered(f scan.Form, kind string) bool {
	return kind == "input" || kind == "messages" && !f.Has("input_ids")
}

// Blame names the field that the error of a request's only prompt is about.
func (in *Input) Blame(kind string, err error) error {
	if kind == "messages" || kind == "input" {
		return ChatError(kind, in.Chat.ChatTemplate != "", err)
	}
	return err
}

// BlamePrompt names the element of a list of prompts that an error is about.
func BlamePrompt(list string, err error) error {
	e := refusal.Of(err)
	if list == "prompt" && strings.HasPrefix(e.Param, "prompts[") {
		named := *e
		named.Param = list + strings.TrimPrefix(e.Param, "prompts")
		return &named
	}
	return err
}

// ChatError blames what a chat was refused for. Argument from is the field that
// has it, messages or input, and own reports whether the template was the
// request's.
func ChatError(from string, own bool, err error) error {
	// why is what stands behind the sentinel: what wraps it is not the client's.
	why := func(sentinel error) string {
		_, w, _ := strings.Cut(err.Error(), sentinel.Error()+": ")
		return w
	}
	template := from
	if own {
		template = "chat_template"
	}
	switch {
	case errors.Is(err, chat.ErrRequest):
		where, what, _ := strings.Cut(why(chat.ErrRequest), ": ")
		return refusal.Invalid(where, "%s", what)
	case errors.Is(err, chat.ErrTooLarge):
		where, what, _ := strings.Cut(why(chat.ErrTooLarge), ": ")
		return refusal.TooLarge(where, "%s", what)
	case errors.Is(err, chat.ErrNoTemplate):
		return &refusal.Error{
			Status: http.StatusBadRequest, Code: "no_chat_template", Param: from,
			Message: "the model has no chat template, or none of that name: give chat_template, or render the chat and send prompt with add_special_tokens false",
		}
	case errors.Is(err, chat.ErrCompile) && own:
		return &refusal.Error{Status: http.StatusBadRequest, Code: "chat_template_invalid", Param: "chat_template", Message: why(chat.ErrCompile)}
	case errors.Is(err, chat.ErrRaised):
		return &refusal.Error{Status: http.StatusBadRequest, Code: "chat_refused", Param: from, Message: why(chat.ErrRaised)}
	case errors.Is(err, chat.ErrTemplate):
		return &refusal.Error{Status: http.StatusBadRequest, Code: "chat_template_failed", Param: template, Message: why(chat.ErrTemplate)}
	case errors.Is(err, chat.ErrLimit):
		return refusal.TooLarge(template, "rendering the chat reached a limit: %s", why(chat.ErrLimit))
	}
	if e := refusal.Of(err); e.Param == "prompt" {
		e.Param = from
		return e
	}
	return err
}
