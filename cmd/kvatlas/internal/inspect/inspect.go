// Package inspect is the commands below kvatlas inspect: they show engines' events, record
// and play them, and name blocks in Redis.
package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/terminal"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/record"
	"github.com/kvatlas/kvatlas/ingest/zmq"
)

// Command is kvatlas inspect, with those below it.
func Command(p *cli.Program) cli.Command {
	return cli.Command{
		Name: "inspect", Short: "look at engines' events, record and play them; name blocks in Redis",
		About: `kvatlas inspect looks at what engines say of their caches, and at where it is in
Redis.`,
		Commands: []cli.Command{
			{Name: "events", Short: "print an engine's events as they come", Run: func(ctx context.Context, args []string) int { return inspectEvents(ctx, p, args) }},
			{Name: "play", Short: "send a record of events again", Files: true, Run: func(ctx context.Context, args []string) int { return inspectPlay(ctx, p, args) }},
			{Name: "keys", Short: "print the names of blocks in Redis", Run: func(_ context.Context, args []string) int { return inspectKeys(p, args) }},
		},
	}
}

const inspectEventsUsage = `kvatlas inspect events prints the KV-cache events of one rank of an engine, as
they come. ENDPOINT is the engine's, such as tcp://10.0.0.1:5557.

  kvatlas inspect events tcp://10.0.0.1:5557
  kvatlas inspect events tcp://10.0.0.1:5557 --replay tcp://10.0.0.1:5558 --from 0
  kvatlas inspect events tcp://10.0.0.1:5557 --json --count 100
  kvatlas inspect events tcp://10.0.0.1:5557 --record events.jsonl
  kvatlas inspect events tcp://10.0.0.1:5557 --explain --seed 0

With --json it writes a line of JSON for each event, tokens and salt included.
With --explain it says how the engine makes its hashes, as soon as an event
shows it. A record can be played again by kvatlas inspect play.

`

// maxWaiting is how many messages wait to be printed.
const maxWaiting = 10_000

// eventsCall is one call of kvatlas inspect events.
type eventsCall struct {
	live     zmq.Config
	replay   string
	from     uint64
	json     bool
	count    int
	timeout  time.Duration
	record   record.Config
	explain  bool
	seeds    []string
	loraPath string
	media    event.Media
}

func readEventsCall(p *cli.Program, args []string) (*eventsCall, error) {
	fs := flag.NewFlagSet("kvatlas inspect events", flag.ContinueOnError)
	c := &eventsCall{}
	fs.BoolVar(&c.live.Bind, "bind", false, "listen at ENDPOINT for an engine that connects")
	fs.StringVar(&c.live.Topic, "topic", "", "print only topics with this `PREFIX`")
	fs.StringVar(&c.replay, "replay", "", "first ask the replay socket at this `ENDPOINT`")
	fs.Uint64Var(&c.from, "from", 0, "the first `NUMBER` to replay")
	fs.BoolVar(&c.json, "json", false, "write a line of JSON for each event")
	fs.IntVar(&c.count, "count", 0, "end after this many events; 0 is never")
	fs.DurationVar(&c.timeout, "timeout", 0, "end when nothing came for this long; 0 is never")
	fs.StringVar(&c.record.Path, "record", "", "write the messages to `FILE`, too")
	fs.Int64Var(&c.record.MaxBytes, "record-bytes", 256<<20, "begin a new file after this many bytes")
	fs.IntVar(&c.record.MaxFiles, "record-files", 8, "how many files are kept")
	fs.BoolVar(&c.explain, "explain", false, "say how the engine makes its hashes")
	fs.Func("seed", "with --explain: the PYTHONHASHSEED that the engine should have; may stand more than once", func(s string) error {
		c.seeds = append(c.seeds, s)
		return nil
	})
	fs.StringVar(&c.loraPath, "lora-path", "", "with --explain: the path of the adapters, which vLLM hashes from 0.31 on")
	fs.TextVar(&c.media, "media", &event.Media{}, "tiers of words for media that are not known, a `LIST` such as cxl=cpu,tape=disk")
	words, err := p.ReadFlags(fs, args, inspectEventsUsage)
	if err != nil {
		return nil, err
	}
	if len(words) != 1 {
		return nil, fmt.Errorf("%d arguments, one ENDPOINT is needed", len(words))
	}
	c.live.Endpoint = words[0]
	switch {
	case c.count < 0:
		return nil, fmt.Errorf("--count is %d, it must not be negative", c.count)
	case c.timeout < 0:
		return nil, fmt.Errorf("--timeout is %v, it must not be negative", c.timeout)
	case c.record.Path == "" && cli.FlagGiven(fs, "record-bytes", "record-files"):
		return nil, errors.New("--record-bytes and --record-files are for --record")
	case !c.explain && cli.FlagGiven(fs, "seed", "lora-path"):
		return nil, errors.New("--seed and --lora-path are for --explain")
	case c.replay == "" && cli.FlagGiven(fs, "from"):
		return nil, errors.New("--from is for --replay")
	}
	if err := c.live.Validate(); err != nil {
		return nil, fmt.Errorf("ENDPOINT: %w", err)
	}
	if c.replay != "" {
		if err := (zmq.ReplayConfig{Endpoint: c.replay}).Validate(); err != nil {
			return nil, fmt.Errorf("--replay: %w", err)
		}
	}
	return c, nil
}

// inspectEvents is kvatlas inspect events.
func inspectEvents(ctx context.Context, p *cli.Program, args []string) int {
	call, err := readEventsCall(p, args)
	if err != nil {
		return p.Misuse("inspect events", err)
	}
	v := &viewer{call: call, out: bufio.NewWriter(p.Stdout), errs: p.Stderr}
	if call.record.Path != "" {
		if v.record, err = record.Create(call.record); err != nil {
			return p.Fail("inspect events", err)
		}
	}
	err = v.run(ctx)
	if v.record != nil {
		err = errors.Join(err, v.record.Close())
	}
	if err = errors.Join(err, v.out.Flush()); err != nil {
		return p.Fail("inspect events", err)
	}
	return cli.ExitOK
}

// errEnough ends a viewer that has printed what it was to.
var errEnough = errors.New("enough")

// viewer prints the events of messages.
type viewer struct {
	call   *eventsCall
	out    *bufio.Writer
	errs   io.Writer
	record *record.Writer

	decoder event.Decoder
	batch   event.Batch
	line    []byte
	next    uint64 // the sequence that should come
	any     bool   // one has come
	// replayed is the sequence up to which the replay has given what may come live, too.
	// It is 0 once the live messages have passed it. From behind the replay on, live is
	// true.
	replayed uint64
	live     bool
	events   int
	said     string // what was last said of the hashes
	news     string // what was last said of the connection
	failed   int    // events whose hashes could not be explained
}

// run prints until ctx ends or it is enough.
func (v *viewer) run(ctx context.Context) error {
	inner, cancel := context.WithCancel(ctx)
	f := &zmq.Feed{To: make(chan zmq.Heard, maxWaiting), Done: inner.Done()}
	s, err := zmq.NewSubscriber(v.call.live, f)
	if err != nil {
		cancel()
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(inner) // it ends with inner alone
	}()
	defer func() { cancel(); <-done }()
	if v.call.replay != "" {
		err := zmq.Replay(ctx, zmq.ReplayConfig{Endpoint: v.call.replay}, v.call.from, v.message)
		switch {
		case errors.Is(err, errEnough):
			return nil
		case err != nil && ctx.Err() == nil:
			v.note("replay: %v", err)
		}
		v.replayed = v.next
		if err := v.flush(); err != nil {
			return err
		}
	}
	v.live = true
	return v.follow(ctx, f)
}

func (v *viewer) follow(ctx context.Context, f *zmq.Feed) error {
	var silence <-chan time.Time
	quiet := time.NewTimer(time.Hour)
	defer quiet.Stop()
	if v.call.timeout > 0 {
		silence = quiet.C
		quiet.Reset(v.call.timeout)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-silence:
			if v.events == 0 {
				return fmt.Errorf("no event came from %s within %v: is it the engine's endpoint, and does the engine have events enabled?", v.call.live.Endpoint, v.call.timeout)
			}
			return nil
		case h := <-f.To:
			if h.News != "" {
				if h.News != v.news { // it goes on trying, several times a second
					v.news = h.News
					v.note("%s", h.News)
				}
				continue
			}
			v.news = ""
			if v.call.timeout > 0 {
				quiet.Reset(v.call.timeout)
			}
			if err := v.message(h.Message); err != nil {
				if errors.Is(err, errEnough) {
					return nil
				}
				return err
			}
			if len(f.To) == 0 { // a person is watching
				if err := v.flush(); err != nil {
					return err
				}
			}
		}
	}
}

func (v *viewer) flush() error {
	if v.record != nil {
		if err := v.record.Flush(); err != nil {
			return err
		}
	}
	return v.out.Flush()
}

// note says something that is no event. What machines said is in it.
func (v *viewer) note(format string, args ...any) {
	_ = v.out.Flush()
	fmt.Fprintln(v.errs, "# "+terminal.Printable(fmt.Sprintf(format, args...)))
}

// message prints one message.
func (v *viewer) message(m zmq.Message) error {
	if m.Seq < v.replayed {
		return nil // it came by the replay already
	}
	if v.record != nil {
		if err := v.record.Write(m); err != nil {
			return err
		}
	}
	switch {
	case !v.any || m.Seq == v.next:
	case m.Seq > v.next:
		v.note("%d messages are missing before %d", m.Seq-v.next, m.Seq)
	default:
		v.note("the sequence goes back from %d to %d: another process of the engine", v.next-1, m.Seq)
	}
	v.any, v.next = true, m.Seq+1
	if v.live {
		v.replayed = 0
	}
	if err := v.decoder.Decode(m.Payload, &v.batch); err != nil {
		v.note("message %d: %v", m.Seq, err)
		return nil
	}
	for _, s := range v.batch.Skips {
		v.note("message %d, event %d is left out: %s of %s", m.Seq, s.Index, s.Reason, s.Field)
	}
	for i := range v.batch.Events {
		e := &v.batch.Events[i]
		v.print(&m, e)
		if v.call.explain {
			v.explain(e)
		}
		if v.events++; v.events == v.call.count {
			return errEnough
		}
	}
	return nil
}

// print prints one event.
func (v *viewer) print(m *zmq.Message, e *event.Event) {
	b := v.line[:0]
	if v.call.json {
		b = strconv.AppendUint(append(b, `{"seq":`...), m.Seq, 10)
		b = append(b, `,"topic":`...)
		b = append(b, quoted(m.Topic)...)
		b = strconv.AppendFloat(append(b, `,"time":`...), v.batch.Time, 'f', -1, 64)
		if v.batch.HasRank {
			b = strconv.AppendInt(append(b, `,"rank":`...), int64(v.batch.Rank), 10)
		}
		b = event.AppendJSON(append(b, `,"event":`...), e)
		b = append(b, "}\n"...)
	} else {
		b = strconv.AppendUint(b, m.Seq, 10)
		if v.batch.HasRank {
			b = strconv.AppendInt(append(b, " rank "...), int64(v.batch.Rank), 10)
		}
		b = append(appendEvent(append(b, ' '), e, &v.call.media), '\n')
	}
	v.line = b
	_, _ = v.out.Write(b) // Flush has the error
}

func quoted(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil { // a string always has a JSON form
		return []byte(`""`)
	}
	return b
}

// appendEvent appends an event in words. Tokens and salts are not for a terminal.
func appendEvent(b []byte, e *event.Event, media *event.Media) []byte {
	tier := "unknown"
	if t, known := media.TierOf(e); known {
		tier = t.String()
	}
	switch e.Kind {
	case event.Cleared:
		return append(b, "cleared"...)
	case event.Removed:
		b = fmt.Appendf(b, "removed %d blocks", len(e.Hashes))
	default:
		b = fmt.Appendf(b, "stored  %d blocks of %d tokens", len(e.Hashes), e.BlockSize)
		want := len(e.Hashes) * e.BlockSize
		if e.Bigram {
			want++
		}
		if len(e.Tokens) != want {
			b = fmt.Appendf(b, " (with %d tokens)", len(e.Tokens))
		}
	}
	b = fmt.Appendf(b, " in %s", tier)
	if e.Medium != "" {
		b = append(append(append(b, " ("...), terminal.Printable(e.Medium)...), ')')
	}
	if e.Group != 0 || e.Spec != "" {
		b = fmt.Appendf(b, " group %d %s", e.Group, terminal.Printable(e.Spec))
	}
	if e.Kind == event.Stored {
		if e.HasParent {
			b = fmt.Appendf(b, " behind %016x", uint64(e.Parent))
		} else {
			b = append(b, " at the start"...)
		}
	}
	if n := len(e.Hashes); n > 0 {
		b = fmt.Appendf(b, ": %016x", uint64(e.Hashes[0]))
		if n > 1 {
			b = fmt.Appendf(b, " to %016x", uint64(e.Hashes[n-1]))
		}
	}
	for _, what := range []struct {
		there bool
		word  string
	}{
		{e.LoRA != "", " adapter " + terminal.Printable(e.LoRA)}, {e.LoRA == "" && e.LoRAID != 0, " adapter " + strconv.FormatInt(e.LoRAID, 10)},
		{e.Salt != "", " with a salt"}, {e.Extra != nil, " with objects"}, {e.Bigram, " in pairs"},
	} {
		if what.there {
			b = append(b, what.word...)
		}
	}
	return b
}

// explain says how the hashes of an event are made, when that is news.
func (v *viewer) explain(e *event.Event) {
	x, err := event.Explain(e, v.call.seeds, v.call.loraPath)
	switch {
	case errors.Is(err, event.ErrNoStart):
		return
	case err != nil:
		if v.failed++; v.failed > 10 {
			return // each takes thousands of hashes
		}
	}
	if word := explained(x, err, v.call.seeds); word != v.said {
		v.said = word
		v.note("hashes: %s", word)
	}
}

// explained says in words how an engine makes its hashes.
func explained(x event.Explanation, err error, seeds []string) string {
	switch {
	case err != nil:
		return "none of the schemes and seeds that were tried gives them: the engine's seed (PYTHONHASHSEED) is another one, or random, or they go by what events do not tell"
	case x.Tried && len(seeds) > 0:
		return x.String() + ": your seed differs"
	}
	return x.String()
}
