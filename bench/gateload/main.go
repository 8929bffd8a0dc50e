// Command gateload measures what kvatlas gateway adds to a request, beside a bare
// httputil.ReverseProxy and HAProxy in the same run: the figures of docs/gateway.md.
//
//	go build -o bin/kvatlas ./cmd/kvatlas
//	go run ./bench/gateload --kvatlas bin/kvatlas
//
// All stand in front of one engine that answers at once, and take turns. First come answers
// in one piece, one after the other, whose time is what is added. Then come as many as go at
// a time, of which the CPU time of the front alone is counted. Last are streams, in each part
// of which the engine writes when it sent it. Prompts are token ids, so that nothing is
// tokenized.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/program"
	"github.com/kvatlas/kvatlas/bench/internal/traffic"
)

func main() {
	program.Main("gateload", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) })
}

// options are what the command line says.
type options struct {
	kvatlas, haproxy                  string
	rounds, requests, streams, pieces int
	tokens, together, port            int
	pause                             time.Duration
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 2 && args[0] == "engine" {
		return serveEngine(args[1])
	}
	if len(args) == 3 && args[0] == "bare" {
		return serveBare(args[1], args[2])
	}
	o := options{}
	fs := flag.NewFlagSet("gateload", flag.ContinueOnError)
	fs.StringVar(&o.kvatlas, "kvatlas", "bin/kvatlas", "the program to measure")
	fs.StringVar(&o.haproxy, "haproxy", "haproxy", "HAProxy; empty leaves it out")
	fs.IntVar(&o.rounds, "rounds", 5, "how often all take their turn")
	fs.IntVar(&o.requests, "requests", 3000, "answers in one piece of a turn")
	fs.IntVar(&o.streams, "streams", 100, "streams of a turn")
	fs.IntVar(&o.pieces, "pieces", 64, "parts of a stream")
	fs.DurationVar(&o.pause, "pause", 5*time.Millisecond, "between two of them")
	fs.IntVar(&o.tokens, "tokens", 512, "tokens of a prompt")
	fs.IntVar(&o.together, "together", 16, "requests at a time")
	fs.IntVar(&o.port, "port", 21000, "first of the ports that are taken")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if min(o.rounds, o.requests, o.streams, o.pieces, o.tokens, o.together) < 1 {
		return errors.New("all numbers must be at least 1")
	}
	fronts, err := startFronts(ctx, &o)
	defer func() {
		for _, f := range fronts {
			f.process.Stop()
		}
	}()
	if err != nil {
		return err
	}
	for range o.rounds {
		for _, f := range fronts {
			if err := f.measure(ctx, &o); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return printFronts(out, fronts, &o)
}

// printFronts prints a row for each front. Ratios are those to the bare proxy.
func printFronts(out io.Writer, fronts []*front, o *options) error {
	fmt.Fprintf(out, "%d rounds of %d answers in one piece and %d streams of %d parts, %v apart; prompts of %d token ids, %d at a time\n\n", o.rounds, o.requests, o.streams, o.pieces, o.pause, o.tokens, o.together)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tus p50\tus p99\tCPU us/request\tof bare\trequests/s of a core\tCPU us/stream\tof bare\tpart us p50\tpart us p99\tMiB\t")
	bare := fronts[slices.IndexFunc(fronts, func(f *front) bool { return f.name == "bare" })]
	for _, f := range fronts {
		us := func(d time.Duration) string { return fmt.Sprintf("%.0f", float64(d.Nanoseconds())/1e3) }
		if f.name == engineFront {
			fmt.Fprintf(w, "%s\t%s\t%s\t\t\t\t\t\t%s\t%s\t\t\n", f.name, us(traffic.Quantile(f.alone, 0.50)), us(traffic.Quantile(f.alone, 0.99)), us(traffic.Quantile(f.parts, 0.50)), us(traffic.Quantile(f.parts, 0.99)))
			continue
		}
		each, stream := f.cpu/time.Duration(o.rounds*o.requests), f.streamCPU/time.Duration(o.rounds*o.streams)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.2f\t%.0f\t%s\t%.2f\t%s\t%s\t%d\t\n", f.name, us(traffic.Quantile(f.alone, 0.50)), us(traffic.Quantile(f.alone, 0.99)), us(each), float64(f.cpu)/float64(bare.cpu), 1/each.Seconds(),
			us(stream), float64(f.streamCPU)/float64(bare.streamCPU), us(traffic.Quantile(f.parts, 0.50)), us(traffic.Quantile(f.parts, 0.99)), f.peak>>20)
	}
	return w.Flush()
}

// prompt is a body with token ids that begin like no other.
func prompt(o *options, n int, stream bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"model":"m","max_tokens":%d,"stream":%v,"prompt":[%d`, o.pieces, stream, n)
	for i := range o.tokens - 1 {
		fmt.Fprintf(&b, ",%d", 1000+(n*31+i)%30000)
	}
	b.WriteString("]}")
	return b.String()
}
