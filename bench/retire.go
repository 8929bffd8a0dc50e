package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store/redis"
)

// Retirement is the end of pods that hold every block of the index.
type Retirement struct {
	// Blocks is how many each pod holds.
	Blocks int `json:"blocks"`
	// Call is the time of Retire in milliseconds, Visible that from its beginning
	// until another client's lookup has come back without the pod. Times is how
	// many pods were retired.
	Call    Spread  `json:"call_ms"`
	Visible Spread  `json:"visible_ms"`
	Worst   float64 `json:"visible_worst_ms"`
	Times   int     `json:"times"`
	// Idle are the stalls of a server that no other uses, for comparison, seen
	// for so many seconds.
	Idle        Stalls  `json:"idle"`
	IdleSeconds float64 `json:"idle_seconds"`
	// One is the sweep after the first pod, whose blocks others hold too; All
	// that after all of them, which deletes the blocks.
	One SweepRun `json:"sweep_one"`
	All SweepRun `json:"sweep_all"`
	// Peer is the same of the peer's present form, with fewer blocks.
	Peer PeerClear `json:"peer"`
}

// SweepRun is one sweep.
type SweepRun struct {
	Seconds float64 `json:"seconds"`
	Cleaned uint64  `json:"cleaned"`
	// Steps is how many steps it took: a SCAN, an MGET and the scripts. StepCPU is
	// the mean CPU time in milliseconds that the servers' main threads took for all
	// of a step. It leaves out what an idle server takes for the PINGs. On a busy
	// machine it says more than what others felt by the clock.
	Steps   int     `json:"steps"`
	StepCPU float64 `json:"step_cpu_ms"`
	Stalls  Stalls  `json:"stalls"`
	// Commands are those of the sweep, by the server's clock. So on a busy machine
	// the longest of them are those that lost the processor. Without
	// RedisConfig.Track there are none.
	Commands []Command `json:"commands,omitempty"`
}

// PeerClear is how long the peer takes to clear a pod. It reads every HASH of the
// database, and deletes the pod's field and the HASH if it is empty then.
type PeerClear struct {
	Blocks     int     `json:"blocks"`
	Seconds    float64 `json:"seconds"`
	RoundTrips uint64  `json:"round_trips"`
}

// peerClearKeys bounds how many blocks the peer is to clear.
const peerClearKeys = 20_000

// retire ends the pods of an index, which is empty afterwards.
func (r *redisRun) retire(ctx context.Context, main corpus, pods []string) (err error) {
	out := &Retirement{Blocks: main.keys(), Times: len(pods), IdleSeconds: r.c.idle.Seconds()}
	other, err := openOurs(r.c.URL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.x.Close()) }()

	r.c.Progress("an idle server")
	before, err := r.s.read(ctx)
	if err != nil {
		return err
	}
	out.Idle, err = r.s.during(ctx, func() error { return sleep(ctx, r.c.idle) })
	if err != nil {
		return err
	}
	after, err := r.s.read(ctx)
	if err != nil {
		return err
	}
	perPing := (after.cpu - before.cpu).Seconds() / float64(max(1, out.Idle.Pings))
	var calls, visible []float64
	for i, pod := range pods {
		call, seen, err := retireSeen(ctx, r.ours.x, other, pod, main.prompt(i, 64, 100))
		if err != nil {
			return err
		}
		calls, visible = append(calls, call.Seconds()*1e3), append(visible, seen.Seconds()*1e3)
		if i == 0 {
			r.c.Progress(fmt.Sprintf("sweeping %d blocks of one pod", main.keys()))
			if out.One, err = r.sweep(ctx, main.keys(), perPing); err != nil {
				return err
			}
		}
	}
	out.Call, out.Visible = SpreadOf(calls), SpreadOf(visible)
	out.Worst = visible[len(visible)-1] // sorted by now
	r.c.Progress(fmt.Sprintf("sweeping %d blocks of all pods", main.keys()))
	if out.All, err = r.sweep(ctx, main.keys(), perPing); err != nil {
		return err
	}
	if err := r.forgetNow(ctx, r.ours, ""); err != nil {
		return err
	}
	if !r.s.cluster() {
		if out.Peer, err = r.peerClear(ctx, pods, min(main.keys(), peerClearKeys)); err != nil {
			return err
		}
	}
	r.report.Retire = out
	return nil
}

// retireSeen retires a pod. It returns how long the call took, and after how long
// another client's lookup has come back without it. A lookup that begins after
// the call and still credits the pod is an error.
func retireSeen(ctx context.Context, x *redis.Index, other *ours, pod string, keys []blockkey.Key) (call, seen time.Duration, err error) {
	switch p, err := other.lookup(ctx, keys); {
	case err != nil:
		return 0, 0, err
	case p[pod] != len(keys):
		return 0, 0, fmt.Errorf("%s holds %d blocks of %d before it is retired", pod, p[pod], len(keys))
	}
	type answer struct {
		began, ended time.Time
		credited     bool
		err          error
	}
	answers := make(chan answer, 1<<16)
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	reading.Go(func() {
		for ctx.Err() == nil {
			a := answer{began: time.Now()}
			p, err := other.lookup(ctx, keys)
			a.ended, a.credited, a.err = time.Now(), p[pod] > 0, err
			select {
			case answers <- a:
			case <-ctx.Done():
			}
			if a.err != nil || !a.credited {
				return
			}
		}
	})
	begin := time.Now()
	known, err := x.Retire(ctx, pod)
	end := time.Now()
	if err != nil || !known {
		return 0, 0, fmt.Errorf("%s: known %v: %w", pod, known, err)
	}
	for {
		select {
		case a := <-answers:
			switch {
			case a.err != nil:
				return 0, 0, a.err
			case a.credited && a.began.After(end):
				return 0, 0, fmt.Errorf("%s is credited by a lookup that began %v after it was retired", pod, a.began.Sub(end))
			case !a.credited:
				return end.Sub(begin), a.ended.Sub(begin), nil
			}
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}

// sweptCommands are what a sweep consists of.
var sweptCommands = []string{"scan", "mget", "evalsha"}

// sweep sweeps as the background does, with the default duty. perPing is what a
// PING costs the server, in seconds.
func (r *redisRun) sweep(ctx context.Context, blocks int, perPing float64) (run SweepRun, err error) {
	var track *commandTimes
	if r.c.Track {
		if track, err = r.s.trackCommands(ctx); err != nil {
			return run, err
		}
	}
	steps := r.ours.steps.Load()
	before, err := r.s.read(ctx)
	if err != nil {
		return run, err
	}
	begin := time.Now()
	run.Stalls, err = r.s.during(ctx, func() error {
		p, err := r.ours.x.Sweep(ctx)
		run.Cleaned = p.Cleaned
		return err
	})
	run.Seconds = time.Since(begin).Seconds()
	run.Steps = int(r.ours.steps.Load() - steps)
	ctx = context.WithoutCancel(ctx)
	after, err2 := r.s.read(ctx)
	own := perPing * float64(run.Stalls.Pings)
	run.StepCPU = ((after.cpu - before.cpu).Seconds() - own) * 1e3 / float64(max(1, run.Steps))
	err = errors.Join(err, err2)
	if track != nil {
		all, err2 := track.stop(ctx)
		err = errors.Join(err, err2)
		run.Commands = slices.DeleteFunc(all, func(c Command) bool { return !slices.Contains(sweptCommands, c.Name) })
	}
	if err == nil && run.Cleaned < uint64(blocks) {
		err = fmt.Errorf("the sweep has cleaned %d blocks of %d", run.Cleaned, blocks)
	}
	return run, err
}

// peerClear does what the peer does when a pod says that all its blocks are gone.
func (r *redisRun) peerClear(ctx context.Context, pods []string, blocks int) (out PeerClear, err error) {
	c := newCorpus(4, blocks, 1000)
	out.Blocks = c.keys()
	p := newPeer(r.s, true, true)
	r.c.Progress(fmt.Sprintf("the peer clears a pod of %d blocks", c.keys()))
	r.willForget(p, "clear", c)
	if err := fillAll(ctx, p, c, pods); err != nil {
		return out, err
	}
	trips, begin := p.trips(), time.Now()
	if err := p.clear(ctx, pods[0]); err != nil {
		return out, err
	}
	out.Seconds, out.RoundTrips = time.Since(begin).Seconds(), p.trips()-trips
	found, err := p.lookup(ctx, c.prompt(0, 100, 100))
	if err != nil {
		return out, err
	}
	if found[pods[0]] != 0 || found[pods[1]] != 100 {
		return out, fmt.Errorf("the peer's clear leaves %d blocks of %s and %d of %s", found[pods[0]], pods[0], found[pods[1]], pods[1])
	}
	return out, r.forgetNow(ctx, p, "clear")
}
