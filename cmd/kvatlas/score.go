package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/terminal"
	"github.com/kvatlas/kvatlas/internal/nearest"
)

// maxPromptFile is the longest prompt read from a file or from stdin, in bytes.
// The server has a limit of its own, which is lower by default.
const maxPromptFile = 64 << 20

// scoreCall is one call of kvatlas score.
type scoreCall struct {
	server  string
	timeout time.Duration
	json    bool
	request client.ScoreRequest
}

const scoreUsage = `kvatlas score asks a server which pods hold the longest prefix of a prompt.

  kvatlas score --model MODEL "a prompt"             (or --prompt "a prompt")
  kvatlas score --model MODEL --prompt-file FILE     (- is standard input)
  kvatlas score [--model MODEL] --chat-file FILE     (a request to an engine, in JSON)
  kvatlas score --model MODEL --tokens 1,2,3
  kvatlas score --model MODEL --block-keys HEX,HEX

A prompt is sent as it is, a line end at the end of a file included. Flags may
stand before and behind it; -- ends them.

`

// score is the command.
func (p *program) score(ctx context.Context, args []string) int {
	call, err := p.readScoreCall(args)
	if err != nil {
		return p.Misuse("score", err)
	}
	c, err := p.Client("score", call.server, call.timeout)
	if err != nil {
		return p.Misuse("score", err)
	}
	defer c.Close()

	start := time.Now()
	var raw json.RawMessage
	if err := c.Call(ctx, http.MethodPost, "/v1/score", call.request, &raw); err != nil {
		return p.Fail("score", fmt.Errorf("%w%s", terminal.ServerError(call.server, err), call.sayModel(ctx, c, err)))
	}
	took := time.Since(start)
	answers, several, err := readAnswers(raw)
	if err != nil {
		return p.Fail("score", fmt.Errorf("the answer of %s cannot be read: %w", call.server, err))
	}
	if call.json {
		fmt.Fprintf(p.Stdout, "%s\n", raw)
	}
	status := cli.ExitOK
	for i := range answers {
		if indexFailed(&answers[i]) || promptUnread(&answers[i]) && call.request.Mode != "async" {
			status = cli.ExitFailed // a script must not take this for "no pod holds it"
		}
		if call.json {
			continue
		}
		if several {
			fmt.Fprintf(p.Stdout, "prompt %d\n", i)
		}
		call.write(ctx, p.Stdout, c, &answers[i], took)
	}
	return status
}

// readAnswers reads an answer, or the answers about a list of prompts.
func readAnswers(raw json.RawMessage) (_ []client.ScoreResponse, several bool, err error) {
	var list struct {
		Results []client.ScoreResponse `json:"results"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, false, err
	}
	if list.Results != nil {
		return list.Results, true, nil
	}
	var one client.ScoreResponse
	err = json.Unmarshal(raw, &one)
	return []client.ScoreResponse{one}, false, err
}

// write writes an answer for people.
func (s *scoreCall) write(ctx context.Context, out io.Writer, c *client.Client, r *client.ScoreResponse, took time.Duration) {
	late := ""
	if r.Degraded != nil && r.Degraded.Reason == tokenizationBudget {
		late = s.lateness(s.models(ctx, c))
	}
	writeScore(out, s.request.Model, r, took, late)
	if indexFailed(r) {
		return
	}
	if names := s.unregistered(ctx, c, r); len(names) > 0 {
		fmt.Fprintf(out, "not registered: %s (GET /v1/pods lists the pods that are)\n", terminal.Printable(strings.Join(names, ", ")))
	}
}

// asideBudget bounds what is asked beside the score: the answer is there already.
const asideBudget = 2 * time.Second

// serverModels are the names of models that a server knows.
type serverModels struct {
	registered []string // of pods, and of what is indexed
	tokenizers []string // of tokenizers in memory
}

// models asks the server which models it knows; nil where it does not say.
func (s *scoreCall) models(ctx context.Context, c *client.Client) *serverModels {
	ctx, cancel := context.WithTimeout(ctx, asideBudget)
	defer cancel()
	var out struct {
		Models     []client.Model `json:"models"` // always there
		Tokenizers []struct {
			Model string `json:"model"`
		} `json:"tokenizers"`
	}
	if err := c.Call(ctx, http.MethodGet, "/v1/models", nil, &out); err != nil || out.Models == nil {
		return nil
	}
	m := &serverModels{}
	for _, indexed := range out.Models {
		m.registered = append(m.registered, indexed.Name)
	}
	for _, t := range out.Tokenizers {
		m.tokenizers = append(m.tokenizers, t.Model)
	}
	pods, err := c.Pods(ctx)
	if err != nil {
		return nil
	}
	for i := range pods {
		m.registered = slices.Concat(m.registered, []string{pods[i].Model}, pods[i].Aliases, pods[i].Adapters)
	}
	return m
}

// compare says which name was asked for, the nearest one that the server knows, and which it
// knows.
func (m *serverModels) compare(asked string) string {
	names := slices.Concat(m.registered, m.tokenizers)
	slices.Sort(names)
	names = slices.Compact(names)
	text := fmt.Sprintf("\n--model is %q", asked)
	switch {
	case len(names) == 0:
		return text + "; the server has no model yet"
	case slices.Contains(names, asked):
		return text + ", which the server has: its tokenizer alone is missing"
	}
	const most = 8
	text += nearest.Clause(asked, names) + "; the server has " + terminal.Printable(strings.Join(names[:min(len(names), most)], ", "))
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// sayModel says, of an answer that there is no tokenizer, which name was asked for and which
// models the server has. It is empty of any other error.
func (s *scoreCall) sayModel(ctx context.Context, c *client.Client, err error) string {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || s.request.Model == "" || e.Code != "unknown_model" && e.Code != "tokenizer_unavailable" {
		return ""
	}
	if m := s.models(ctx, c); m != nil {
		return m.compare(s.request.Model)
	}
	return fmt.Sprintf("\n--model is %q", s.request.Model)
}

// lateness says why a prompt was not tokenized in time, as far as the models that the server
// knows show it; m is nil where it does not say.
func (s *scoreCall) lateness(m *serverModels) string {
	const again = ": ask again, or with --mode sync"
	model := s.request.Model
	switch {
	case m == nil:
		return "the prompt was not tokenized in time" + again + ", which waits"
	case slices.Contains(m.tokenizers, model) && (s.request.Body != nil || s.request.Chat != nil):
		return "the tokenizer is loaded, and the chat was not rendered and tokenized in time (the model's chat template is compiled at its first use)" + again
	case slices.Contains(m.tokenizers, model):
		return "the tokenizer is loaded, and the prompt was not tokenized in time" + again
	case slices.Contains(m.registered, model):
		return "the model's tokenizer is not loaded yet" + again + ", which waits for it, or says why there is none (it takes seconds; serve --preload loads it at the start)"
	}
	return "the server does not know this model: no pod is registered for it, and the server still looks for its tokenizer" + again + ", which waits for that, and says why there is none" + m.compare(model)
}

// unregistered are those of the pods asked for that score 0 because no such pod is
// registered; none where that cannot be found out.
func (s *scoreCall) unregistered(ctx context.Context, c *client.Client, r *client.ScoreResponse) (names []string) {
	for _, name := range s.request.Pods {
		if score, listed := r.Scores[name]; listed && score == 0 && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, asideBudget)
	defer cancel()
	pods, err := c.Pods(ctx)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return slices.ContainsFunc(pods, func(p client.Pod) bool { return p.Name == name })
	})
}

func (p *program) readScoreCall(args []string) (*scoreCall, error) {
	fs := flag.NewFlagSet("kvatlas score", flag.ContinueOnError)
	call := &scoreCall{server: cmp.Or(p.Getenv("KVATLAS_SERVER"), cli.DefaultServer)}
	r := &call.request
	fs.StringVar(&call.server, "server", call.server, "the server's `URL` [$KVATLAS_SERVER]")
	fs.DurationVar(&call.timeout, "timeout", 30*time.Second, "how long to wait for the answer")
	fs.BoolVar(&call.json, "json", false, "write the server's JSON as it is")
	fs.StringVar(&r.Model, "model", "", "the `model`'s name (required, unless --chat-file has it)")
	fs.StringVar(&r.Prompt, "prompt", "", "the prompt, a `TEXT`; the same as the argument")
	promptFile := fs.String("prompt-file", "", "read the prompt from `FILE`, - is standard input")
	chatFile := fs.String("chat-file", "", "read the prompt from `FILE`, the JSON of a request to an engine (a chat completion, a completion, Anthropic's messages, OpenAI's responses) or an array of messages, - is standard input")
	tokens := fs.String("tokens", "", "the prompt's token ids, a `LIST` with commas")
	keys := fs.String("block-keys", "", "the prompt's block keys, a `LIST` of 16 hex digits each")
	pods := fs.String("pods", "", "rank these pods only, a `LIST` with commas")
	fs.IntVar(&r.Top, "top", 0, "show the first `N` pods of the ranking; 0 is all")
	fs.StringVar(&r.Strategy, "strategy", "", "how held blocks become a score, `longest_prefix|highest_block|coverage`; the server's default when empty")
	fs.StringVar(&r.LoRA, "lora", "", "`NAME` of the LoRA adapter")
	fs.StringVar(&r.CacheSalt, "cache-salt", "", "the cache `SALT`")
	fs.StringVar(&r.Mode, "mode", "", "how to wait for the tokens of a text, `wait|async|sync`")
	fs.DurationVar(&r.Wait, "wait", 0, "how long the server may wait for the tokens; 0 is its default")
	fs.BoolVar(&r.NoSpecialTokens, "no-special-tokens", false, "leave out the tokenizer's special tokens around a text")
	fs.BoolVar(&r.EarlyExit, "early-exit", false, "stop once the best pod is known")
	fs.BoolVar(&r.Explain, "explain", false, "show the holders of each block and the time of each stage")

	words, err := p.ReadFlags(fs, args, scoreUsage)
	if err != nil {
		return nil, err
	}
	if call.timeout <= 0 {
		return nil, fmt.Errorf("--timeout is %v, it must be positive", call.timeout)
	}
	if r.Top < 0 {
		return nil, fmt.Errorf("--top is %d, it must not be negative", r.Top)
	}
	if r.Wait < 0 {
		return nil, fmt.Errorf("--wait is %v, it must not be negative", r.Wait)
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if given["pods"] {
		r.Pods = cli.SplitList(*pods)
	}
	if r.Model == "" && *chatFile == "" { // which may name it
		return nil, errors.New("--model is missing")
	}
	if err := p.readPrompt(r, words, given, *promptFile, *chatFile, *tokens, *keys); err != nil {
		return nil, err
	}
	if r.Model == "" {
		return nil, errors.New("--model is missing, and --chat-file names no model")
	}
	return call, nil
}

// readPrompt puts the prompt into r, in the one form in which it is given.
func (p *program) readPrompt(r *client.ScoreRequest, words []string, given map[string]bool, file, chatFile, tokens, keys string) (err error) {
	forms := len(words)
	for _, name := range []string{"prompt", "prompt-file", "chat-file", "tokens", "block-keys"} {
		if given[name] {
			forms++
		}
	}
	switch {
	case forms == 0:
		return errors.New("no prompt: give it as an argument, or as --prompt, --prompt-file, --chat-file, --tokens or --block-keys")
	case len(words) > 1:
		return fmt.Errorf("%d arguments: put the prompt in quotes", len(words))
	case forms > 1:
		return errors.New("more than one prompt: give an argument, --prompt, --prompt-file, --chat-file, --tokens or --block-keys")
	case given["prompt-file"]:
		b, err := p.readPromptFile("prompt-file", file)
		r.Prompt = string(b)
		return err
	case given["chat-file"]:
		b, err := p.readPromptFile("chat-file", chatFile)
		if err != nil {
			return err
		}
		return readChat(r, b)
	case given["tokens"]:
		r.Tokens, err = cli.ParseTokens(tokens)
		return err
	case given["block-keys"]:
		r.BlockKeys = cli.SplitList(keys)
	case !given["prompt"]:
		r.Prompt = words[0]
	}
	return nil
}

func (p *program) readPromptFile(setting, name string) ([]byte, error) {
	in := p.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", setting, err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxPromptFile+1))
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", setting, err)
	}
	if len(b) > maxPromptFile {
		return nil, fmt.Errorf("--%s: the prompt is longer than %d bytes", setting, maxPromptFile)
	}
	return b, nil
}

// readChat reads the JSON of a request to an engine, which goes to the server as it is,
// or an array of messages. The former may name a model.
func readChat(r *client.ScoreRequest, b []byte) error {
	if b = bytes.TrimSpace(b); bytes.HasPrefix(b, []byte("[")) {
		r.Chat = &client.Chat{}
		if err := json.Unmarshal(b, &r.Chat.Messages); err != nil {
			return fmt.Errorf("--chat-file: it is no JSON of messages: %w", err)
		}
		return nil
	}
	var request map[string]json.RawMessage
	if err := json.Unmarshal(b, &request); err != nil {
		return fmt.Errorf("--chat-file: it is no JSON of a request: %w", err)
	}
	given := func(name string) bool { return len(request[name]) > 0 && string(request[name]) != "null" }
	if !given("messages") && !given("input") && !given("prompt") {
		return errors.New("--chat-file: there are no messages in it, and no input or prompt")
	}
	var model string
	if given("model") {
		if err := json.Unmarshal(request["model"], &model); err != nil {
			return fmt.Errorf("--chat-file: its model is no text: %w", err)
		}
	}
	r.Body, r.Model = b, cmp.Or(r.Model, model)
	return nil
}
