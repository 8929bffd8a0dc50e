package server

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/server/answer"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/store"
)

// Pusher applies events that engines push. *ingest.Ingester is one.
type Pusher interface {
	Push(ctx context.Context, p ingest.Pushed) (ingest.PushResult, error)
}

// maxSeq is the highest number that a push can have: an index counts from 1.
const maxSeq = store.MaxSequence - 1

// events is POST /v1/events.
func (c *call) events() error {
	if c.s.cfg.Events == nil {
		return &refusal.Error{Status: http.StatusNotImplemented, Code: refusal.CodeNoIngest, Message: "this server takes no events: it does not have the role ingest"}
	}
	pushes, err := c.readPushes()
	if err != nil {
		return err
	}
	if len(pushes) == 1 && pushes[0].Pod == "" {
		if err := fromQuery(&pushes[0], c.r.URL.Query()); err != nil {
			return err
		}
	}
	if len(pushes) == 1 {
		c.model = pushes[0].Model
	}
	all := make([]ingest.Pushed, len(pushes))
	for i := range pushes {
		if all[i], err = pushed(&pushes[i], len(pushes) > 1, i); err != nil {
			return err
		}
	}
	for i := range all {
		if err := c.s.checkRanks(c.ctx, all[i].Pod, all[i].Model, ranksOf(&all[i])...); err != nil {
			return inPush(err, len(all) > 1, i)
		}
	}
	results := make([]ingest.PushResult, len(all))
	for i := range all {
		if err := c.s.introduce(c.ctx, &all[i]); err != nil {
			return err
		}
		r, err := c.s.cfg.Events.Push(c.ctx, all[i])
		if errors.Is(err, store.ErrUnknownPod) {
			// Another server has removed the pod, and the registry in memory does not know yet.
			if err = c.s.enroll(c.ctx, &all[i]); err == nil {
				r, err = c.s.cfg.Events.Push(c.ctx, all[i])
			}
		}
		if err != nil {
			return inPush(err, len(all) > 1, i)
		}
		results[i] = r
	}
	return c.replyOK(answer.AppendEvents(c.out[:0], results, pushes))
}

// readPushes reads the body, JSON or MessagePack.
func (c *call) readPushes() ([]event.Push, error) {
	body, giveBack, err := c.bodyInTurn()
	if err != nil {
		return nil, err
	}
	defer giveBack()
	limits := &c.s.cfg.Limits
	c.decoder.Limits = event.Limits{Payload: int(limits.MaxBodyBytes), Hashes: limits.MaxTokens, Tokens: limits.MaxTokens}
	read := c.decoder.JSONPushes
	if packed(c.r.Header.Get("Content-Type")) {
		read = c.decoder.Pushes
	} else if err := scan.EmptyBody(body); err != nil {
		return nil, err
	}
	pushes, err := read(body)
	if err != nil {
		return nil, refusedEvents(err)
	}
	return pushes, nil
}

// packed reports whether a content type is one of those of MessagePack.
func packed(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (t == "application/msgpack" || t == "application/x-msgpack" || t == "application/vnd.msgpack")
}

// refusedEvents is what the client hears of a body that cannot be read.
func refusedEvents(err error) error {
	if p, ok := errors.AsType[*event.ParamError](err); ok {
		code := refusal.CodeInvalidRequest
		if p.Problem == "is not known" {
			code = refusal.CodeUnknownField
		}
		return &refusal.Error{Status: http.StatusBadRequest, Code: code, Param: p.Param, Message: p.Param + " " + p.Problem}
	}
	code := refusal.CodeInvalidRequest
	if errors.Is(err, event.ErrJSON) {
		code = refusal.CodeInvalidJSON
	}
	return &refusal.Error{Status: http.StatusBadRequest, Code: code, Message: err.Error()}
}

// fromQuery fills in from the query what a message of an engine does not have.
func fromQuery(p *event.Push, q url.Values) error {
	p.Pod, p.Model, p.Engine = q.Get("pod"), q.Get("model"), q.Get("engine")
	for _, name := range []string{"pod", "model"} {
		if q.Get(name) == "" {
			return refusal.Invalid(name, "a message of an engine needs %s in the query", name)
		}
	}
	if s := q.Get("seq"); s != "" {
		seq, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return refusal.Invalid("seq", "seq is no sequence number: a whole number from 0 to 2^53-2")
		}
		p.Seq, p.HasSeq = seq, true
	}
	if s := q.Get("rank"); s != "" {
		rank, err := strconv.Atoi(s)
		if err != nil {
			return refusal.Invalid("rank", "rank is no number")
		}
		p.Rank, p.HasRank = rank, true
		for i := range p.Batches { // it goes before what the message says
			p.Batches[i].Rank, p.Batches[i].HasRank = rank, true
		}
	}
	return nil
}

// pushed is what an Ingester takes of a push, checked. i is its place among many.
func pushed(p *event.Push, many bool, i int) (out ingest.Pushed, err error) {
	at := func(param string) string { return paramOf(param, many, i) }
	if err := store.CheckPodName(p.Pod); err != nil {
		return out, refusal.Invalid(at("pod"), "%s", refusal.Plain(err, store.ErrInvalid))
	}
	if err := (&store.ModelInfo{Name: p.Model, BlockSize: 1, Scheme: store.SchemeNative}).Validate(); err != nil {
		return out, refusal.Invalid(at("model"), "%s", refusal.Plain(err, store.ErrInvalid))
	}
	if err := checkPod(at("pod"), p.Pod, p.Model); err != nil {
		return out, err
	}
	if err := store.CheckRank(p.Rank); err != nil {
		return out, refusal.Invalid(at("rank"), "%s", refusal.Plain(err, store.ErrInvalid))
	}
	out = ingest.Pushed{Pod: p.Pod, Model: p.Model, Engine: p.Engine, Rank: p.Rank, Skipped: p.Skipped}
	if p.HasSeq {
		if p.Seq > maxSeq {
			return out, refusal.Invalid(at("seq"), "seq is %d, the highest is %d", p.Seq, uint64(maxSeq))
		}
		out.Seq = &p.Seq
	}
	for _, b := range p.Batches {
		if err := store.CheckRank(b.Rank); err != nil {
			return out, refusal.Invalid(at("rank"), "%s", refusal.Plain(err, store.ErrInvalid))
		}
		out.Ranks = append(out.Ranks, ingest.RankEvents{Rank: b.Rank, Events: b.Events})
	}
	return out, nil
}

// paramOf is the name of a field of a push in errors, with its place where there are many.
func paramOf(param string, many bool, i int) string {
	if many {
		return "[" + strconv.Itoa(i) + "]." + param
	}
	return param
}

// ranksOf are the ranks that a push is about: the one that names its stream, and those
// that it has events of.
func ranksOf(p *ingest.Pushed) (ranks []int) {
	if p.Seq != nil {
		ranks = append(ranks, p.Rank)
	}
	for i := range p.Ranks {
		ranks = append(ranks, p.Ranks[i].Rank)
	}
	return ranks
}

// inPush is an error of a push as the client hears it: of which one, where there are many.
func inPush(err error, many bool, i int) error {
	if !many || !errors.Is(err, store.ErrNoRank) && !errors.Is(err, ingest.ErrOtherModel) {
		return err
	}
	e := refusal.Of(err)
	e.Param = paramOf(e.Param, many, i)
	return e
}

// introduce registers an unregistered pod, as POST /v1/blocks does. Events of
// one that has other names for its model are filed under its registration's.
func (s *Server) introduce(ctx context.Context, p *ingest.Pushed) error {
	reg, err := s.registry(ctx, p.Pod, p.Model)
	if err != nil {
		return err
	}
	at, known := reg.Serving(p.Pod, p.Model)
	if !known {
		return s.enroll(ctx, p)
	}
	p.Pod = reg.Pods[at].Name
	if pod := &reg.Pods[at]; pod.Model != p.Model && slices.Contains(pod.Aliases, p.Model) {
		p.Model = pod.Model // by another name of it
	}
	return nil
}

// enroll registers the pod of a push unless it is.
func (s *Server) enroll(ctx context.Context, p *ingest.Pushed) error {
	return s.cfg.Index.Apply(ctx, store.Batch{Pod: p.Pod, Rank: p.Rank, Model: p.Model})
}
