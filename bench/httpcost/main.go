// Command httpcost measures what a request costs a server in processor time, for several builds of
// kvatlas in one run. These are the figures of docs/performance.md, "What HTTP costs".
//
//	go build -o bin/before ./cmd/kvatlas    # at one commit
//	go build -o bin/kvatlas ./cmd/kvatlas   # at another
//	go run ./bench/httpcost --kvatlas bin/before,bin/kvatlas
//
// Each kind of request is sent to each server in turn, in every round. They go one after the other on one connection, or on
// several at once. Beside them it sends them to two bare servers, of net/http and of package httploop, each in a process of its
// own. These read the body and answer as many bytes: what is left of a server whose handler does nothing. With --fleets they
// are about what a thousand pods cost that hold a prompt, beside ten.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/bench"
	"github.com/kvatlas/kvatlas/bench/internal/program"
	"github.com/kvatlas/kvatlas/bench/internal/traffic"
)

func main() {
	program.Main("httpcost", func(ctx context.Context) error {
		if len(os.Args) == 4 && os.Args[1] == "bare" {
			return serveBare(ctx, os.Args[2], os.Args[3])
		}
		return run(ctx, os.Args[1:])
	})
}

// bareKinds are the servers that do nothing, in the order of the table.
var bareKinds = []string{"net/http", "loop"}

// options are what the command line says.
type options struct {
	programs          []string
	tokenizers, model string
	redisServer       string
	calls, rounds     int
	connections       int
	only              string
	fleets            bool
	extra             []string // further arguments of the servers
}

func run(ctx context.Context, args []string) (err error) {
	o := options{}
	fs := flag.NewFlagSet("httpcost", flag.ContinueOnError)
	programs := fs.String("kvatlas", "bin/kvatlas", "the programs to measure, with commas")
	fs.StringVar(&o.tokenizers, "tokenizers", ".cache/tokenizers", "directory of tokenizers")
	fs.StringVar(&o.model, "model", "Qwen/Qwen3-8B", "a model in it, for texts")
	fs.StringVar(&o.redisServer, "redis-server", "redis-server", "the Redis to start")
	fs.IntVar(&o.calls, "calls", 2000, "requests of a kind to a server in a round; of the longest kinds a tenth")
	fs.IntVar(&o.rounds, "rounds", 5, "how often all kinds are sent in turn")
	fs.IntVar(&o.connections, "connections", 1, "how many connections send at once")
	fs.BoolVar(&o.fleets, "fleets", false, "ask for prompts of 16,384 tokens that ten and a thousand pods hold, instead")
	fs.StringVar(&o.only, "only", "", "kinds of requests, with commas; empty sends all")
	if err := fs.Parse(args); err != nil {
		return err
	}
	o.programs, o.extra = strings.Split(*programs, ","), fs.Args()
	memory, inRedis := o.wanted(o.kinds(false)), o.wanted(o.kinds(true))
	if len(memory)+len(inRedis) == 0 {
		return fmt.Errorf("--only=%s names no kind of request; there are %s", o.only, names(append(o.kinds(false), o.kinds(true)...)))
	}
	fmt.Printf("| request, on %d connections | bare net/http | bare loop | %s |\n|---|---|---|%s\n", o.connections, strings.Join(o.programs, " | "), strings.Repeat("---|", len(o.programs)))
	if err := o.measureMode(ctx, "", memory); err != nil || len(inRedis) == 0 {
		return err
	}
	started, err := bench.Start(ctx, o.redisServer, 1)
	if err != nil {
		return err
	}
	defer func() { _ = started.Close() }() // nothing of it is kept
	return o.measureMode(ctx, started.URL, inRedis)
}

// wanted are those of the kinds that --only names, or all of them.
func (o *options) wanted(kinds []kind) []kind {
	if o.only == "" {
		return kinds
	}
	only := strings.Split(o.only, ",")
	return slices.DeleteFunc(kinds, func(k kind) bool { return !slices.Contains(only, k.name) })
}

// names are those of kinds, with commas.
func names(kinds []kind) string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.name)
	}
	return strings.Join(out, ", ")
}

// measureMode measures kinds of requests with the index in memory, or in Redis. Without a kind
// it starts no server.
func (o *options) measureMode(ctx context.Context, redis string, kinds []kind) (err error) {
	if len(kinds) == 0 {
		return nil
	}
	var servers []*server
	defer func() {
		for _, s := range servers {
			s.Stop()
		}
	}()
	for _, kind := range bareKinds {
		s, err := startBare(ctx, kind)
		if err != nil {
			return err
		}
		servers = append(servers, s)
	}
	for _, p := range o.programs {
		s, err := o.startServer(ctx, p, redis)
		if err != nil {
			return err
		}
		servers = append(servers, s)
	}
	var all []*measured
	for _, k := range kinds {
		m, err := k.begin(ctx, servers)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		all = append(all, m)
	}
	for round := range o.rounds + 1 { // the first one warms up
		for _, m := range all {
			if err := m.sendRound(ctx, servers, o.connections, round > 0); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
		}
	}
	for _, m := range all {
		m.print()
	}
	return nil
}

// measured is a kind of request and what it has cost each server, by rounds.
type measured struct {
	kind
	answer    int // its bytes
	cpu, wall [][]time.Duration
}

// begin prepares the servers for a kind of request. The first ones are bare.
func (k kind) begin(ctx context.Context, servers []*server) (*measured, error) {
	m := &measured{kind: k, cpu: make([][]time.Duration, len(servers)), wall: make([][]time.Duration, len(servers))}
	for _, s := range servers[len(bareKinds):] {
		if err := k.prepare(ctx, s); err != nil {
			return nil, err
		}
		n, err := s.warmUp(ctx, k, min(200, k.calls))
		if err != nil {
			return nil, err
		}
		m.answer = max(m.answer, n)
	}
	return m, nil
}

// sendRound sends the requests of a round to all servers, in turn.
func (m *measured) sendRound(ctx context.Context, servers []*server, connections int, counts bool) error {
	for i, s := range servers {
		c, w, err := s.send(ctx, m.kind, m.calls, connections, m.answer)
		if err != nil {
			return err
		}
		if counts {
			m.cpu[i], m.wall[i] = append(m.cpu[i], c), append(m.wall[i], w)
		}
	}
	return nil
}

// print prints a line: processor time and time by the clock of a request, medians of the rounds.
func (m *measured) print() {
	fmt.Printf("| %s (%d bytes, answer %d) ", m.name, len(m.body), m.answer)
	for i := range m.cpu {
		fmt.Printf("| %s; %s ", us(traffic.Quantile(m.cpu[i], 0.5)), us(traffic.Quantile(m.wall[i], 0.5)))
	}
	fmt.Println("|")
}

// us is a time in microseconds.
func us(d time.Duration) string { return fmt.Sprintf("%.1f us", float64(d)/1e3) }
