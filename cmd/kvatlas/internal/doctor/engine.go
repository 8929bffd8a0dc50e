package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/zmq"
)

// Engine says where one rank of an engine publishes its events.
type Engine struct {
	// Endpoint is that of the events, Replay that of the replay socket if it has one:
	// tcp://host:port.
	Endpoint, Replay string
	// Seeds are those that it may have, the first one first.
	Seeds []string
}

// maxLooked is after how many events the doctor has seen enough.
const maxLooked = 2000

// maxWaiting is how many messages wait to be looked at.
const maxWaiting = 10_000

// heardEvents is what came from an engine.
type heardEvents struct {
	messages, events, skipped, undecodable int
	reason                                 string // of the first that was left out or undecodable
	sizes                                  map[int]bool
	groups                                 map[int]string
	unknown                                map[string]bool
	explained                              *event.Explanation
	unexplained                            int
	next                                   uint64
	holes                                  int
	decoder                                event.Decoder
	batch                                  event.Batch
}

// lookAtEngine listens to the events of one rank of an engine.
func (c *Config) lookAtEngine(ctx context.Context) *Section {
	if c.Engine.Endpoint == "" {
		return nil
	}
	s := &Section{Name: "engine", Subject: c.Engine.Endpoint}
	add := func(f check.Finding) { s.Findings = append(s.Findings, f) }
	// Some of the time is left for the findings.
	within, cancel := context.WithTimeout(ctx, c.Timeout-c.Timeout/8)
	defer cancel()
	f := &zmq.Feed{To: make(chan zmq.Heard, maxWaiting), Done: within.Done()}
	sub, err := zmq.NewSubscriber(zmq.Config{Endpoint: c.Engine.Endpoint}, f)
	if err != nil {
		add(check.Finding{Level: check.Fail, What: "engine connection", Found: strings.TrimPrefix(err.Error(), "zmq: "), Do: "correct --engine-events: tcp://host:port"})
		return s
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = sub.Run(within) // it ends with its context alone
	}()
	defer func() { cancel(); <-done }()

	h := &heardEvents{sizes: map[int]bool{}, groups: map[int]string{}, unknown: map[string]bool{}}
	if c.Engine.Replay != "" {
		add(c.lookAtReplay(within, h))
	}
	connected, last := c.listen(within, f, h)
	switch {
	case connected:
		add(check.Finding{What: "engine connection", Found: "connected"})
	default:
		add(check.Finding{
			Level: check.Fail, What: "engine connection", Found: last, Means: "nothing is known of what this rank holds, and it is ranked as if it held nothing",
			Do: "see that the engine runs, and let this host reach the endpoint; vLLM binds only where the host is * or ::, and connects to any other",
		})
	}
	if connected || h.messages > 0 { // else there is nothing more to say
		h.report(add, c.Engine.Seeds)
	}
	return s
}

// listen takes messages until it has seen enough or ctx is done.
func (c *Config) listen(ctx context.Context, f *zmq.Feed, h *heardEvents) (connected bool, last string) {
	last = "no connection within the time"
	for !h.enough() || !connected {
		select {
		case <-ctx.Done():
			return connected, last
		case m := <-f.To:
			switch {
			case m.News == "":
				h.take(m.Message, c.Engine.Seeds)
			case strings.HasPrefix(m.News, "connected to "):
				connected = true
			default:
				last = strings.TrimPrefix(m.News, "zmq: ")
			}
		}
	}
	return connected, last
}

// lookAtReplay asks the replay socket for all that it has.
func (c *Config) lookAtReplay(ctx context.Context, h *heardEvents) check.Finding {
	f := check.Finding{What: "replay", Where: c.Engine.Replay}
	n, first := 0, uint64(0)
	err := zmq.Replay(ctx, zmq.ReplayConfig{Endpoint: c.Engine.Replay}, 0, func(m zmq.Message) error {
		if n == 0 {
			first = m.Seq
		} else if m.Seq != h.next {
			h.holes++
		}
		n++
		h.next = m.Seq + 1
		h.take(m, c.Engine.Seeds)
		return nil
	})
	switch {
	case err != nil && n == 0:
		f.Level, f.Found = check.Warn, strings.TrimPrefix(err.Error(), "zmq: ")
		f.Means = "each loss and each reconnection begins a new generation of the rank: what it held before is forgotten"
		f.Do = "give the engine a replay_endpoint, and let this host reach it"
	case err != nil || h.holes > 0:
		f.Level, f.Found = check.Info, fmt.Sprintf("%d messages from %d on, with %d holes", n, first, h.holes)
		if err != nil {
			f.Found += ", and then: " + strings.TrimPrefix(err.Error(), "zmq: ")
		}
		f.Means = "engines before vLLM 0.33 cut long replays; kvatlas asks again from the first hole"
	default:
		f.Found = fmt.Sprintf("%d messages from %d on", n, first)
	}
	return f
}

// enough tells that nothing new is to be expected.
func (h *heardEvents) enough() bool {
	return h.events > 0 && h.explained != nil || h.events+h.skipped >= maxLooked
}

// take looks at one message.
func (h *heardEvents) take(m zmq.Message, seeds []string) {
	h.messages++
	if err := h.decoder.Decode(m.Payload, &h.batch); err != nil {
		h.undecodable++
		if h.reason == "" {
			h.reason = err.Error()
		}
		return
	}
	h.events += len(h.batch.Events)
	h.skipped += h.batch.Skipped
	for _, s := range h.batch.Skips {
		if h.reason == "" {
			h.reason = s.Reason.String() + " of " + s.Field
		}
	}
	for i := range h.batch.Events {
		e := &h.batch.Events[i]
		if _, known := (*event.Media)(nil).TierOf(e); !known && len(h.unknown) < 100 {
			h.unknown[e.Medium] = true
		}
		if e.Kind != event.Stored || len(h.sizes) >= 100 || len(h.groups) >= 100 {
			continue
		}
		h.sizes[e.BlockSize] = true
		h.groups[e.Group] = e.Spec
		if h.explained != nil || h.unexplained >= 10 {
			continue
		}
		switch x, err := event.Explain(e, seeds, ""); {
		case err == nil:
			h.explained = &x
		case errors.Is(err, event.ErrUnexplained):
			h.unexplained++
		}
	}
}

// report says what came of it.
func (h *heardEvents) report(add func(check.Finding), seeds []string) {
	if h.messages == 0 {
		add(check.Finding{
			Level: check.Warn, What: "events", Found: "none came",
			Means: "an engine sends events only while it works, so this may be right; if it is not idle, it has no events enabled or publishes elsewhere",
			Do:    "send it a request while doctor looks, with a longer --timeout; vLLM and SGLang need --kv-events-config",
		})
		return
	}
	came := check.Finding{What: "events", Found: fmt.Sprintf("%d in %d messages", h.events, h.messages)}
	if bad := h.skipped + h.undecodable; bad > 0 {
		came.Level = check.Warn
		came.Found += fmt.Sprintf(", and %d messages and %d events that cannot be used, the first for %s", h.undecodable, h.skipped, h.reason)
		came.Means, came.Do = "blocks are missing in the index, or stay too long", "tell kvatlas's developers: kvatlas inspect events --record has what they need"
		if h.events == 0 {
			came.Level = check.Fail
		}
	}
	add(came)
	if len(h.unknown) > 0 {
		add(check.Finding{
			Level: check.Warn, What: "media", Found: fmt.Sprintf("%q", slices.Sorted(maps.Keys(h.unknown))),
			Means: "where that is is not known, so such blocks weigh nothing", Do: "say which tier it is",
		})
	}
	if len(h.sizes) > 0 {
		f := check.Finding{What: "blocks", Found: fmt.Sprintf("of %d tokens", slices.Sorted(maps.Keys(h.sizes)))}
		if len(h.groups) > 1 {
			f.Level, f.Found = check.Info, f.Found+fmt.Sprintf(", in %d cache groups", len(h.groups))
			f.Means = "groups of a sliding window and of state hold no whole prefix and are not indexed"
		}
		add(f)
	}
	h.reportHashes(add, seeds)
}

// reportHashes says how the engine makes its hashes. The index does not go by them,
// so nothing here is wrong, unless the operator expects a seed.
func (h *heardEvents) reportHashes(add func(check.Finding), seeds []string) {
	f := check.Finding{What: "hash seed"}
	const means = "kvatlas goes by tokens and not by these hashes; a program that recomputes them, such as another router or a shared cache between engines, finds nothing"
	switch x := h.explained; {
	case x != nil && x.Tried && len(seeds) > 0:
		f.Level, f.Found, f.Means = check.Warn, x.String()+": your seed differs", means
		f.Do = "give all engines one PYTHONHASHSEED"
	case x != nil:
		f.Found = x.String()
	case h.unexplained > 0 && len(seeds) > 0:
		f.Level, f.Found, f.Means = check.Warn, "none of the schemes and seeds that were tried gives the hashes: your seed differs, or it is random", means
		f.Do = "set PYTHONHASHSEED at the engine, or --engine-seed here to what it is"
	case h.unexplained > 0:
		f.Level, f.Found, f.Means = check.Info, "none of the schemes and seeds that were tried gives the hashes", means
	default:
		f.Level, f.Found = check.Info, "not seen: no event of the start of a prompt came"
	}
	add(f)
}
