package server

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

// What a client sends an engine has its prompt in one of these fields: a completion, a
// chat completion or Anthropic's messages, OpenAI's responses.
var engineForms = []string{"prompt", "messages", "input"}

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
func engineFields[T any](at func(*T) *input) fields[T] {
	raw := func(name, what, begin string, to func(*prompt.Chat) *json.RawMessage) field[T] {
		return inputOf(name, at, func(s *scanner, in *input) error {
			if s.pos == len(s.data) || !strings.Contains(begin, string(s.data[s.pos])) && !s.at('n') {
				return s.unexpected(what)
			}
			b, err := s.raw(what)
			*to(&in.chat) = b
			return err
		})
	}
	plain := func(name string, read func(*scanner, *input) error) field[T] {
		return inputOf(name, at, func(s *scanner, in *input) error {
			if s.null() {
				return nil
			}
			return read(s, in)
		})
	}
	return fields[T]{
		raw("messages", "an array of messages", "[", func(r *prompt.Chat) *json.RawMessage { return &r.Messages }),
		raw("tools", "an array of tools", "[", func(r *prompt.Chat) *json.RawMessage { return &r.Tools }),
		raw("documents", "an array of documents", "[", func(r *prompt.Chat) *json.RawMessage { return &r.Documents }),
		raw("chat_template_kwargs", "an object", "{", func(r *prompt.Chat) *json.RawMessage { return &r.ChatTemplateKwargs }),
		inputOf("mm_items", at, readMedia),
		plain("add_generation_prompt", readAddGenerationPrompt),
		plain("continue_final_message", readContinueFinalMessage),
		plain("chat_template", func(s *scanner, in *input) error { return s.text(&in.chat.ChatTemplate) }),
		plain("reasoning_effort", func(s *scanner, in *input) error { return s.text(&in.chat.ReasoningEffort) }),

		raw("system", "a string or an array of blocks", `"[`, func(r *prompt.Chat) *json.RawMessage { return &r.System }),
		raw("thinking", "an object", "{", func(r *prompt.Chat) *json.RawMessage { return &r.Thinking }),
		raw("output_config", "an object", "{", func(r *prompt.Chat) *json.RawMessage { return &r.OutputConfig }),
		raw("input", "a string or an array of items", `"[`, func(r *prompt.Chat) *json.RawMessage { return &r.Input }),
		plain("instructions", func(s *scanner, in *input) error { return s.text(&in.chat.Instructions) }),
		raw("reasoning", "an object", "{", func(r *prompt.Chat) *json.RawMessage { return &r.Reasoning }),

		inputOf("prompt", at, readPrompt),
		inputOf("input_ids", at, readTokens),
		inputOf("add_special_tokens", at, readAddSpecialTokens),
		inputOf("cache_salt", at, func(s *scanner, in *input) error { return s.oneText(&in.salt) }),
		inputOf("lora_path", at, func(s *scanner, in *input) error { return s.oneText(&in.loraPath) }),
		inputOf("truncate_prompt_tokens", at, readTruncation),
		inputOf("truncation_side", at, readTruncationSide),
		inputOf("mm_processor_kwargs", at, readProcessing),
		inputOf("media_io_kwargs", at, readProcessing),
	}
}

func readAddGenerationPrompt(s *scanner, in *input) error {
	in.chat.AddGenerationPrompt = new(bool)
	return s.laxBool(in.chat.AddGenerationPrompt)
}

func readContinueFinalMessage(s *scanner, in *input) error {
	return s.laxBool(&in.chat.ContinueFinalMessage)
}

func readAddSpecialTokens(s *scanner, in *input) error {
	var add bool
	err := s.laxBool(&add)
	in.noSpecialTokens, in.chat.AddSpecialTokens = !add, &add
	return err
}

// laxBool reads true or false in the words that engines take for them, too (pydantic's).
func (s *scanner) laxBool(dst *bool) error {
	if !s.at('"') && !s.at('0') && !s.at('1') {
		return s.bool(dst)
	}
	raw, err := s.raw("true or false")
	if err != nil {
		return err
	}
	yes, no := []string{"1", "true", "t", "yes", "y", "on"}, []string{"0", "false", "f", "no", "n", "off"}
	switch word := strings.ToLower(strings.Trim(string(raw), `"`)); {
	case slices.Contains(yes, word):
		*dst = true
	case slices.Contains(no, word):
		*dst = false
	default:
		return s.wrong("is " + clipText(string(raw)) + ", it takes true or false")
	}
	return nil
}

// oneText reads a string, or a list of one, which SGLang takes for one prompt.
func (s *scanner) oneText(dst *string) error {
	if !s.at('[') {
		return s.text(dst)
	}
	n := 0
	return s.array("a string", math.MaxInt, func() error {
		if n++; n > 1 {
			return s.wrong("is one too many: all prompts of a request have one")
		}
		if s.null() {
			return nil
		}
		return s.text(dst)
	})
}

// readTruncation reads how many tokens are left of a prompt. -1 is as many as the model
// takes: what is longer is no prompt for an engine otherwise.
func readTruncation(s *scanner, in *input) error {
	if s.at('-') {
		b, err := s.raw("a whole number")
		if err == nil && string(b) != "-1" {
			err = s.wrong("is " + clipText(string(b)) + ", it must be a whole number from 1, or -1")
		}
		return err
	}
	n, err := s.uint(math.MaxInt64, "a whole number")
	if err == nil && n == 0 {
		return s.wrong("is 0, which leaves nothing of the prompt")
	}
	in.cut.Keep = int(min(n, math.MaxInt))
	return err
}

func readTruncationSide(s *scanner, in *input) error {
	b, err := s.string("a string")
	if err != nil {
		return err
	}
	switch string(b) {
	case "left":
		in.cut.Side = scorer.CutLeft
	case "right":
		in.cut.Side = scorer.CutRight
	default:
		return s.wrong("is none of left, right")
	}
	return nil
}

// readProcessing reads how media are to be processed, of which it matters whether that
// is as always.
func readProcessing(s *scanner, in *input) error {
	if !s.at('{') {
		return s.unexpected("an object")
	}
	b, err := s.raw("an object")
	if err != nil {
		return err
	}
	for _, c := range b[1 : len(b)-1] {
		in.processed = in.processed || !isSpace(c)
	}
	return nil
}

// checkEngine holds the rules between the fields of an engine's body and the others,
// and says of which API a chat is.
func (in *input) checkEngine(f form, kind string) error {
	for _, group := range []struct {
		names []string
		to    []string
	}{
		{chatNames, []string{"messages"}}, {renderedNames, []string{"messages", "input"}}, {inputNames, []string{"input"}}, {engineNames, engineForms},
	} {
		if !slices.Contains(group.to, kind) {
			if err := f.exclude("it belongs to "+strings.Join(group.to, ", "), group.names...); err != nil {
				return err
			}
		}
	}
	for _, name := range f.refused {
		if slices.Contains(refusedFields[name].beside, kind) {
			return refusedField(name)
		}
	}
	switch {
	case kind == "messages":
		in.chat.API = chat.APIOf(&in.chat)
	case kind == "input":
		in.chat.API = prompt.APIResponses
	case !slices.Contains(engineForms, kind):
		if f.skipped != "" {
			return invalid(f.skipped, "%s cannot be given: it belongs to %s", f.skipped, strings.Join(engineForms, ", "))
		}
		return nil
	}
	if in.lora == "" {
		in.lora = in.loraPath
	}
	if in.processed {
		// An engine's name of a medium is then not that of the part alone.
		for i := range in.media {
			if in.media[i].Hash == "" {
				in.media[i] = prompt.Medium{}
			}
		}
	}
	return nil
}

// rendered reports whether the prompt of a request is a chat, which the template makes:
// SGLang takes the tokens of one beside it.
func (in *input) rendered(f form, kind string) bool {
	return kind == "input" || kind == "messages" && !f.has("input_ids")
}

// blame names the field that the error of a request's only prompt is about.
func (in *input) blame(kind string, err error) error {
	if kind == "messages" || kind == "input" {
		return chatError(kind, in.chat.ChatTemplate != "", err)
	}
	return err
}

// blamePrompt names the element of a list of prompts that an error is about.
func blamePrompt(list string, err error) error {
	e := asAPIError(err)
	if list == "prompt" && strings.HasPrefix(e.param, "prompts[") {
		named := *e
		named.param = list + strings.TrimPrefix(e.param, "prompts")
		return &named
	}
	return err
}

// chatError blames what a chat was refused for. from is the field that has it,
// messages or input; own reports whether the template was the request's.
func chatError(from string, own bool, err error) error {
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
		return invalid(where, "%s", what)
	case errors.Is(err, chat.ErrTooLarge):
		where, what, _ := strings.Cut(why(chat.ErrTooLarge), ": ")
		return tooLarge(where, "%s", what)
	case errors.Is(err, chat.ErrNoTemplate):
		return &apiError{
			status: http.StatusBadRequest, code: "no_chat_template", param: from,
			message: "the model has no chat template, or none of that name: give chat_template, or render the chat and send prompt with add_special_tokens false",
		}
	case errors.Is(err, chat.ErrCompile) && own:
		return &apiError{status: http.StatusBadRequest, code: "chat_template_invalid", param: "chat_template", message: why(chat.ErrCompile)}
	case errors.Is(err, chat.ErrRaised):
		return &apiError{status: http.StatusBadRequest, code: "chat_refused", param: from, message: why(chat.ErrRaised)}
	case errors.Is(err, chat.ErrTemplate):
		return &apiError{status: http.StatusBadRequest, code: "chat_template_failed", param: template, message: why(chat.ErrTemplate)}
	case errors.Is(err, chat.ErrLimit):
		return tooLarge(template, "rendering the chat reached a limit: %s", why(chat.ErrLimit))
	}
	if e := asAPIError(err); e.param == "prompt" {
		e.param = from
		return e
	}
	return err
}
