package event

import (
	"fmt"
	"math"
	"slices"

	"github.com/kvatlas/kvatlas/internal/jsonpack"
)

// ErrJSON says that a body is no JSON.
var ErrJSON = jsonpack.ErrJSON

// Push is a batch of events that an engine, or someone for it, sends over HTTP:
//
//	{"pod":"10.0.0.1:8000","model":"m","rank":0,"engine":"vllm","seq":7,"events":[...]}
//
// as JSON, or the same map as MessagePack. The events are those of the wire in
// either form, with hashes as numbers or hex digits, or TensorRT-LLM's.
type Push struct {
	// Pod and Model say whose events they are; Engine is the engine's kind, "" when
	// it is not told.
	Pod, Model, Engine string
	// Rank is the data-parallel rank of the batch, if HasRank.
	Rank    int
	HasRank bool
	// Seq is the engine's number of the batch, if HasSeq. Without one there is no
	// order and nothing to notice a loss by.
	Seq    uint64
	HasSeq bool
	// BlockSize is the engine's block size in tokens, for TensorRT-LLM's events. Smaller
	// blocks are partial and left out. 0 leaves that to the caller that applies the
	// events.
	BlockSize int
	// Batches are the events, one for each rank that they are of; within it in order.
	Batches []Batch
	// Skipped and Skips are those of all batches: events that are left out.
	Skipped int
	Skips   []Skip
}

// maxPushes is how many pushes a body may have.
const maxPushes = 1024

// ParamError is a field of a push that cannot be taken.
type ParamError struct {
	// Param is the field, with its place in a list of pushes as in "[2].seq".
	Param string
	// Problem says what is wrong with it.
	Problem string
}

// Error says which field it is and what is wrong with it.
func (e *ParamError) Error() string { return fmt.Sprintf("event: %s %s", e.Param, e.Problem) }

// Pushes reads a body of one push, or of an array of pushes, in MessagePack. What is
// wrong with a push is a *ParamError; a body that has no pushes at all wraps
// ErrMalformed.
//
// With MessagePack the body may also be a message as engines publish it, [time,
// [event...], rank]. The push then has no Pod, for the caller to fill in.
func (d *Decoder) Pushes(body []byte) ([]Push, error) {
	d.limits = d.Limits.filled()
	if len(body) > d.limits.Payload {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrMalformed, len(body), d.limits.Payload)
	}
	d.cursor = cursor{b: body}
	defer func() { d.cursor, d.batch, d.push, d.fields = cursor{}, nil, nil, fields{} }()

	if isMap(d.peek()) {
		var p Push
		if err := d.onePush(&p, ""); err != nil {
			return nil, err
		}
		return []Push{p}, d.end()
	}
	start := d.i
	n, ok := d.array()
	if !ok {
		return nil, d.malformed("neither a map nor an array")
	}
	if n > 0 && !isMap(d.peek()) {
		d.i = start
		return d.payloadPush()
	}
	if n > maxPushes {
		return nil, &ParamError{Param: "body", Problem: fmt.Sprintf("has %d pushes, the limit is %d", n, maxPushes)}
	}
	pushes := make([]Push, n)
	for i := range pushes {
		if err := d.onePush(&pushes[i], fmt.Sprintf("[%d].", i)); err != nil {
			return nil, err
		}
	}
	return pushes, d.end()
}

// JSONPushes is Pushes of a body in JSON. Text that is no JSON wraps ErrJSON.
func (d *Decoder) JSONPushes(body []byte) ([]Push, error) {
	if limit := d.Limits.filled().Payload; len(body) > limit {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrMalformed, len(body), limit)
	}
	packed, err := jsonpack.Append(make([]byte, 0, len(body)), body)
	if err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	// The limit is that of the body, which has been held to it.
	limit := d.Limits.Payload
	d.Limits.Payload = max(len(packed), 1)
	defer func() { d.Limits.Payload = limit }()
	return d.Pushes(packed)
}

// payloadPush reads a message as engines publish it.
func (d *Decoder) payloadPush() ([]Push, error) {
	var b Batch
	d.batch = &b
	if err := d.message(); err != nil {
		return nil, err
	}
	return []Push{{
		Rank: b.Rank, HasRank: b.HasRank, Batches: []Batch{b}, Skipped: b.Skipped, Skips: b.Skips,
	}}, nil
}

// onePush reads a push. Prefix is in front of the names of its fields in errors.
func (d *Decoder) onePush(p *Push, prefix string) error {
	bad := func(param, problem string) error {
		if d.broken {
			return d.end()
		}
		return &ParamError{Param: prefix + param, Problem: problem}
	}
	n, ok := d.mapping()
	if !ok {
		return bad("body", "is no object")
	}
	events := 0
	d.created, d.fault = none, fault{}
	for range n {
		key, ok := d.text()
		if !ok {
			return bad("body", "has names that are no text")
		}
		switch string(key) {
		case "pod":
			p.Pod = d.name("pod")
		case "model":
			p.Model = d.name("model")
		case "engine":
			p.Engine = d.name("engine")
		case "rank":
			if d.null() {
				continue
			}
			if p.Rank, p.HasRank = d.natural(maxRank); !p.HasRank {
				return bad("rank", "is no rank: a whole number from 0 to 65535")
			}
		case "seq":
			if d.null() {
				continue
			}
			v, negative, ok := d.integer()
			if !ok || negative {
				return bad("seq", "is no sequence number: a whole number from 0 to 2^64-1")
			}
			p.Seq, p.HasSeq = v, true
		case "block_size":
			if d.null() {
				continue
			}
			if p.BlockSize, ok = d.natural(math.MaxInt32); !ok {
				return bad("block_size", "is no number of tokens")
			}
		case "events":
			events = d.i
			d.skip()
		default:
			return bad(clip(key), "is not known")
		}
		if f := d.fault; f.reason != 0 {
			return bad(f.field, map[Reason]string{BadField: "is no text", OverLimit: "is too long"}[f.reason])
		}
	}
	switch {
	case d.broken:
		return d.end()
	case p.Pod == "":
		return bad("pod", "is missing")
	case p.Model == "":
		return bad("model", "is missing")
	case events == 0:
		return bad("events", "is missing")
	}
	end := d.i
	d.i = events
	if !isArray(d.peek()) {
		return bad("events", "is no array")
	}
	if err := d.pushEvents(p); err != nil {
		return err
	}
	d.i = end
	return nil
}

// clip keeps a name readable in an error.
func clip(s []byte) string {
	if len(s) > 32 {
		return string(s[:32]) + "..."
	}
	return string(s)
}

// pushEvents reads the events of a push.
func (d *Decoder) pushEvents(p *Push) error {
	var all Batch
	d.batch, d.push, d.ranks = &all, p, d.ranks[:0]
	err := d.events()
	d.push = nil
	if err != nil {
		return err
	}
	p.Skipped, p.Skips = all.Skipped, all.Skips
	for from := 0; from < len(all.Events); {
		to := from + 1
		for to < len(all.Events) && d.ranks[to] == d.ranks[from] {
			to++
		}
		b := Batch{Rank: p.Rank, HasRank: p.HasRank, Events: all.Events[from:to:to]}
		if r := d.ranks[from]; r >= 0 {
			b.Rank, b.HasRank = r, true
		}
		// The push has one number, and so one batch for each rank, however they alternate.
		if i := slices.IndexFunc(p.Batches, func(have Batch) bool { return have.Rank == b.Rank }); i >= 0 {
			have := &p.Batches[i]
			have.Events, have.HasRank = append(have.Events, b.Events...), have.HasRank || b.HasRank
		} else {
			p.Batches = append(p.Batches, b)
		}
		from = to
	}
	return nil
}
