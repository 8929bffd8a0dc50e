// Command flood measures what hostile clients do to a server, and to other clients meanwhile: the figures of
// docs/performance.md, "Under attack".
//
//	go build -o bin/kvatlas ./cmd/kvatlas
//	go run ./bench/flood --kvatlas bin/kvatlas --tokenizers .cache/tokenizers
//
// Each flood gets a server of its own, by default settings and with the index in
// memory. All its requests are sent at once. From before the first until the last is
// answered, a prober asks for the score of 640 tokens, one request after the other.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
	"github.com/kvatlas/kvatlas/bench/internal/program"
)

func main() {
	program.Main("flood", func(ctx context.Context) error { return run(ctx, os.Args[1:]) })
}

// options are what the command line says.
type options struct {
	kvatlas, tokenizers, model, only string
	extra                            []string // further arguments of the server
	rounds                           int
}

func run(ctx context.Context, args []string) error {
	o := options{}
	fs := flag.NewFlagSet("flood", flag.ContinueOnError)
	fs.StringVar(&o.kvatlas, "kvatlas", "bin/kvatlas", "the program to measure")
	fs.StringVar(&o.tokenizers, "tokenizers", ".cache/tokenizers", "directory of tokenizers")
	fs.StringVar(&o.model, "model", "Qwen/Qwen3-8B", "model with a chat template")
	fs.StringVar(&o.only, "only", "", "names of floods, with commas; empty runs all")
	fs.IntVar(&o.rounds, "rounds", 1, "how often a flood is sent to its server")
	if err := fs.Parse(args); err != nil {
		return err
	}
	o.extra = fs.Args()
	fmt.Println("| flood | answers | p50 | max | CPU | others: asked | p50 | p99 | max | not 200 | RSS before, most, after |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|")
	for _, f := range floods(o.model) {
		if o.only != "" && !slices.Contains(strings.Split(o.only, ","), f.name) {
			continue
		}
		if err := measure(ctx, &o, f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// measure sends one flood to a server of its own and writes a line of the table.
func measure(ctx context.Context, o *options, f flood) error {
	s, err := proc.Serve(ctx, o.kvatlas, append([]string{
		"--tokenizers", o.tokenizers, "--hub-offline", "--preload", o.model, "--drain-delay", "0s", "--drain-timeout", "0s",
	}, o.extra...)...)
	if err != nil {
		return err
	}
	defer s.Stop()
	before, err := s.Usage()
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	var probes tally
	var prober sync.WaitGroup
	prober.Go(func() { probe(ctx, s.URL, &probes, stop) })
	var sent tally
	for range o.rounds {
		f.send(ctx, s, &sent)
	}
	close(stop)
	prober.Wait()
	after, err := s.Usage()
	if err != nil {
		return errors.Join(err, errors.New("the server has gone"))
	}
	fmt.Printf("| %s | %s | %s | %s | %.1f s | %d | %s | %s | %s | %s | %d, %d, %d MB |\n", f.title,
		sent.answers(), short(sent.quantile(0.5)), short(sent.quantile(1)), (after.CPU - before.CPU).Seconds(),
		probes.count(), short(probes.quantile(0.5)), short(probes.quantile(0.99)), short(probes.quantile(1)), probes.failures(),
		before.RSS>>20, after.Peak>>20, after.RSS>>20)
	return nil
}

// probe asks for the score of 640 tokens until stop is closed, and once more.
func probe(ctx context.Context, url string, t *tally, stop <-chan struct{}) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	body := tokensBody("demo", 640, "")
	for last := false; !last; {
		select {
		case <-stop:
			last = true
		case <-ctx.Done():
			return
		case <-time.After(2 * time.Millisecond):
		}
		post(ctx, client, url, body, t)
	}
}
