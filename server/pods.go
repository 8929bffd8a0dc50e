package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/kvatlas/kvatlas/ingest/fleet"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/store"
)

// podRequest is the body of POST /v1/pods: store.Pod, field by field.
type podRequest struct {
	store.Pod
	beside bool
}

// podField reads one field of a pod into what at points to. It lets the index
// judge the field on its own, so that a refusal can name it.
func podField[V any](name string, read func(*scan.Scanner, *V) error, at func(*store.Pod) *V) scan.Field[podRequest] {
	return scan.Field[podRequest]{Name: name, Read: func(s *scan.Scanner, q *podRequest) error {
		v := at(&q.Pod)
		if err := read(s, v); err != nil {
			return err
		}
		alone := store.Pod{Name: "p", Model: "m"}
		*at(&alone) = *v
		if alone.PartOf != nil && alone.PartOf.Pod == alone.Name {
			alone.Name = "q" // that it is not its own part is judged with the whole
		}
		if err := alone.Validate(); err != nil {
			return s.Refused(err)
		}
		return nil
	}}
}

// partOfFields are those of store.PartOf.
var partOfFields = scan.Fields[store.PartOf]{
	{Name: "pod", Read: func(s *scan.Scanner, p *store.PartOf) error { return s.Text(&p.Pod) }},
	{Name: "rank", Read: func(s *scan.Scanner, p *store.PartOf) error { return s.Count(&p.Rank) }},
	{Name: "worker", Read: func(s *scan.Scanner, p *store.PartOf) error { return s.Count(&p.Worker) }},
	{Name: "workers", Read: func(s *scan.Scanner, p *store.PartOf) error { return s.Count(&p.Workers) }},
}

func readPartOf(s *scan.Scanner, dst **store.PartOf) error {
	*dst = new(store.PartOf)
	return scan.Nested(s, partOfFields, *dst)
}

var podFields = scan.Fields[podRequest]{
	podField("name", (*scan.Scanner).Text, func(p *store.Pod) *string { return &p.Name }),
	podField("model", (*scan.Scanner).Text, func(p *store.Pod) *string { return &p.Model }),
	podField("aliases", (*scan.Scanner).Names, func(p *store.Pod) *[]string { return &p.Aliases }),
	podField("adapters", (*scan.Scanner).Names, func(p *store.Pod) *[]string { return &p.Adapters }),
	podField("address", (*scan.Scanner).Text, func(p *store.Pod) *string { return &p.Address }),
	podField("role", (*scan.Scanner).Text, func(p *store.Pod) *string { return &p.Role }),
	podField("ranks", (*scan.Scanner).Count, func(p *store.Pod) *int { return &p.Ranks }),
	podField("engine", (*scan.Scanner).Text, func(p *store.Pod) *string { return &p.Engine }),
	podField("events", (*scan.Scanner).Text, func(p *store.Pod) *string { return &p.Events }),
	podField("replay", (*scan.Scanner).Text, func(p *store.Pod) *string { return &p.Replay }),
	podField("block_size", (*scan.Scanner).Count, func(p *store.Pod) *int { return &p.BlockSize }),
	podField("kv_tokens", (*scan.Scanner).Count, func(p *store.Pod) *int { return &p.KVTokens }),
	podField("approximate", (*scan.Scanner).Bool, func(p *store.Pod) *bool { return &p.Approximate }),
	podField("labels", (*scan.Scanner).Labels, func(p *store.Pod) *map[string]string { return &p.Labels }),
	podField("part_of", readPartOf, func(p *store.Pod) **store.PartOf { return &p.PartOf }),
	{Name: "beside", Read: func(s *scan.Scanner, q *podRequest) error { return s.Bool(&q.beside) }},
	podField("lease_s", (*scan.Scanner).Seconds, func(p *store.Pod) *store.Seconds { return &p.Lease }),
}

var podNames = scan.NamesOf(podFields)

// registerPod is POST /v1/pods.
func (c *call) registerPod() error {
	var q podRequest
	f, err := read(c, podFields, podNames, &q)
	if err != nil {
		return err
	}
	if err := f.Need("name", "model"); err != nil {
		return err
	}
	c.model = q.Model
	// The caller can still correct it; the reader's log may have no reader.
	if err := fleet.Check(&q.Pod); err != nil {
		if bad, ok := errors.AsType[*fleet.EndpointError](err); ok {
			return refusal.Invalid(bad.Field, "%s", bad.Why())
		}
		return err
	}
	if err := c.s.standBeside(c.ctx, &q); err != nil {
		return err
	}
	created, err := c.s.cfg.Index.Register(c.ctx, q.Pod)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created { // perhaps for another model than before
		status = http.StatusCreated
		if err := c.s.joinBeside(c.ctx, &q.Pod); err != nil {
			return err
		}
	}
	return c.replyJSON(status, answerOfPod(&q.Pod))
}

// listPods is GET /v1/pods.
func (c *call) listPods() error {
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return err
	}
	pods := make([]podAnswer, 0, len(reg.Pods))
	for i := range reg.Pods {
		pods = append(pods, answerOfPod(&reg.Pods[i]))
	}
	return c.replyJSON(http.StatusOK, map[string][]podAnswer{"pods": pods})
}

// getPod is GET /v1/pods/{name}.
func (c *call) getPod() error {
	name, err := c.pathName("name")
	if err != nil {
		return err
	}
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return err
	}
	all := registrations(reg, name)
	if len(all) == 0 {
		return unknownPod("name", name)
	}
	return c.replyJSON(http.StatusOK, answerOfPod(&reg.Pods[all[0]]))
}

// deletePod is DELETE /v1/pods/{name}, which ends all models of the pod.
func (c *call) deletePod() error {
	name, err := c.pathName("name")
	if err != nil {
		return err
	}
	known, err := c.s.cfg.Index.Retire(c.ctx, name)
	if err != nil {
		return err
	}
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return err
	}
	for _, i := range reg.Beside(name) {
		ended, err := c.s.cfg.Index.Retire(c.ctx, reg.Pods[i].Name)
		if err != nil {
			return err
		}
		known = known || ended
	}
	if !known {
		return unknownPod("name", name)
	}
	return c.replyJSON(http.StatusOK, map[string]string{"deleted": name})
}

func unknownPod(param, name string) error {
	return &refusal.Error{Status: http.StatusNotFound, Code: "unknown_pod", Param: param, Message: "no pod is registered as " + refusal.Clip(name)}
}

// pathName is pathText of a pod's name.
func (c *call) pathName(param string) (string, error) {
	name, err := c.pathText(param)
	if err != nil {
		return "", err
	}
	if err := store.CheckPodName(name); err != nil {
		return "", refusal.Invalid(param, "%s", refusal.Plain(err, store.ErrInvalid))
	}
	return name, nil
}

// pathText is what the path has in the place of param, decoded.
func (c *call) pathText(param string) (string, error) {
	name := chi.URLParam(c.r, param)
	if c.r.URL.RawPath != "" {
		// The router matched the path as it was sent.
		var err error
		if name, err = url.PathUnescape(name); err != nil {
			return "", refusal.Invalid(param, "the name in the path is not percent-encoded right")
		}
	}
	return name, nil
}

// listModels is GET /v1/models.
func (c *call) listModels() error {
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return err
	}
	models := []store.ModelInfo{}
	for _, name := range slices.Sorted(maps.Keys(reg.Models)) {
		models = append(models, reg.Models[name])
	}
	out := struct {
		Models     []store.ModelInfo `json:"models"`
		Tokenizers []loadedTokenizer `json:"tokenizers,omitempty"`
	}{Models: models}
	if c.s.cfg.Tokenizers != nil {
		for _, m := range c.s.cfg.Tokenizers.Models() {
			out.Tokenizers = append(out.Tokenizers, loadedTokenizer{
				Model: m.Name, From: m.From, Revision: m.Revision, File: m.File, SHA256: m.SHA256, Fingerprint: m.Fingerprint,
				FileBytes: m.FileBytes, MemoryBytes: m.MemoryBytes, Vocabulary: m.Vocabulary, ChatTemplate: m.ChatTemplate,
				LoadedAt: m.LoadedAt.UTC().Truncate(time.Millisecond), LoadMS: m.LoadTook.Milliseconds(), Texts: m.Texts,
			})
		}
	}
	return c.replyJSON(http.StatusOK, out)
}

// modelRequest is the body of PUT /v1/models/{model}.
type modelRequest struct{ unregistered bool }

var modelFields = scan.Fields[modelRequest]{
	{Name: "unregistered", Read: func(s *scan.Scanner, q *modelRequest) error { return s.Bool(&q.unregistered) }},
}

var modelNames = scan.NamesOf(modelFields)

// setModel is PUT /v1/models/{model}. Like an add of blocks it fixes the block size of a
// model that has none, so that all servers cut prompts alike.
func (c *call) setModel() error {
	var q modelRequest
	f, err := read(c, modelFields, modelNames, &q)
	if err != nil {
		return err
	}
	if err := f.Need("unregistered"); err != nil {
		return err
	}
	name, err := c.pathText("model")
	if err != nil {
		return err
	}
	want := store.ModelInfo{Name: name, BlockSize: c.s.cfg.BlockSize, Scheme: store.SchemeNative, Unregistered: q.unregistered}
	if err := want.Validate(); err != nil {
		return refusal.Invalid("model", "%s", refusal.Plain(err, store.ErrInvalid))
	}
	c.model = name
	if c.s.cfg.Shared == nil {
		return &refusal.Error{
			Status: http.StatusNotImplemented, Code: refusal.CodeNotImplemented,
			Message: "the index of this server cannot count for pods that are not registered",
		}
	}
	set, err := c.s.cfg.Shared.SetUnregistered(c.ctx, want)
	if err != nil {
		return err
	}
	return c.replyJSON(http.StatusOK, set)
}

// loadedTokenizer is a tokenizer in memory, as tokenpool.Model describes it.
type loadedTokenizer struct {
	Model        string    `json:"model"`
	From         string    `json:"from"`
	Revision     string    `json:"revision,omitempty"`
	File         string    `json:"file"`
	SHA256       string    `json:"sha256"`
	Fingerprint  string    `json:"fingerprint"`
	FileBytes    int64     `json:"file_bytes"`
	MemoryBytes  int64     `json:"memory_bytes"`
	Vocabulary   int       `json:"vocabulary"`
	ChatTemplate bool      `json:"chat_template"`
	LoadedAt     time.Time `json:"loaded_at"`
	LoadMS       int64     `json:"load_ms"`
	Texts        uint64    `json:"texts"`
}

// replyJSON is for the answers that are not on the path of every request.
func (c *call) replyJSON(status int, v any) error {
	buf := bytes.NewBuffer(c.out[:0])
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	c.out = buf.Bytes()
	c.reply(status, c.out)
	return nil
}
