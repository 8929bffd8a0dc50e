// Command peercost measures what kvatlas costs beside NVIDIA Dynamo's own HTTP services, in one run:
// the first table of docs/performance.md.
//
//	(cd bench/peers/dynamo && cargo build --release --features service --bin service)
//	go build -o bin/kvatlas ./cmd/kvatlas
//	go run ./bench/peercost
//
// Each round starts Dynamo's indexer and selection service, three servers of kvatlas, and a
// redis-server: processes of one build differ, so each sample is of another one. Ten engines publish
// the same events to all of them, so that they hold the same prompts. Then all get the same prompts in
// turn: first on one connection, one call after the other, then on eight at once. At last each hears of
// new blocks from engines of its own, from the wire to its index.
//
// A cost is the processor time of the server's process by its schedstat. That of kvatlas in Redis mode
// includes that of Redis' main thread. Ratios are of samples of the same round.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

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
	fs.IntVar(&o.rounds, "rounds", 5, "how often all servers are started and each has its turn")
	fs.StringVar(&o.only, "only", "", "measure only what has this `word` in its name; "+events+" for the last table")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if o.rounds < 1 {
		return fmt.Errorf("--rounds is %d, it must be 1 or more", o.rounds)
	}
	fmt.Printf("%s; load %s; %s\n", bench.Machine(), bench.LoadAverage(), time.Now().UTC().Format("2006-01-02 15:04 MST"))
	s, prompts := newSides(&o), newPrompts()
	m := newMeasured(&o, s, works(s, prompts))
	var told [][]byte // what each engine tells of all prompts
	for _, n := range lengths {
		for _, p := range prompts[n] {
			told = stored(told, p, 64)
		}
	}
	for round := range o.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, o.rounds)
		if err := measure(ctx, &o, s, prompts, told, m, round); err != nil {
			return err
		}
	}
	m.write()
	fmt.Printf("\nload %s at the end\n", bench.LoadAverage())
	return nil
}

// measure is a round: it starts all servers, fills them, and takes a sample of all that is compared.
func measure(ctx context.Context, o *options, s *sides, prompts map[int][][]uint32, told [][]byte, m *measured, round int) (err error) {
	stop, err := s.start(ctx, o)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	engines, err := newEngines(ctx, pods)
	defer func() { err = errors.Join(err, closeEngines(engines)) }()
	if err != nil {
		return err
	}
	if err := fill(ctx, s, engines, prompts, told); err != nil {
		return err
	}
	return m.take(ctx, round)
}

// fill has the engines publish the blocks of all prompts to all servers, and waits until they hold them.
func fill(ctx context.Context, s *sides, engines []*engine, prompts map[int][][]uint32, told [][]byte) error {
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
		for _, e := range engines {
			e.publish(told)
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
	// What was published last is short: while a server is not done it is asked for little.
	for _, n := range slices.Backward(lengths) {
		for _, p := range slices.Backward(prompts[n]) {
			for _, x := range s.all() {
				if err := x.settled(ctx, model, p, pods); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
