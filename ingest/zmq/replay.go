package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// endSeq is the sequence of the frame that ends a replay.
const endSeq = ^uint64(0)

// ErrCut says that a replay ended without saying so.
var ErrCut = errors.New("zmq: the replay was cut")

// ErrStop is returned by the function given to Replay to end it without an error.
var ErrStop = errors.New("zmq: enough")

// Replay asks an engine for its messages from a sequence on and gives each to fn,
// in the order in which they come.
//
// It returns nil when the engine says that these were all, or when fn returned
// ErrStop. The engine says so too when some were dropped on the way. ErrCut says
// that nothing came for c.Idle, that c.Timeout is over or that the connection
// ended in the middle. Other errors are fn's, ctx's, and those of connecting.
//
// fn must return quickly: engines drop what is not read at once, and say nothing.
func Replay(ctx context.Context, c ReplayConfig, from uint64, fn func(Message) error) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	to, err := parseEndpoint(c.Endpoint, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("%w: it took longer than %v", ErrCut, c.Timeout))
	defer cancel()
	// vLLM and SGLang have a ROUTER there.
	conn, err := dial(ctx, to, "DEALER", []string{"ROUTER", "REP", "DEALER"}, c.Curve, c.Filter, c.MaxMessage, c.ConnectTimeout)
	if err != nil {
		return err
	}
	defer conn.net.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.net.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.send(frame{flagMore, nil}, frame{0, binary.BigEndian.AppendUint64(nil, from)}); err != nil {
		return err
	}
	idle := time.AfterFunc(c.Idle, func() {
		conn.silent.Store(true)
		_ = conn.net.Close()
	})
	defer idle.Stop()
	var frames [][]byte
	for seen := uint64(0); ; {
		if frames, err = conn.message(frames); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if errors.Is(err, ErrProtocol) {
				return err
			}
			return fmt.Errorf("%w: %w", ErrCut, err)
		}
		// Old engines reply ['', seq, payload], newer ones ['', topic, seq, payload].
		n := len(frames)
		if n < 3 || n > 4 || len(frames[n-2]) != 8 {
			return fmt.Errorf("%w: a reply of %d frames, or without a sequence of 8 bytes", ErrProtocol, n)
		}
		m := Message{Seq: binary.BigEndian.Uint64(frames[n-2]), Payload: frames[n-1]}
		if m.Seq == endSeq && len(m.Payload) == 0 {
			return nil
		}
		if m.Seq == endSeq {
			return fmt.Errorf("%w: a reply with the number of the end and a payload", ErrProtocol)
		}
		if n == 4 {
			m.Topic = string(frames[1])
		}
		if err := fn(m); err != nil {
			if errors.Is(err, ErrStop) {
				return nil
			}
			return err
		}
		// A timer a message is dear; one in 16 or what has waited is near enough.
		if seen++; seen%16 == 0 || conn.in.Buffered() == 0 {
			idle.Reset(c.Idle)
		}
	}
}
