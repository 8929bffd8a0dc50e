package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/kvatlas/kvatlas/sim/engine"
)

// handler returns the pages of the engine.
func (l *life) handler() http.Handler {
	r := chi.NewRouter()
	r.Use(l.gate)
	r.Post("/v1/completions", l.complete(false))
	r.Post("/v1/chat/completions", l.complete(true))
	r.Get("/v1/models", l.models)
	r.Get("/health", ok)
	r.Get("/version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"version": l.pod.config.Version})
	})
	switch l.pod.config.Engine.Kind {
	case engine.VLLM:
		l.vllm(r)
	case engine.SGLang:
		l.sglang(r)
	case engine.TRTLLM:
		l.trtllm(r)
	}
	return r
}

// vllm adds what vLLM alone has.
func (l *life) vllm(r chi.Router) {
	c := &l.pod.config
	r.Get("/ping", ok)
	r.Post("/ping", ok)
	r.Handle("/metrics", l.metrics.handler())
	r.Post("/tokenize", l.tokenize)
	r.Post("/detokenize", l.detokenize("prompt"))
	r.Get("/load", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]int64{"server_load": l.open.Load()})
	})
	r.Get("/server_info", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"vllm_config": fmt.Sprintf("model='%s', data_parallel_size=%d, block_size=%d", c.Model, c.Ranks, c.Engine.BlockSize)})
	})
	r.Post("/reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		done := l.clear()
		if l.pod.release < v0(26, 0) {
			w.WriteHeader(http.StatusOK)
			return
		}
		writeJSON(w, http.StatusOK, map[string]bool{"success": done})
	})
	if l.pod.release >= v0(31, 0) {
		r.Get("/kv_event_sources", l.sources)
	}
}

// sources says where events are to be had.
func (l *life) sources(w http.ResponseWriter, r *http.Request) {
	c := &l.pod.config
	out := map[string]any{}
	for n := range l.ranks {
		one := map[string]any{
			"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": reachable(c.Events, n, r), "replay_endpoint": nil,
			"buffer_steps": bufferSteps, "hwm": 100000, "max_queue_size": 100000, "topic": c.Topic,
		}
		if c.Replay != "" {
			one["replay_endpoint"] = reachable(c.Replay, n, r)
		}
		out[strconv.Itoa(n)] = one
	}
	writeJSON(w, http.StatusOK, out)
}

// reachable is the endpoint of a rank as the client can reach it: a host that is all
// addresses is the one that was asked.
func reachable(endpoint string, rank int, r *http.Request) string {
	to, err := rankEndpoint(endpoint, rank)
	if err != nil {
		return endpoint
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(to, "tcp://"))
	if err != nil || !wildcard(host) {
		return to
	}
	if host, _, err = net.SplitHostPort(r.Host); err != nil {
		host = r.Host
	}
	return "tcp://" + net.JoinHostPort(host, port)
}

func wildcard(host string) bool { return host == "*" || host == "0.0.0.0" || host == "::" }

// sglang adds what SGLang alone has.
func (l *life) sglang(r chi.Router) {
	r.Handle("/metrics", l.metrics.handler())
	r.Get("/health_generate", ok)
	r.Get("/ready", ok)
	for _, path := range []string{"/tokenize", "/v1/tokenize"} {
		r.Post(path, l.tokenize)
	}
	for _, path := range []string{"/detokenize", "/v1/detokenize"} {
		r.Post(path, l.detokenize("text"))
	}
	for _, path := range []string{"/get_model_info", "/model_info"} {
		r.Get(path, func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, map[string]any{"model_path": l.pod.config.Model, "served_model_name": l.pod.config.Model, "is_generation": true})
		})
	}
	for _, path := range []string{"/get_server_info", "/server_info"} {
		r.Get(path, l.serverInfo)
	}
	r.Get("/v1/loads", l.loads)
	flush := func(w http.ResponseWriter, _ *http.Request) {
		if !l.clear() {
			http.Error(w, "Flush cache failed: requests are running or waiting.", http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n")
	}
	r.Get("/flush_cache", flush)
	r.Post("/flush_cache", flush)
}

// serverInfo is SGLang's /server_info.
func (l *life) serverInfo(w http.ResponseWriter, _ *http.Request) {
	c := &l.pod.config
	events := map[string]any{
		"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": portOf(c.Events), "topic": c.Topic, "block_size": c.Engine.BlockSize, "dp_size": c.Ranks,
	}
	if c.Replay != "" && l.pod.release >= v0(5, 22) {
		events["replay_endpoint_port_base"] = portOf(c.Replay)
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"model_path": c.Model, "served_model_name": c.Model, "page_size": c.Engine.BlockSize, "dp_size": c.Ranks, "tp_size": 1,
		"max_total_num_tokens": c.Engine.Blocks * c.Engine.BlockSize, "version": c.Version, "kv_events": events,
	})
}

// portOf returns the port of an endpoint.
func portOf(endpoint string) int {
	n, _ := strconv.Atoi(endpoint[strings.LastIndexByte(endpoint, ':')+1:]) // checked when the pod was made
	return n
}

// loads is SGLang's /v1/loads.
func (l *life) loads(w http.ResponseWriter, _ *http.Request) {
	c := &l.pod.config
	loads := []map[string]any{}
	for n, r := range l.ranks {
		s := r.stats()
		loads = append(loads, map[string]any{
			"dp_rank": n, "num_running_reqs": s.Running, "num_waiting_reqs": s.Waiting, "num_waiting_uncached_tokens": s.WaitingTokens,
			"num_used_tokens": s.Used * c.Engine.BlockSize, "num_total_tokens": s.Used*c.Engine.BlockSize + s.WaitingTokens,
			"max_total_num_tokens": s.Total * c.Engine.BlockSize, "max_running_requests": c.Engine.BatchRequests,
			"token_usage": float64(s.Used) / float64(s.Total),
		})
	}
	writeJSON(w, http.StatusOK, map[string]any{"timestamp": float64(time.Now().UnixMilli()) / 1e3, "version": c.Version, "loads": loads})
}

// trtllm adds what TensorRT-LLM alone has. It streams its events, so that the pages from
// which they could be fetched have none.
func (l *life) trtllm(r chi.Router) {
	r.Handle("/prometheus/metrics", l.metrics.handler())
	empty := func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, []any{}) }
	r.Get("/metrics", empty)
	r.Get("/perf_metrics", empty)
	r.Post("/kv_cache_events", empty)
	r.Get("/health_generate", ok)
}

// clear clears every rank that is idle, and reports whether all were.
func (l *life) clear() bool {
	all := true
	for _, r := range l.ranks {
		r.do(func(e *engine.Engine) {
			s := e.Stats()
			all = all && s.Running+s.Waiting == 0 && e.Clear()
		})
	}
	return all
}

// gate refuses what is more than maxOpen, and holds every request while the process is
// frozen.
func (l *life) gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer l.inside.Add(-1)
		if l.inside.Add(1) > maxOpen {
			l.fail(w, &apiError{http.StatusServiceUnavailable, "", "too many requests are waiting"})
			return
		}
		for thawed := l.clock.stopped(); thawed != nil; thawed = l.clock.stopped() {
			select {
			case <-thawed:
			case <-r.Context().Done():
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func ok(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// owners are what engines call themselves.
var owners = map[engine.Kind]string{engine.VLLM: "vllm", engine.SGLang: "sglang", engine.TRTLLM: "tensorrt_llm"}

func (l *life) models(w http.ResponseWriter, _ *http.Request) {
	c := &l.pod.config
	kind := c.Engine.Kind
	cards := []map[string]any{}
	for i, name := range append([]string{c.Model}, c.LoRAs...) {
		card := map[string]any{"id": name, "object": "model", "created": time.Now().Unix(), "owned_by": owners[kind]}
		if kind != engine.TRTLLM {
			card["root"], card["parent"], card["max_model_len"] = c.Model, nil, c.MaxModelLen
			if i > 0 {
				card["root"], card["parent"], card["max_model_len"] = "/adapters/"+name, c.Model, nil
			}
		}
		if kind == engine.VLLM {
			card["permission"] = []any{map[string]any{"id": fmt.Sprintf("modelperm-%d", i), "object": "model_permission", "created": time.Now().Unix(), "allow_sampling": true, "allow_view": true}}
		}
		cards = append(cards, card)
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": cards})
}

// tokenize answers with the tokens of a text or a chat; SGLang takes a list of texts too.
func (l *life) tokenize(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var b struct {
		Prompt           json.RawMessage `json:"prompt"`
		Messages         json.RawMessage `json:"messages"`
		AddSpecialTokens *bool           `json:"add_special_tokens"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &b)
	}
	var text string
	var texts []string
	var tokens []uint32
	c := &l.pod.config
	special := b.AddSpecialTokens == nil || *b.AddSpecialTokens
	switch {
	case err != nil:
	case (len(b.Prompt) == 0) == (len(b.Messages) == 0):
		err = errors.New("either prompt or messages is needed")
	case len(b.Messages) > 0:
		tokens, err = c.Tokenizer.Chat(r.Context(), raw)
	case json.Unmarshal(b.Prompt, &text) == nil:
		tokens, err = c.Tokenizer.Text(r.Context(), text, special)
	case c.Engine.Kind == engine.SGLang && json.Unmarshal(b.Prompt, &texts) == nil && len(texts) <= maxPrompts:
		l.tokenizeAll(w, r, texts, special)
		return
	default:
		err = errors.New("prompt is no text")
	}
	if err != nil {
		l.fail(w, bad("", "%v", err))
		return
	}
	out := map[string]any{"count": len(tokens), "max_model_len": c.MaxModelLen, "tokens": tokens}
	if c.Engine.Kind == engine.VLLM {
		out["token_strs"] = nil
	}
	writeJSON(w, http.StatusOK, out)
}

// tokenizeAll answers with the tokens of each of several texts.
func (l *life) tokenizeAll(w http.ResponseWriter, r *http.Request, texts []string, special bool) {
	c := &l.pod.config
	lists, counts := [][]uint32{}, []int{}
	for _, text := range texts {
		tokens, err := c.Tokenizer.Text(r.Context(), text, special)
		if err != nil {
			l.fail(w, bad("", "%v", err))
			return
		}
		lists, counts = append(lists, tokens), append(counts, len(tokens))
	}
	writeJSON(w, http.StatusOK, map[string]any{"count": counts, "max_model_len": c.MaxModelLen, "tokens": lists})
}

func (l *life) detokenize(field string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b struct {
			Tokens            []uint32 `json:"tokens"`
			SkipSpecialTokens *bool    `json:"skip_special_tokens"` // SGLang's
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&b); err != nil {
			l.fail(w, bad("tokens", "%v", err))
			return
		}
		c := &l.pod.config
		plain := c.Engine.Kind == engine.SGLang && (b.SkipSpecialTokens == nil || *b.SkipSpecialTokens)
		text, err := c.Tokenizer.Detokenize(r.Context(), b.Tokens, plain)
		if err != nil {
			l.fail(w, bad("tokens", "%v", err))
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{field: text})
	}
}

// fail answers with an error in the form of the engine.
func (l *life) fail(w http.ResponseWriter, err error) {
	e := &apiError{status: http.StatusInternalServerError, text: err.Error()}
	_ = errors.As(err, &e) // else it is of the engine
	kind := "BadRequestError"
	switch {
	case e.status == http.StatusNotFound:
		kind = "NotFoundError"
	case e.status >= 500:
		kind = "InternalServerError"
	}
	body := map[string]any{"message": e.text, "type": kind, "param": nil, "code": e.status}
	if e.param != "" {
		body["param"] = e.param
	}
	if l.pod.config.Engine.Kind == engine.VLLM {
		writeJSON(w, e.status, map[string]any{"error": body})
		return
	}
	body["object"] = "error"
	writeJSON(w, e.status, body)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that has gone
}
