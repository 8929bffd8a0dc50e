package server

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// Pusher applies events that engines push. *ingest.Ingester is one.
type Pusher interface {
	Push(ctx context.Context, p ingest.Pushed) (ingest.PushResult, error)
}

// maxSeq is the highest number that a push can have: an index counts from 1.
const maxSeq = store.MaxSequence - 1

// maxShapes is of how many pods it is remembered what their events have to be held
// against.
const maxShapes = 4096

// shapes are what is known of pods from their pushes, of the last ones that pushed.
type shapes struct {
	mu   sync.Mutex // protects pods
	pods *lru.LRU[string, shape]
}

// shape is a pod's block size and widest attention window, in tokens.
type shape struct {
	blockSize, window int
}

func newShapes() (*shapes, error) {
	pods, err := lru.NewLRU[string, shape](maxShapes, nil)
	if err != nil {
		return nil, err
	}
	return &shapes{pods: pods}, nil
}

func (s *shapes) get(pod string) (blockSize, window int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, _ := s.pods.Get(pod)
	return known.blockSize, known.window
}

// put keeps what there is to keep, which is nothing for most engines.
func (s *shapes) put(p *event.Push) {
	if p.BlockSize == 0 && p.Window == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods.Add(p.Pod, shape{p.BlockSize, p.Window})
}

// events is POST /v1/events.
func (c *call) events() error {
	if c.s.cfg.Events == nil {
		return &apiError{status: http.StatusNotImplemented, code: codeNoIngest, message: "this server takes no events: it does not have the role ingest"}
	}
	body, err := c.readBody()
	if err != nil {
		return err
	}
	limits := &c.s.cfg.Limits
	c.decoder.Limits = event.Limits{Payload: int(limits.MaxBodyBytes), Hashes: limits.MaxTokens, Tokens: limits.MaxTokens}
	read := c.decoder.JSONPushes
	if packed(c.r.Header.Get("Content-Type")) {
		read = c.decoder.Pushes
	}
	pushes, err := read(body, c.s.shapes.get)
	if err != nil {
		return refusedEvents(err)
	}
	if len(pushes) == 1 && pushes[0].Pod == "" {
		if err := fromQuery(&pushes[0], c.r.URL.Query()); err != nil {
			return err
		}
	}
	if len(pushes) == 1 {
		c.model = pushes[0].Model
	}
	var all []ingest.Pushed
	for i := range pushes {
		if all, err = appendPushed(all, &pushes[i], len(pushes) > 1, i); err != nil {
			return err
		}
	}
	var sum ingest.PushResult
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
			return err
		}
		sum.Applied += r.Applied
		sum.Skipped += r.Skipped
	}
	for i := range pushes {
		c.s.shapes.put(&pushes[i])
	}
	c.out = appendEventsReply(c.out[:0], sum, pushes)
	c.reply(http.StatusOK, c.out)
	return nil
}

// packed tells whether a content type is one of those of MessagePack.
func packed(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (t == "application/msgpack" || t == "application/x-msgpack" || t == "application/vnd.msgpack")
}

// refusedEvents is what the client hears of a body that cannot be read.
func refusedEvents(err error) error {
	if p, ok := errors.AsType[*event.ParamError](err); ok {
		code := codeInvalidRequest
		if p.Problem == "is not known" {
			code = codeUnknownField
		}
		return &apiError{status: http.StatusBadRequest, code: code, param: p.Param, message: p.Param + " " + p.Problem}
	}
	code := codeInvalidRequest
	if errors.Is(err, event.ErrJSON) {
		code = codeInvalidJSON
	}
	return &apiError{status: http.StatusBadRequest, code: code, message: err.Error()}
}

// fromQuery fills in what a message as engines publish it does not tell.
func fromQuery(p *event.Push, q url.Values) error {
	p.Pod, p.Model, p.Engine = q.Get("pod"), q.Get("model"), q.Get("engine")
	for _, name := range []string{"pod", "model"} {
		if q.Get(name) == "" {
			return invalid(name, "a message of an engine needs %s in the query", name)
		}
	}
	if s := q.Get("seq"); s != "" {
		seq, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return invalid("seq", "seq is no sequence number: a whole number from 0 to 2^53-2")
		}
		p.Seq, p.HasSeq = seq, true
	}
	if s := q.Get("rank"); s != "" {
		rank, err := strconv.Atoi(s)
		if err != nil {
			return invalid("rank", "rank is no number")
		}
		p.Rank, p.HasRank = rank, true
		for i := range p.Batches { // it goes before what the message says
			p.Batches[i].Rank, p.Batches[i].HasRank = rank, true
		}
	}
	return nil
}

// appendPushed appends what an Ingester takes of a push, having checked all of it.
func appendPushed(all []ingest.Pushed, p *event.Push, many bool, i int) ([]ingest.Pushed, error) {
	at := func(param string) string {
		if many {
			return "[" + strconv.Itoa(i) + "]." + param
		}
		return param
	}
	if err := store.CheckPodName(p.Pod); err != nil {
		return nil, invalid(at("pod"), "%s", plain(err, store.ErrInvalid))
	}
	if err := (&store.ModelInfo{Name: p.Model, BlockSize: 1, Scheme: store.SchemeNative}).Validate(); err != nil {
		return nil, invalid(at("model"), "%s", plain(err, store.ErrInvalid))
	}
	one := ingest.Pushed{Pod: p.Pod, Model: p.Model, Engine: p.Engine, Rank: p.Rank, Skipped: p.Skipped}
	if p.HasSeq {
		if p.Seq > maxSeq {
			return nil, invalid(at("seq"), "seq is %d, the highest is %d", p.Seq, uint64(maxSeq))
		}
		one.Seq = &p.Seq
	}
	batches := p.Batches
	if len(batches) == 0 { // its number counts, and what was skipped
		batches = []event.Batch{{Rank: p.Rank}}
	}
	for _, b := range batches {
		if err := store.CheckRank(b.Rank); err != nil {
			return nil, invalid(at("rank"), "%s", plain(err, store.ErrInvalid))
		}
		one.Rank, one.Events = b.Rank, b.Events
		all = append(all, one)
		one.Skipped = 0
	}
	return all, nil
}

// introduce registers a pod that nobody has registered, as POST /v1/blocks does.
func (s *Server) introduce(ctx context.Context, p *ingest.Pushed) error {
	reg, err := s.registry(ctx, p.Pod, p.Model)
	if err != nil {
		return err
	}
	if _, known := reg.PodIndex(p.Pod); known {
		return nil
	}
	return s.enroll(ctx, p)
}

// enroll registers the pod of a push unless it is.
func (s *Server) enroll(ctx context.Context, p *ingest.Pushed) error {
	return s.cfg.Index.Apply(ctx, store.Batch{Pod: p.Pod, Rank: p.Rank, Model: p.Model})
}

// appendEventsReply appends the answer: counts, and why events were left out.
func appendEventsReply(b []byte, sum ingest.PushResult, pushes []event.Push) []byte {
	b = strconv.AppendInt(append(b, `{"applied":`...), int64(sum.Applied), 10)
	b = strconv.AppendInt(append(b, `,"skipped":`...), int64(sum.Skipped), 10)
	n := 0
	for i := range pushes {
		for _, s := range pushes[i].Skips {
			if n == maxSkips {
				break
			}
			if n == 0 {
				b = append(b, `,"skips":[`...)
			} else {
				b = append(b, ',')
			}
			n++
			b = append(b, '{')
			if len(pushes) > 1 {
				b = append(strconv.AppendInt(append(b, `"push":`...), int64(i), 10), ',')
			}
			b = strconv.AppendInt(append(b, `"event":`...), int64(s.Index), 10)
			b = appendString(append(b, `,"reason":`...), s.Reason.String())
			b = append(appendString(append(b, `,"field":`...), s.Field), '}')
		}
	}
	if n > 0 {
		b = append(b, ']')
	}
	return append(b, "}\n"...)
}

// maxSkips is how many events that were left out an answer tells of.
const maxSkips = 64
