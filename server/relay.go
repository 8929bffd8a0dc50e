package server

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/server/appendjson"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/store"
)

// Relay gives out the recent messages of ranks, and what the index holds of them.
// *ingest.Ingester is one.
type Relay interface {
	// Recent returns the messages of a rank from one sequence to another, both
	// included, as many as it gives at once; see ingest.Ingester.Recent.
	Recent(pod string, rank int, from, to uint64) (ingest.Recent, error)
	// Held returns a page of the blocks of a rank; see ingest.Ingester.Held.
	Held(ctx context.Context, pod string, rank int, cursor string, limit int) (ingest.Held, error)
}

var _ Relay = (*ingest.Ingester)(nil)

// relayTries is how often the oldest message is asked for anew that has been pushed out
// of the ring meanwhile.
const relayTries = 8

// relay is what answers, and the rank of the path.
func (c *call) relay() (r Relay, pod string, rank int, err error) {
	if r = c.s.cfg.Relay; r == nil {
		return nil, "", 0, &refusal.Error{Status: http.StatusNotImplemented, Code: refusal.CodeNoIngest, Message: "this server reads no events: it does not have the role ingest"}
	}
	if pod, err = c.pathName("pod"); err != nil {
		return nil, "", 0, err
	}
	text := chi.URLParam(c.r, "rank")
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n >= store.MaxRanks {
		return nil, "", 0, refusal.Invalid("rank", "rank is %s, it must be a whole number from 0 to %d", refusal.Clip(text), store.MaxRanks-1)
	}
	return r, pod, int(n), nil
}

// recentEvents is GET /v1/ingest/{pod}/{rank}/events.
func (c *call) recentEvents() error {
	relay, pod, rank, err := c.relay()
	if err != nil {
		return err
	}
	from, err := whole(c.query, "from", 0, 0, math.MaxUint64)
	if err != nil {
		return err
	}
	to, err := whole(c.query, "to", math.MaxUint64, 0, math.MaxUint64)
	if err != nil {
		return err
	}
	recent, err := relay.Recent(pod, rank, from, to)
	if !c.query.Has("from") {
		// All that is kept: what is kept goes on while we ask.
		for range relayTries {
			if !errors.Is(err, ingest.ErrTooOld) || recent.First > to {
				break
			}
			from = recent.First
			recent, err = relay.Recent(pod, rank, from, to)
		}
		if errors.Is(err, ingest.ErrTooNew) { // from 0: there is nothing
			recent, err = ingest.Recent{}, nil
		}
	}
	if err != nil {
		return err
	}
	limit := c.s.cfg.Limits.MaxRelayBytes
	if err := c.hold(limit); err != nil {
		return err
	}
	return c.replyOK(c.appendRecent(c.out[:0], pod, rank, &recent, to, int(limit)))
}

// appendRecent writes the messages, the first of them in any case and then as many as
// there is room for in limit bytes.
func (c *call) appendRecent(b []byte, pod string, rank int, r *ingest.Recent, to uint64, limit int) []byte {
	b = appendjson.String(append(b, `{"pod":`...), pod)
	b = strconv.AppendInt(append(b, `,"rank":`...), int64(rank), 10)
	if len(r.Messages) > 0 {
		b = strconv.AppendUint(append(b, `,"first":`...), r.First, 10)
		b = strconv.AppendUint(append(b, `,"last":`...), r.Last, 10)
	}
	b = append(b, `,"messages":[`...)
	var batch event.Batch
	c.decoder.Limits = event.Limits{}
	more := false
	for i := range r.Messages {
		begun := len(b)
		b = appendjson.Comma(b, i)
		m := &r.Messages[i]
		b = strconv.AppendUint(append(b, `{"seq":`...), m.Seq, 10)
		b = appendjson.String(append(b, `,"topic":`...), m.Topic)
		if err := c.decoder.Decode(m.Payload, &batch); err != nil {
			b = append(appendjson.String(append(b, `,"events":[],"malformed":`...), refusal.Plain(err, event.ErrMalformed)), '}')
		} else {
			b = appendBatch(b, &batch)
		}
		if i > 0 && len(b) > limit {
			b, more = b[:begun], true
			r.Messages = r.Messages[:i]
			break
		}
	}
	b = append(b, ']')
	if n := len(r.Messages); n > 0 {
		if last := r.Messages[n-1].Seq; more || last < min(to, r.Last) {
			b = strconv.AppendUint(append(b, `,"next":`...), last+1, 10)
		}
	}
	return append(b, "}\n"...)
}

// appendBatch writes what a message holds, up to its closing brace.
func appendBatch(b []byte, batch *event.Batch) []byte {
	if t := batch.Time; !math.IsNaN(t) && !math.IsInf(t, 0) {
		b = strconv.AppendFloat(append(b, `,"time":`...), t, 'f', -1, 64)
	}
	if batch.HasRank {
		b = strconv.AppendInt(append(b, `,"data_parallel_rank":`...), int64(batch.Rank), 10)
	}
	b = append(b, `,"events":[`...)
	for i := range batch.Events {
		b = event.AppendJSON(appendjson.Comma(b, i), &batch.Events[i])
	}
	b = append(b, ']')
	if batch.Skipped > 0 {
		b = strconv.AppendInt(append(b, `,"skipped":`...), int64(batch.Skipped), 10)
	}
	return append(b, '}')
}

// heldPage is how many blocks of the index a page of a rank's blocks looks at.
const heldPage = 8192

// heldKeyBytes is what a key takes in the answer, with its quotes and comma.
const heldKeyBytes = 19

// heldReply is the answer of GET /v1/ingest/{pod}/{rank}/blocks.
type heldReply struct {
	Pod        string                `json:"pod"`
	Rank       int                   `json:"rank"`
	Generation uint64                `json:"generation"`
	Seq        uint64                `json:"seq"`
	BlockKeys  map[string][]blockKey `json:"block_keys"`
	Next       string                `json:"next,omitempty"`
}

// blockKey is a key as JSON has it.
type blockKey blockkey.Key

// MarshalText implements encoding.TextMarshaler.
func (k blockKey) MarshalText() ([]byte, error) { return []byte(blockkey.Key(k).String()), nil }

// heldBlocks is GET /v1/ingest/{pod}/{rank}/blocks.
func (c *call) heldBlocks() error {
	relay, pod, rank, err := c.relay()
	if err != nil {
		return err
	}
	limit, err := whole(c.query, "limit", heldPage, 1, store.MaxPage)
	if err != nil {
		return err
	}
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return err
	}
	at, known := reg.PodIndex(pod)
	if !known {
		return unknownPod("pod", pod)
	}
	if err := c.hold(int64(limit) * heldKeyBytes); err != nil {
		return err
	}
	model := blockkey.ModelOf(reg.Pods[at].Model)
	held, err := relay.Held(c.ctx, pod, rank, c.query.Get("cursor"), int(limit))
	if err != nil {
		return err
	}
	out := heldReply{
		Pod: pod, Rank: rank, Generation: uint64(held.Generation), Seq: held.Seq, Next: held.Next,
		BlockKeys: map[string][]blockKey{},
	}
	for tier, keys := range held.Keys {
		for _, k := range keys {
			name := store.Tier(tier).String()
			out.BlockKeys[name] = append(out.BlockKeys[name], blockKey(uint64(k)^uint64(model)))
		}
	}
	return c.replyJSON(http.StatusOK, out)
}
