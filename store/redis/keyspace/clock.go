package keyspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/redisx"
)

// A write that was given up does nothing later. Bytes can be held up on their way, by a network or a proxy.
// They can reach the server when its writer has long reported that the write has failed, and others have
// written since:
//
//	A: adds a block; the bytes are held up, and A gives up
//	B: removes the block, which is acknowledged
//	the bytes of A arrive: the block would be credited for good
//
// So each write without a guard says until when, by the server's TIME, it may be done;
// later its script answers KVALATE and does nothing. That takes the server's clock as it
// is seen from here.

const (
	// clockAge is how long a reading of a server's time is used.
	clockAge = time.Minute
	// clockDrift is by what part of the time since then two clocks may have gone apart.
	clockDrift = 1000
	// lateTries is how often a write is sent anew that the server calls too late although
	// its time here is not over. The server's clock has been set then.
	lateTries = 3
)

// clocks are the clocks of the servers, by place; on a cluster each node has its own.
// They are safe for concurrent use.
type clocks struct {
	mu   sync.Mutex // protects told
	told [AtMap]told
}

// told is what a server has said of its time.
type told struct {
	ms    int64     // its TIME
	heard time.Time // when it was heard here, which is later
	// dials is how many connections there had been. Another one may lead to another
	// server, with another clock.
	dials uint64
}

// at returns what the server's clock says, in ms, when it is t here: that or more.
func (c *told) at(t time.Time) int64 {
	since := t.Sub(c.heard)
	return c.ms + (since - since.Abs()/clockDrift).Milliseconds()
}

// of returns what is known of the clock of a place; not ok when it must be asked.
func (c *clocks) of(place int, dials uint64) (now told, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now = c.told[place]
	return now, now.ms != 0 && now.dials == dials && time.Since(now.heard) < clockAge
}

func (c *clocks) learn(place int, now told) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told[place] = now
}

// forget makes all clocks be asked again.
func (c *clocks) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.told[:])
}

// timed reports whether the call is not to be done later.
func (c *Call) timed() bool { return c.Script.Timed && !c.Guarded }

// stamp writes into the calls of todo that are timed until when they may be done, which
// is until by the clock here.
func (s *Space) stamp(ctx context.Context, calls []*Call, todo []int, until time.Time) error {
	var unknown []int // places
	for _, i := range todo {
		c := calls[i]
		if !c.timed() {
			continue
		}
		if now, ok := s.clocks.of(c.Place, s.Conn.Dials()); ok {
			c.latest = now.at(until)
		} else if !slices.Contains(unknown, c.Place) {
			unknown = append(unknown, c.Place)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	times, err := s.askTimes(ctx, unknown)
	if err != nil {
		return err
	}
	for _, i := range todo {
		if at := slices.Index(unknown, calls[i].Place); at >= 0 && calls[i].timed() {
			calls[i].latest = times[at].at(until)
		}
	}
	return nil
}

// Time asks the server of the registry for its time, in ms.
func (s *Space) Time(ctx context.Context) (ms int64, err error) {
	now, err := s.askTimes(ctx, []int{AtRegistry})
	if err != nil {
		return 0, err
	}
	return now[0].ms, nil
}

// askTimes asks the servers of places for their time.
func (s *Space) askTimes(ctx context.Context, places []int) ([]told, error) {
	dials := s.Conn.Dials()
	pipe := s.Client.Pipeline()
	cmds := make([]*redis.Cmd, len(places))
	for i, place := range places {
		key := s.Names.Epoch
		if place != AtRegistry {
			key = s.Names.High(place)
		}
		cmds[i] = pipe.Eval(ctx, "return redis.call('TIME')", []string{key})
	}
	s.Trips.Add(1)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	heard := time.Now()
	out := make([]told, len(places))
	for i, c := range cmds {
		v, err := c.Int64Slice()
		if err == nil && len(v) != 2 {
			err = ErrProtocol
		}
		if err != nil {
			return nil, fmt.Errorf("redis: the server's time is %v: %w", c.Val(), err)
		}
		out[i] = told{ms: v[0]*1000 + v[1]/1000, heard: heard, dials: dials}
		s.clocks.learn(places[i], out[i])
	}
	return out, nil
}

// until is when a write that is sent now is given up, by the clock here.
func (s *Space) until(ctx context.Context) time.Time {
	t := time.Now().Add(s.Timeout)
	if end, ok := ctx.Deadline(); ok && end.Before(t) {
		return end
	}
	return t
}

// tooLate reports whether a script has done nothing because its time was over.
func tooLate(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "KVALATE ") }

// unsure reports whether the server may still get what was sent: the connection has broken
// before the reply.
func unsure(err error) bool {
	if redisx.DialFailed(err) {
		return false
	}
	_, broken := errors.AsType[*net.OpError](err)
	return broken || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// latestArg is the first argument of a script: what it is without a latest time, and that.
func latestArg(first string, latest int64) string {
	return first + " " + strconv.FormatInt(latest, 10)
}
