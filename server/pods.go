package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/kvatlas/kvatlas/ingest/fleet"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// podRequest is the body of POST /v1/pods: store.Pod, field by field.
type podRequest struct{ store.Pod }

// podField reads one field of a pod into what at points to, and lets the index
// judge it on its own, so that a refusal can name it.
func podField[V any](name string, read func(*scanner, *V) error, at func(*store.Pod) *V) field[podRequest] {
	return field[podRequest]{name, func(s *scanner, q *podRequest) error {
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
			return s.refused(err)
		}
		return nil
	}}
}

// count reads a whole number that a 32-bit int can hold.
func (s *scanner) count(dst *int) error {
	n, err := s.uint(math.MaxInt32, "a whole number")
	*dst = int(n)
	return err
}

// partOfFields are those of store.PartOf.
var partOfFields = fields[store.PartOf]{
	{"pod", func(s *scanner, p *store.PartOf) error { return s.text(&p.Pod) }},
	{"rank", func(s *scanner, p *store.PartOf) error { return s.count(&p.Rank) }},
	{"worker", func(s *scanner, p *store.PartOf) error { return s.count(&p.Worker) }},
	{"workers", func(s *scanner, p *store.PartOf) error { return s.count(&p.Workers) }},
}

func (s *scanner) partOf(dst **store.PartOf) error {
	*dst = new(store.PartOf)
	if !s.at('{') {
		return s.unexpected("an object")
	}
	s.path = append(s.path, '.')
	_, err := object(s, partOfFields, *dst)
	if err == nil {
		s.path = s.path[:len(s.path)-1]
	}
	return err
}

// names reads a list of models' names.
func (s *scanner) names(dst *[]string) error {
	*dst = nil
	return s.array("an array of strings", store.MaxNames, func() error {
		*dst = append(*dst, "")
		return s.text(&(*dst)[len(*dst)-1])
	})
}

func (s *scanner) labels(dst *map[string]string) (err error) {
	*dst, err = s.stringMap(store.MaxLabels)
	return err
}

func (s *scanner) seconds(dst *store.Seconds) error {
	const want = "a number of seconds"
	if !s.at('-') && (s.pos == len(s.data) || s.data[s.pos] < '0' || s.data[s.pos] > '9') {
		return s.unexpected(want)
	}
	raw, err := s.raw(want)
	if err != nil {
		return err
	}
	if err := dst.UnmarshalJSON(raw); err != nil {
		return s.refused(err)
	}
	return nil
}

var podFields = fields[podRequest]{
	podField("name", (*scanner).text, func(p *store.Pod) *string { return &p.Name }),
	podField("model", (*scanner).text, func(p *store.Pod) *string { return &p.Model }),
	podField("aliases", (*scanner).names, func(p *store.Pod) *[]string { return &p.Aliases }),
	podField("adapters", (*scanner).names, func(p *store.Pod) *[]string { return &p.Adapters }),
	podField("address", (*scanner).text, func(p *store.Pod) *string { return &p.Address }),
	podField("role", (*scanner).text, func(p *store.Pod) *string { return &p.Role }),
	podField("ranks", (*scanner).count, func(p *store.Pod) *int { return &p.Ranks }),
	podField("engine", (*scanner).text, func(p *store.Pod) *string { return &p.Engine }),
	podField("events", (*scanner).text, func(p *store.Pod) *string { return &p.Events }),
	podField("replay", (*scanner).text, func(p *store.Pod) *string { return &p.Replay }),
	podField("block_size", (*scanner).count, func(p *store.Pod) *int { return &p.BlockSize }),
	podField("kv_tokens", (*scanner).count, func(p *store.Pod) *int { return &p.KVTokens }),
	podField("approximate", (*scanner).bool, func(p *store.Pod) *bool { return &p.Approximate }),
	podField("labels", (*scanner).labels, func(p *store.Pod) *map[string]string { return &p.Labels }),
	podField("part_of", (*scanner).partOf, func(p *store.Pod) **store.PartOf { return &p.PartOf }),
	podField("lease_s", (*scanner).seconds, func(p *store.Pod) *store.Seconds { return &p.Lease }),
}

var podNames = namesOf(podFields)

// stringMap reads an object of strings.
func (s *scanner) stringMap(limit int) (map[string]string, error) {
	if !s.take('{') {
		return nil, s.unexpected("an object of strings")
	}
	m := map[string]string{}
	s.space()
	if s.take('}') {
		return m, nil
	}
	base := len(s.path)
	for {
		if len(m) == limit {
			return nil, s.tooMany(limit)
		}
		s.space()
		b, err := s.string("a name")
		if err != nil {
			return nil, err
		}
		name := string(b)
		s.path = append(append(s.path[:base], '.'), name...)
		if _, twice := m[name]; twice {
			return nil, s.wrong("is given twice")
		}
		s.space()
		if !s.take(':') {
			return nil, s.syntax("':'")
		}
		s.space()
		if b, err = s.string("a string"); err != nil {
			return nil, err
		}
		m[name] = string(b)
		s.path = s.path[:base]
		s.space()
		if s.take('}') {
			return m, nil
		}
		if !s.take(',') {
			return nil, s.syntax("',' or '}'")
		}
	}
}

// registerPod is POST /v1/pods.
func (c *call) registerPod() error {
	var q podRequest
	f, err := read(c, podFields, podNames, &q)
	if err != nil {
		return err
	}
	if err := f.need("name", "model"); err != nil {
		return err
	}
	c.model = q.Model
	// Who registers is still there to correct it; the reader's log may be nobody's.
	if err := fleet.Check(&q.Pod); err != nil {
		if bad, ok := errors.AsType[*fleet.EndpointError](err); ok {
			return invalid(bad.Field, "%s", bad.Why())
		}
		return err
	}
	created, err := c.s.cfg.Index.Register(c.ctx, q.Pod)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return c.replyJSON(status, q.Pod)
}

// listPods is GET /v1/pods.
func (c *call) listPods() error {
	reg, err := c.s.cfg.Index.Registry(c.ctx)
	if err != nil {
		return err
	}
	pods := reg.Pods
	if pods == nil {
		pods = []store.Pod{}
	}
	return c.replyJSON(http.StatusOK, map[string][]store.Pod{"pods": pods})
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
	i, known := reg.PodIndex(name)
	if !known {
		return unknownPod("name", name)
	}
	return c.replyJSON(http.StatusOK, reg.Pods[i])
}

// deletePod is DELETE /v1/pods/{name}.
func (c *call) deletePod() error {
	name, err := c.pathName("name")
	if err != nil {
		return err
	}
	known, err := c.s.cfg.Index.Retire(c.ctx, name)
	if err != nil {
		return err
	}
	if !known {
		return unknownPod("name", name)
	}
	return c.replyJSON(http.StatusOK, map[string]string{"deleted": name})
}

func unknownPod(param, name string) error {
	return &apiError{status: http.StatusNotFound, code: "unknown_pod", param: param, message: "no pod is registered as " + clipText(name)}
}

// pathName is pathText of a pod's name.
func (c *call) pathName(param string) (string, error) {
	name, err := c.pathText(param)
	if err != nil {
		return "", err
	}
	if err := store.CheckPodName(name); err != nil {
		return "", invalid(param, "%s", plain(err, store.ErrInvalid))
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
			return "", invalid(param, "the name in the path is not percent-encoded right")
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
	if pool, ok := c.s.cfg.Tokenizer.(interface{ Models() []tokenpool.Model }); ok {
		for _, m := range pool.Models() {
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

var modelFields = fields[modelRequest]{
	{"unregistered", func(s *scanner, q *modelRequest) error { return s.bool(&q.unregistered) }},
}

var modelNames = namesOf(modelFields)

// setModel is PUT /v1/models/{model}. Like an add of blocks it fixes the block size of a
// model that has none, so that all servers cut prompts alike.
func (c *call) setModel() error {
	var q modelRequest
	f, err := read(c, modelFields, modelNames, &q)
	if err != nil {
		return err
	}
	if err := f.need("unregistered"); err != nil {
		return err
	}
	name, err := c.pathText("model")
	if err != nil {
		return err
	}
	want := store.ModelInfo{Name: name, BlockSize: c.s.cfg.BlockSize, Scheme: store.SchemeNative, Unregistered: q.unregistered}
	if err := want.Validate(); err != nil {
		return invalid("model", "%s", plain(err, store.ErrInvalid))
	}
	c.model = name
	index, ok := c.s.cfg.Index.(store.UnregisteredSetter)
	if !ok {
		return cannot("count for pods that are not registered")
	}
	set, err := index.SetUnregistered(c.ctx, want)
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
