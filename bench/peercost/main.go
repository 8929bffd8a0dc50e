// Command peercost measures what kvatlas costs beside NVIDIA Dynamo's own HTTP services, in one run:
// the first table of docs/performance.md.
//
//	(cd bench/peers/dynamo && cargo build --release --features service --bin service)
//	go build -o bin/kvatlas ./cmd/kvatlas
//	go run ./bench/peercost
//
// It starts Dynamo's indexer and selection service, three servers of kvatlas, and a redis-server.
// Ten engines publish the same events to all of them, so that they hold the same prompts. Then all
// get the same prompts in turn, round by round: first on one connection, one call after the other,
// then on eight at once. A cost is the processor time of the server's process by its schedstat. That of
// kvatlas in Redis mode includes that of Redis' main thread. Ratios are of samples of the same round.
// At last each is told of new blocks by engines of its own, from the wire to its index.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/bench"
	"github.com/kvatlas/kvatlas/bench/internal/program"
)

func main() {
	program.Main("peercost", func(ctx context.Context) error { return run(ctx, os.Args[1:]) })
}

// Names of the sides.
const (
	dynamoIndexer   = "Dynamo's indexer"
	dynamoSelection = "Dynamo's selection service"
	oursMemory      = "kvatlas, memory"
	oursSmall       = "kvatlas, memory, 16-token blocks"
	oursRedis       = "kvatlas, Redis"
)

// events is the name of what is measured last.
const events = "events"

// connections is how many there are under full load.
const connections = 8

type options struct {
	kvatlas, peer, redis string
	rounds               int
	only                 string
}

func run(ctx context.Context, args []string) (err error) {
	fs := flag.NewFlagSet("peercost", flag.ContinueOnError)
	var o options
	fs.StringVar(&o.kvatlas, "kvatlas", "bin/kvatlas", "the `program` to measure")
	fs.StringVar(&o.peer, "peer", "bench/peers/dynamo/target/release/service", "Dynamo's services, the `program` that bench/peers/dynamo makes")
	fs.StringVar(&o.redis, "redis-server", "redis-server", "the Redis to start, a `program`")
	fs.IntVar(&o.rounds, "rounds", 6, "how often each side has its turn")
	fs.StringVar(&o.only, "only", "", "measure only what has this `word` in its name; "+events+" for the last table")
	if err := fs.Parse(args); err != nil {
		return err
	}
	s, stop, err := start(ctx, &o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	fmt.Printf("%s; load %s; %s\n", bench.Machine(), bench.LoadAverage(), time.Now().UTC().Format("2006-01-02 15:04 MST"))
	prompts := newPrompts()
	if err := fill(ctx, s, prompts); err != nil {
		return err
	}
	var list []work
	for _, w := range works(s, prompts) {
		if strings.Contains(w.what, o.only) {
			list = append(list, w)
		}
	}
	for _, conns := range []int{1, connections} {
		if len(list) > 0 {
			if err := compare(ctx, list, conns, o.rounds); err != nil {
				return err
			}
		}
	}
	if o.only == "" || o.only == events {
		if err := wire(ctx, []*side{s.indexer, s.memory, s.small, s.redis}, o.rounds); err != nil {
			return err
		}
	}
	fmt.Printf("\nload %s at the end\n", bench.LoadAverage())
	return nil
}

// start starts all servers. stop ends them.
func start(ctx context.Context, o *options) (s *sides, stop func() error, err error) {
	s = &sides{}
	var ends []func() error
	stop = func() (err error) {
		for _, end := range ends {
			err = errors.Join(err, end())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	started, err := bench.Start(ctx, o.redis, 1)
	if err != nil {
		return nil, nil, err
	}
	ends = append(ends, started.Close)
	serve := func(more ...string) func(host, port string) []string {
		return func(host, port string) []string {
			return append([]string{"serve", "--listen", host + ":" + port, "--drain-delay", "0s", "--drain-timeout", "0s"}, more...)
		}
	}
	service := func(what string) func(host, port string) []string {
		return func(_, port string) []string { return []string{what, port} }
	}
	for _, c := range []struct {
		to            **side
		name, program string
		probe         string
		args          func(host, port string) []string
	}{
		{&s.indexer, dynamoIndexer, o.peer, "/health", service("indexer")},
		{&s.selection, dynamoSelection, o.peer, "/health", service("selection")},
		{&s.memory, oursMemory, o.kvatlas, "/healthz", serve()},
		{&s.small, oursSmall, o.kvatlas, "/healthz", serve("--block-size", "16")},
		{&s.redis, oursRedis, o.kvatlas, "/healthz", serve("--redis", started.URL)},
	} {
		got, err := startSide(ctx, c.name, c.program, c.probe, c.args)
		if err != nil {
			return nil, nil, err
		}
		ends = append(ends, func() error { got.Stop(); return nil })
		*c.to = got
	}
	at, err := redis.ParseURL(started.URL)
	if err != nil {
		return nil, nil, err
	}
	s.redis.redis = redis.NewClient(at)
	ends = append(ends, s.redis.redis.Close)
	return s, stop, nil
}

// fill lets the engines tell all servers of all prompts, and waits until they hold them.
func fill(ctx context.Context, s *sides, prompts map[int][][]uint32) error {
	engines, err := newEngines(ctx, pods)
	if err != nil {
		return err
	}
	for _, x := range s.all() {
		if err := x.register(ctx, model, 1, endpoints(engines)); err != nil {
			return err
		}
	}
	if err := heard(engines, len(s.all())); err != nil {
		return err
	}
	// A subscriber that came too late has missed something, and gets it again.
	for try := 1; ; try++ {
		for _, list := range prompts {
			for _, p := range list {
				payloads := stored(nil, p, 64)
				for _, e := range engines {
					e.publish(payloads)
				}
			}
		}
		err := s.hold(ctx, prompts)
		if err == nil {
			break
		}
		if try == 3 {
			return err
		}
	}
	for _, e := range engines {
		if n := e.pub.Lost(); n > 0 {
			return fmt.Errorf("%d messages were lost: a server was too slow for them", n)
		}
	}
	return nil
}

// hold waits until all sides hold all prompts.
func (s *sides) hold(ctx context.Context, prompts map[int][][]uint32) error {
	for _, list := range prompts {
		for _, p := range list {
			for _, x := range s.all() {
				if err := x.settled(ctx, model, p, pods); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
