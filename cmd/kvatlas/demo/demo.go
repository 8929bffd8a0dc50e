// Package demo shows what kvatlas does, on a running server and with nothing
// made up. It plays the part of three engines that hold different prefixes of
// one conversation in their KV cache. Then it plays that of a scheduler which
// asks where the next turn of that conversation should go.
//
// It speaks to the server over HTTP alone, as engines and schedulers do.
package demo

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvatlas/kvatlas/client"
)

// Model is the model whose tokenizer the demo needs.
const Model = "meta-llama/Meta-Llama-3-8B-Instruct"

// conversation is a chat in the form in which Llama 3 reads it, up to the
// point where the model is to answer. Its first special token is the
// tokenizer's to add.
//
//go:embed conversation.txt
var conversation string

// endOfTurn is Llama 3's special token behind each turn. Special tokens are cut
// out of a text before anything else. So the tokens of a whole number of turns
// are a prefix of the tokens of more of them.
const endOfTurn = "<|eot_id|>"

// otherQuestion is the first question of another conversation under the same
// system prompt.
const otherQuestion = `<|start_header_id|>user<|end_header_id|>

notifier sends some webhooks twice since this morning. Where do I look first?` + endOfTurn + `<|start_header_id|>assistant<|end_header_id|>

`

// hotRuns is how many times the prompt is asked for once it is known.
const hotRuns = 20

// pod is one of the engines that the demo plays.
type pod struct {
	name  string
	story string
	text  string // what its cache holds

	blocks, tokens int // as the server counts them
}

// pods are the three engines.
func pods() []pod {
	turns := strings.SplitAfter(conversation, endOfTurn)
	upTo := func(n int) string { return strings.Join(turns[:n], "") }
	return []pod{
		{name: "10.0.0.1:8000", story: "another chat with this system prompt", text: upTo(1) + otherQuestion},
		{name: "10.0.0.2:8000", story: "this chat up to its second answer", text: upTo(5)},
		{name: "10.0.0.3:8000", story: "this chat up to its fourth answer", text: upTo(9)},
	}
}

// Config says where the demo runs.
type Config struct {
	// Client calls the server, which listens at URL.
	Client *client.Client
	URL    string
	// Program is how the user starts kvatlas, for the lines to try.
	Program string
	// Out is where the demo says what it does.
	Out io.Writer
}

// Run plays the demo. It puts the files that its last lines name into a folder,
// which it returns (also beside an error, unless empty). The caller removes the
// folder when the server ends.
func Run(ctx context.Context, cfg Config) (files string, err error) {
	d := &run{Config: cfg, ctx: ctx, pods: pods()}
	steps := []func() error{d.greet, d.tokenize, d.register, d.fill, d.rank}
	for i, step := range steps {
		d.mark = fmt.Sprintf("[%d/%d]", i+1, len(steps))
		if err := step(); err != nil {
			fmt.Fprintln(d.Out)
			return d.files, explain(err)
		}
	}
	d.farewell()
	return d.files, nil
}

// explain adds what to do about the errors that a fresh checkout may meet.
func explain(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code == "unknown_model" {
		return fmt.Errorf("demo: there is no tokenizer for %s: run scripts/fetch-tokenizers.sh, which prepares .cache/tokenizers, or name another directory with --tokenizers: %w", Model, err)
	}
	return fmt.Errorf("demo: %w", err)
}

// run is one run of the demo.
type run struct {
	Config
	ctx   context.Context
	mark  string // [step/steps]
	files string // the folder of files to try

	pods   []pod
	tokens [][]uint32 // by pod
}

func (d *run) say(format string, args ...any) {
	fmt.Fprintf(d.Out, d.mark+" "+format+"\n", args...)
}

// doing says what begins; the func that it returns ends the line with the time
// that it took.
func (d *run) doing(format string, args ...any) (done func()) {
	start := time.Now()
	fmt.Fprintf(d.Out, d.mark+" "+format+" ... ", args...)
	return func() { fmt.Fprintln(d.Out, milliseconds(time.Since(start))) }
}

func (d *run) greet() error {
	h, err := d.Client.Health(d.ctx)
	if err != nil {
		return err
	}
	d.say("kvatlas %s serves on %s, index in %s", h.Version, d.URL, h.Backend)
	return nil
}

func (d *run) tokenize() error {
	done := d.doing("loading the tokenizer of %s and tokenizing what the pods hold", Model)
	if err := d.awaitTokenizer(); err != nil {
		return err
	}
	for i := range d.pods {
		r, err := d.tokensOf(d.pods[i].text)
		if err != nil {
			return err
		}
		if !r.Exact {
			return fmt.Errorf("the tokens of %s are not exact", d.pods[i].name)
		}
		d.tokens = append(d.tokens, r.Tokens)
		d.pods[i].tokens = r.Count
	}
	done()
	return nil
}

const (
	// loadPatience is how long the demo waits for the tokenizer, which takes a
	// second to load, and more where others keep the machine busy.
	loadPatience = 2 * time.Minute
	// loadNote is after how long without a tokenizer the demo says so.
	loadNote = 3 * time.Second
)

// awaitTokenizer waits for the tokenizer by scores. A score does without one that is still loading,
// where tokens would be refused, and the server would log an error.
func (d *run) awaitTokenizer() error {
	told := false
	for start := time.Now(); ; {
		r, err := d.Client.Score(d.ctx, client.ScoreRequest{Model: Model, Prompt: "a"})
		if err != nil {
			return err
		}
		took := time.Since(start)
		if r.Tokens.Exact || took > loadPatience {
			return nil // or what tokenizes next has the reason
		}
		if took > loadNote && !told {
			told = true
			fmt.Fprintf(d.Out, "\n      the tokenizer is still loading, which takes a minute on a busy machine ... ")
		}
		select {
		case <-d.ctx.Done():
			return d.ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// tokensOf asks again where the server gave up on the time that a request may
// take: it goes on loading the tokenizer behind.
func (d *run) tokensOf(text string) (*client.TokenizeResponse, error) {
	for deadline := time.Now().Add(loadPatience); ; {
		r, err := d.Client.Tokenize(d.ctx, client.TokenizeRequest{Model: Model, Prompt: text})
		e, refused := errors.AsType[*client.Error](err)
		if !refused || !e.Temporary() || time.Now().After(deadline) {
			return r, err
		}
		select {
		case <-d.ctx.Done():
			return nil, d.ctx.Err()
		case <-time.After(max(e.RetryAfter, 100*time.Millisecond)):
		}
	}
}

func (d *run) register() error {
	done := d.doing("registering %d pods", len(d.pods))
	for _, p := range d.pods {
		if err := d.Client.RegisterPod(d.ctx, client.Pod{Name: p.name, Model: Model, Engine: "vllm"}); err != nil {
			return err
		}
	}
	done()
	return nil
}

func (d *run) fill() error {
	done := d.doing("telling the index which blocks are in each pod's KV cache")
	for i := range d.pods {
		p := &d.pods[i]
		n, err := d.Client.Blocks(d.ctx, client.BlocksRequest{Op: client.OpAdd, Model: Model, Pod: p.name, Tokens: d.tokens[i]})
		if err != nil {
			return err
		}
		p.blocks = n
	}
	done()
	d.table("pod\tholds\ttokens\tblocks\t", func(w io.Writer) {
		for _, p := range d.pods {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t\n", p.name, p.story, p.tokens, p.blocks)
		}
	})
	return nil
}

func (d *run) rank() error {
	if err := d.writeFiles(); err != nil {
		return err
	}
	done := d.doing("asking %d times which pod should get the chat's next turn", 1+hotRuns)
	ask := func() (*client.ScoreResponse, time.Duration, error) {
		start := time.Now()
		r, err := d.Client.Score(d.ctx, client.ScoreRequest{Model: Model, Prompt: conversation, Mode: "sync"})
		return r, time.Since(start), err
	}
	cold, coldTook, err := ask()
	if err != nil {
		return err
	}
	var hot *client.ScoreResponse
	times := make([]time.Duration, hotRuns)
	for i := range times {
		if hot, times[i], err = ask(); err != nil {
			return err
		}
	}
	slices.Sort(times)
	done()
	fmt.Fprintf(d.Out, "      (a prompt of %d bytes, %d tokens, %d blocks of %d tokens)\n", len(conversation), cold.Tokens.Total, cold.Blocks.Total, cold.Blocks.Size)
	d.table("pod\tscore\tblocks\ttokens\tof the prompt\t", func(w io.Writer) {
		for _, name := range cold.Ranking() {
			m := cold.Matched[name]
			share := 100 * float64(m.Tokens) / float64(max(cold.Tokens.Total, 1))
			fmt.Fprintf(w, "%s\t%g\t%d\t%d\t%.1f %%\t\n", name, cold.Scores[name], m.Blocks, m.Tokens, share)
		}
	})
	line := func(what string, t time.Duration, r *client.ScoreResponse) {
		fmt.Fprintf(d.Out, "      %-5s %10s   tokens from %s\n", what, milliseconds(t), r.Tokens.Source)
	}
	line("cold", coldTook, cold)
	line("hot", times[len(times)/2], hot)
	fmt.Fprintf(d.Out, "      (whole requests over HTTP; hot is the median of %d)\n", hotRuns)
	if cold.Best == "" {
		return errors.New("no pod scores above 0, though three hold a prefix of the prompt")
	}
	fmt.Fprintf(d.Out, "      best: %s, which recomputes %d of %d tokens\n", cold.Best, cold.Tokens.Total-cold.Matched[cold.Best].Tokens, cold.Tokens.Total)
	return nil
}

// writeFiles puts the prompt, and the body of its request, into files.
func (d *run) writeFiles() (err error) {
	body, err := json.Marshal(client.ScoreRequest{Model: Model, Prompt: conversation})
	if err != nil {
		return err
	}
	if d.files, err = os.MkdirTemp("", "kvatlas-demo-"); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(d.files, requestFile), body, 0o644),
		os.WriteFile(filepath.Join(d.files, promptFile), []byte(conversation), 0o644),
	)
}

// The files to try.
const (
	requestFile = "request.json"
	promptFile  = "prompt.txt"
)

func (d *run) farewell() {
	fmt.Fprintf(d.Out, `
The server goes on at %[1]s until Ctrl-C. Try in another terminal:

  curl -s %[1]s/v1/score -H 'Content-Type: application/json' --data @%[2]s

  %[3]s score --server %[1]s --model %[4]s --explain --prompt-file %[5]s
`, d.URL, filepath.Join(d.files, requestFile), d.Program, Model, filepath.Join(d.files, promptFile))
}

// table writes an indented table; fill writes its rows, cells ended by tabs.
func (d *run) table(header string, fill func(io.Writer)) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, header)
	fill(w)
	_ = w.Flush() // a strings.Builder takes everything
	fmt.Fprintln(d.Out)
	for line := range strings.Lines(b.String()) {
		fmt.Fprintln(d.Out, "      "+strings.TrimRight(line, " \n"))
	}
	fmt.Fprintln(d.Out)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1e3)
}
