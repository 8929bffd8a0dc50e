// Command routecost measures what a routed request costs beside a scored one, in one run: the
// figures of docs/performance.md, "Routing, side by side".
//
//	go build -o bin/kvatlas ./cmd/kvatlas
//	go run ./bench/routecost --kvatlas bin/kvatlas
//	go run ./bench/routecost --embedded
//
// It starts a redis-server and a server of kvatlas, and asks one call after the other on one
// connection, then by --callers at a time, each with requests of its own. One at a time, Redis sleeps
// and is woken for every call, which takes as much of a processor as the call. Each kind of call comes
// in turn in every round. The prompts are tokens of which one of eight pods holds half. At last it asks a router in its own process, without Redis and
// HTTP. Program bench/peercost compares the server's processor time with that of Dynamo's
// selection service.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/bench"
	"github.com/kvatlas/kvatlas/bench/internal/proc"
	"github.com/kvatlas/kvatlas/bench/internal/program"
)

func main() {
	program.Main("routecost", func(ctx context.Context) error { return run(ctx, os.Args[1:]) })
}

// sizes are the lengths of prompts in tokens.
var sizes = []int{2048, 16384, 131072}

func run(ctx context.Context, args []string) (err error) {
	fs := flag.NewFlagSet("routecost", flag.ContinueOnError)
	program := fs.String("kvatlas", "bin/kvatlas", "the program to measure")
	redisServer := fs.String("redis-server", "redis-server", "the Redis to start")
	calls := fs.Int("calls", 400, "calls of each kind in a round; of the longest prompts a quarter")
	callers := fs.Int("callers", 16, "how many ask at a time, after one alone")
	rounds := fs.Int("rounds", 5, "how often all kinds are asked in turn")
	embedded := fs.Bool("embedded", false, "measure only the router in this process")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *callers < 1 || *calls < 4**callers {
		return errors.New("calls must be at least four times as many as callers")
	}
	if *embedded {
		return inProcess(ctx, 2048)
	}
	started, err := bench.Start(ctx, *redisServer, 1)
	if err != nil {
		return err
	}
	defer func() { _ = started.Close() }() // nothing of it is kept
	process, err := proc.Serve(ctx, *program, "--redis", started.URL)
	if err != nil {
		return err
	}
	defer process.Stop()
	at, err := redis.ParseURL(started.URL)
	if err != nil {
		return err
	}
	at.PoolSize = *callers
	s := &server{Process: process, redis: redis.NewClient(at), http: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: *callers}}}
	defer func() { _ = s.redis.Close() }()
	if err := s.register(ctx); err != nil {
		return err
	}
	fmt.Println("| tokens | callers | PING | PING after a score | score | query, over score | reserve, over score + PING | server CPU: score | query | reserve | Redis CPU: MGET | lookup | route + done + end, without the lookup | its scripts | its commands | route + end with cached_tokens, without | its scripts | its commands |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	for _, tokens := range sizes {
		n := *calls
		if tokens > 100_000 {
			n /= 4
		}
		for _, callers := range slices.Compact([]int{1, *callers}) {
			t, err := s.measure(ctx, tokens, callers, n, *rounds)
			if err != nil {
				return err
			}
			fmt.Printf("| %d | %d | %s | %s | %s | %s, %.2f | %s, +%s | %s | %s | %s | %s | %s | %s, %s | %s | %.1f | %s, %s | %s | %.1f |\n", tokens, callers,
				us(t.wall["ping"]), us(t.wall["late ping"]), us(t.wall["score"]), us(t.wall["query"]), over(t.wall["query"], t.wall["score"]),
				us(t.wall["reserve"]), us(t.wall["reserve"]-t.wall["score"]-t.wall["ping"]),
				us(t.cpu["score"]), us(t.cpu["query"]), us(t.cpu["reserve"]),
				us(t.redis["mget"]), us(t.redis["score"]), us(t.redis["whole"]), us(t.redis["whole"]-t.redis["score"]), us(t.script["whole"]), t.commands["whole"],
				us(t.redis["settled"]), us(t.redis["settled"]-t.redis["score"]), us(t.script["settled"]), t.commands["settled"])
		}
	}
	return inProcess(ctx, 2048)
}

// us is a time in microseconds.
func us(d time.Duration) string { return fmt.Sprintf("%.0f us", float64(d)/1e3) }

func over(a, b time.Duration) float64 { return float64(a) / float64(max(1, b)) }
