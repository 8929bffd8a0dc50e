// Command simload measures what simulated engines cost: the figure of docs/sim.md.
//
//	go build -o bin/kvatlas ./cmd/kvatlas
//	go run ./bench/simload --kvatlas bin/kvatlas
//
// It starts kvatlas sim as a process of its own. It sends it streamed completions at a
// steady rate, whether or not those before are answered, and says what the process took.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/program"
	"github.com/kvatlas/kvatlas/internal/cputime"
)

func main() {
	program.Main("simload", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) })
}

// options are what the command line says.
type options struct {
	kvatlas, engine      string
	pods, prompt, answer int
	rate, speed          float64
	length               time.Duration
	port                 int
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o := options{}
	fs := flag.NewFlagSet("simload", flag.ContinueOnError)
	fs.StringVar(&o.kvatlas, "kvatlas", "bin/kvatlas", "the program to measure")
	fs.StringVar(&o.engine, "engine", "vllm", "whose engines: vllm, sglang or trtllm")
	fs.IntVar(&o.pods, "pods", 64, "how many engines")
	fs.Float64Var(&o.rate, "rate", 100, "requests a second")
	fs.Float64Var(&o.speed, "speed", 1, "how many times faster than real ones they are")
	fs.IntVar(&o.prompt, "prompt", 2500, "tokens of a prompt")
	fs.IntVar(&o.answer, "answer", 100, "tokens of an answer")
	fs.DurationVar(&o.length, "for", 30*time.Second, "for how long requests are sent")
	fs.IntVar(&o.port, "port", 20000, "first of the ports that the engines take")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch {
	case o.pods < 1 || o.rate <= 0 || o.answer < 1 || o.length <= 0:
		return errors.New("--pods, --rate, --answer and --for must be above 0")
	case o.prompt < 2*ownTokens:
		return fmt.Errorf("--prompt is %d, it must be at least %d", o.prompt, 2*ownTokens)
	}
	c, err := startSim(ctx, &o)
	if err != nil {
		return err
	}
	defer c.Stop()
	before, err := c.Usage()
	if err != nil {
		return err
	}
	ours := cputime.Process()
	l := newLoad(&o)
	took := l.send(ctx)
	after, err := c.Usage()
	if err != nil {
		return errors.Join(err, errors.New("the engines have gone"))
	}
	ours = cputime.Process() - ours
	t := &l.tally
	fmt.Fprintf(out, "%d %s pods at speed %g, %d requests in %.1f s, prompts of %d tokens, answers of %d, %d CPUs\n",
		o.pods, o.engine, o.speed, t.sent, took.Seconds(), o.prompt, o.answer, runtime.NumCPU())
	fmt.Fprintf(out, "answered: %d, sent at %.1f a second, %.0f streamed tokens a second, %d failed%s\n",
		t.answered, float64(t.sent)/o.length.Seconds(), float64(t.chunks)/took.Seconds(), t.failed, t.firstError())
	fmt.Fprintf(out, "first token: p50 %s, p99 %s; whole answer: p50 %s, p99 %s; sent late by: p50 %s, p99 %s\n",
		quantile(t.first, .5), quantile(t.first, .99), quantile(t.whole, .5), quantile(t.whole, .99), quantile(t.late, .5), quantile(t.late, .99))
	fmt.Fprintf(out, "the engines: %.2f cores, %d MB at most; this program: %.2f cores\n", (after.CPU-before.CPU).Seconds()/took.Seconds(), after.Peak>>20, ours.Seconds()/took.Seconds())
	if t.failed > 0 {
		return fmt.Errorf("%d requests failed", t.failed)
	}
	return nil
}

// ownTokens is how many tokens at the end of a prompt are its own; systems is how many
// beginnings prompts have.
const (
	ownTokens = 256
	systems   = 40
)

// load sends requests.
type load struct {
	o       *options
	client  *http.Client
	systems []string // the tokens of beginnings, with commas

	mu    sync.Mutex // protects the tally
	tally tally
}

func newLoad(o *options) *load {
	l := &load{o: o, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, WriteBufferSize: 64 << 10, ReadBufferSize: 16 << 10}}}
	for s := range systems {
		l.systems = append(l.systems, tokenList(uint64(s)<<32, o.prompt-ownTokens))
	}
	return l
}

// send sends requests for the length of the run, and returns how long it was until the
// last was answered.
func (l *load) send(ctx context.Context) time.Duration {
	defer l.client.CloseIdleConnections()
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var open sync.WaitGroup
	for n := 0; ; n++ {
		due := start.Add(time.Duration(float64(n) / l.o.rate * float64(time.Second)))
		if due.Sub(start) >= l.o.length {
			break
		}
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			open.Wait()
			return time.Since(start)
		}
		open.Go(func() { l.ask(ctx, n, due) })
	}
	open.Wait()
	return time.Since(start)
}

// ask sends the n-th request, and reads its answer.
func (l *load) ask(ctx context.Context, n int, due time.Time) {
	var body strings.Builder
	fmt.Fprintf(&body, `{"model":"m","max_tokens":%d,"stream":true,"stream_options":{"include_usage":true},"prompt":[%s,%s]}`,
		l.o.answer, l.systems[n%systems], tokenList(uint64(n)+1, ownTokens))
	sent := time.Now()
	r := result{late: sent.Sub(due)}
	r.first, r.chunks, r.err = l.read(ctx, n%l.o.pods, body.String(), sent)
	r.whole = time.Since(sent)
	if r.err == nil && r.chunks != l.o.answer {
		r.err = fmt.Errorf("an answer of %d tokens, %d were asked for", r.chunks, l.o.answer)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tally.add(r)
}

// read reads a stream, and counts its chunks: it parses none, since that would cost more
// than to make them.
func (l *load) read(ctx context.Context, pod int, body string, sent time.Time) (first time.Duration, chunks int, err error) {
	url := fmt.Sprintf("http://127.0.0.1:%d/v1/completions", l.o.port+pod)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	var s scanner
	buf := make([]byte, 8<<10)
	for {
		n, err := resp.Body.Read(buf)
		if s.scan(buf[:n]); first == 0 && s.messages > 0 {
			first = time.Since(sent)
		}
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return first, 0, err
		case err == nil:
		case resp.StatusCode != http.StatusOK:
			return first, 0, errors.New(resp.Status)
		default:
			return first, s.messages - 2, nil // the usage and [DONE]
		}
	}
}
