package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/record"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/store"
)

const inspectPlayUsage = `kvatlas inspect play sends a record of events again: as an engine does, or to a
server.

  kvatlas inspect play FILE --bind tcp://*:5557 [--replay tcp://*:5558]
  kvatlas inspect play FILE --server URL --pod POD --model MODEL

FILE is a record of kvatlas inspect events --record, of which files that were
rotated away are played first, or one of Dynamo's recorder. The latter has no
tokens, so it can go to a server alone: each worker becomes a pod "worker-ID",
and the model must be indexed with the block size of the record.

With --bind it waits for a reader, and says which --pods lets kvatlas serve be one.
examples/events.jsonl in the sources is a small record to begin with.

`

// playCall is one call of kvatlas inspect play.
type playCall struct {
	file       string
	publish    zmq.PublisherConfig
	speed      float64
	wait, hold time.Duration
	server     string
	timeout    time.Duration
	pod, model string
}

func readPlayCall(p *cli.Program, args []string) (*playCall, error) {
	fs := flag.NewFlagSet("kvatlas inspect play", flag.ContinueOnError)
	c := &playCall{}
	fs.StringVar(&c.publish.Endpoint, "bind", "", "publish at this `ENDPOINT`")
	fs.StringVar(&c.publish.Replay, "replay", "", "with --bind: have a replay socket at this `ENDPOINT`")
	fs.DurationVar(&c.wait, "wait", time.Minute, "with --bind: how long to wait for the first subscriber")
	fs.DurationVar(&c.hold, "hold", 0, "with --bind: how long to stay when all is sent")
	fs.StringVar(&c.server, "server", "", "send to the server at this `URL`")
	fs.DurationVar(&c.timeout, "timeout", 30*time.Second, "with --server: how long to wait for an answer")
	fs.StringVar(&c.pod, "pod", "", "with --server: whose events they are to be")
	fs.StringVar(&c.model, "model", "", "with --server: of which model")
	fs.Float64Var(&c.speed, "speed", 1, "how fast: 2 is twice as fast as recorded, 0 as fast as possible")
	words, err := p.ReadFlags(fs, args, inspectPlayUsage)
	if err != nil {
		return nil, err
	}
	if len(words) != 1 {
		return nil, fmt.Errorf("%d arguments, one FILE is needed", len(words))
	}
	c.file = words[0]
	switch {
	case (c.publish.Endpoint == "") == (c.server == ""):
		return nil, errors.New("either --bind or --server is needed")
	case c.server == "" && cli.FlagGiven(fs, "pod", "model", "timeout"):
		return nil, errors.New("--pod, --model and --timeout are for --server")
	case c.server != "" && cli.FlagGiven(fs, "replay", "wait", "hold"):
		return nil, errors.New("--replay, --wait and --hold are for --bind")
	case c.server != "" && c.model == "":
		return nil, errors.New("--model is missing")
	case c.speed < 0 || math.IsNaN(c.speed) || math.IsInf(c.speed, 0):
		return nil, fmt.Errorf("--speed is %v, it must be a number from 0", c.speed)
	case c.wait <= 0 || c.hold < 0 || c.timeout <= 0:
		return nil, errors.New("--wait and --timeout must be positive, --hold not negative")
	}
	return c, nil
}

// inspectPlay is kvatlas inspect play.
func inspectPlay(ctx context.Context, p *cli.Program, args []string) int {
	call, err := readPlayCall(p, args)
	if err != nil {
		return p.Misuse("inspect play", err)
	}
	// Before the wait for a subscriber.
	if err := call.look(); err != nil {
		return p.Fail("inspect play", err)
	}
	send, end, err := call.sender(ctx, p)
	if err != nil {
		return p.Fail("inspect play", err)
	}
	n, err := call.play(ctx, send)
	if err == nil && ctx.Err() == nil {
		err = end(true)
	} else {
		err = errors.Join(err, end(false))
	}
	if err != nil {
		return p.Fail("inspect play", err)
	}
	if ctx.Err() != nil {
		return p.Fail("inspect play", context.Cause(ctx))
	}
	fmt.Fprintf(p.Stderr, "# %d entries of the record are sent\n", n)
	return cli.ExitOK
}

// sendFunc sends an entry of a record.
type sendFunc func(context.Context, *record.Entry) error

// errDynamo says that an engine's events cannot be made of a record.
var errDynamo = errors.New("it is of a record of Dynamo's, which has no tokens: send it to a --server")

// look reads the first entry, so that a file that is no record is known at once.
func (c *playCall) look() error {
	files, err := record.Files(c.file)
	if err != nil {
		return err
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		e, err := record.NewReader(f, name).Next()
		_ = f.Close() // it was only read
		switch {
		case errors.Is(err, io.EOF):
			continue
		case err != nil:
			return err
		case e.Event != nil && c.server == "":
			return fmt.Errorf("entry 1: %w", errDynamo)
		}
		return nil
	}
	return fmt.Errorf("%s has no entries: it is not what kvatlas inspect events --record writes", c.file)
}

// play sends the whole record, in its time.
func (c *playCall) play(ctx context.Context, send sendFunc) (n int, err error) {
	files, err := record.Files(c.file)
	if err != nil {
		return 0, err
	}
	var (
		begin = time.Now()
		first = time.Duration(-1)
	)
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return n, err
		}
		r := record.NewReader(f, name)
		for ctx.Err() == nil {
			var e record.Entry
			if e, err = r.Next(); err != nil {
				break
			}
			if first < 0 {
				first = e.At
			}
			if c.speed > 0 {
				due := begin.Add(time.Duration(float64(e.At-first) / c.speed))
				if !cli.SleepUntil(ctx, due) {
					break
				}
			}
			if err = send(ctx, &e); err != nil {
				err = fmt.Errorf("entry %d: %w", n+1, err)
				break
			}
			n++
		}
		if closed := f.Close(); err == nil || errors.Is(err, io.EOF) {
			err = closed
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// sender returns what sends entries, and what ends it: wholly, or at once.
func (c *playCall) sender(ctx context.Context, p *cli.Program) (sendFunc, func(whole bool) error, error) {
	if c.server != "" {
		cl, err := p.Client("inspect", c.server, c.timeout)
		if err != nil {
			return nil, nil, err
		}
		s := &serverSender{call: c, client: cl}
		return s.send, func(bool) error { cl.Close(); return nil }, nil
	}
	pub, err := zmq.NewPublisher(c.publish)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(p.Stderr, "# waiting up to %v for a subscriber: kvatlas serve --pods '%s'\n", c.wait, podOf(c.publish))
	within, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	for pub.Subscribers() == 0 {
		if !cli.SleepUntil(within, time.Now().Add(5*time.Millisecond)) {
			return nil, nil, errors.Join(fmt.Errorf("no subscriber came to %s within %v", c.publish.Endpoint, c.wait), pub.Close())
		}
	}
	return publishTo(pub), func(whole bool) error { return c.endPublisher(ctx, pub, whole) }, nil
}

// podOf is the pod that a server on this machine has to know to read what is published, as
// the setting pods takes it. What it is called and which model it has is the reader's.
func podOf(c zmq.PublisherConfig) string {
	here := strings.NewReplacer("//*:", "//127.0.0.1:", "//0.0.0.0:", "//127.0.0.1:", "//[::]:", "//[::1]:")
	text := "HOST:PORT?model=MODEL&events=" + here.Replace(c.Endpoint)
	if c.Replay != "" {
		text += "&replay=" + here.Replace(c.Replay)
	}
	return text
}

// half is how many messages wait for a subscriber before the player waits for it.
const half = 5000

func publishTo(pub *zmq.Publisher) sendFunc {
	return func(ctx context.Context, e *record.Entry) error {
		if e.Event != nil {
			return errDynamo
		}
		for pub.Waiting() > half {
			if !cli.SleepUntil(ctx, time.Now().Add(time.Millisecond)) {
				return context.Cause(ctx)
			}
		}
		pub.Publish(e.Message)
		return nil
	}
}

// endPublisher waits until what was published has gone, and for as long as asked.
func (c *playCall) endPublisher(ctx context.Context, pub *zmq.Publisher, whole bool) error {
	if whole {
		for pub.Waiting() > 0 && cli.SleepUntil(ctx, time.Now().Add(time.Millisecond)) {
		}
		// What has left the queue is written within this.
		cli.SleepUntil(ctx, time.Now().Add(max(c.hold, 200*time.Millisecond)))
	}
	lost := pub.Lost()
	if err := pub.Close(); err != nil {
		return err
	}
	if lost > 0 {
		return fmt.Errorf("%d messages found no room in the queue of a subscriber", lost)
	}
	return nil
}

// serverSender sends entries to a server.
type serverSender struct {
	call    *playCall
	client  *client.Client
	decoder event.Decoder
	batch   event.Batch
	chains  record.Chainer
}

func (s *serverSender) send(ctx context.Context, e *record.Entry) error {
	if e.Event != nil {
		return s.sendDynamo(ctx, e.Event)
	}
	if s.call.pod == "" {
		return errors.New("--pod is missing: the record does not say whose events they are")
	}
	if err := s.decoder.Decode(e.Message.Payload, &s.batch); err != nil {
		return err
	}
	r := client.EventsRequest{Pod: s.call.pod, Model: s.call.model, Rank: s.batch.Rank, Seq: &e.Message.Seq}
	for i := range s.batch.Events {
		r.Events = append(r.Events, client.Event{Raw: json.RawMessage(event.AppendJSON(nil, &s.batch.Events[i]))})
	}
	_, err := s.client.PushEvents(ctx, r)
	return err
}

// sendDynamo sends an event of Dynamo's as block keys. A block whose place is not
// known is left out, as Dynamo's router leaves it out.
func (s *serverSender) sendDynamo(ctx context.Context, e *record.RouterEvent) error {
	keys, err := s.chains.Keys(e)
	if errors.Is(err, record.ErrNoParent) {
		return nil
	}
	if err != nil {
		return err
	}
	r := client.BlocksRequest{
		Model: s.call.model, Rank: &e.Rank, Tier: e.Tier.String(),
		Pod: cmp.Or(s.call.pod, "worker-"+strconv.FormatUint(e.Worker, 10)),
	}
	switch e.Kind {
	case store.Add:
		r.Op = client.OpAdd
	case store.Remove:
		r.Op = client.OpRemove
	default:
		r.Op = client.OpClear
		_, err := s.client.Blocks(ctx, r)
		return err
	}
	if len(keys) == 0 {
		return nil
	}
	for _, k := range keys {
		r.BlockKeys = append(r.BlockKeys, k.String())
	}
	_, err = s.client.Blocks(ctx, r)
	return err
}
