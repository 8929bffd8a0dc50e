package discover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// Asker asks engines what they are. It is safe for concurrent use.
type Asker struct {
	// Client makes the requests, and should follow no redirects: access.Networks has one.
	// Required.
	Client *http.Client
	// Timeout bounds each request, 2 s.
	Timeout time.Duration
	// MaxBody bounds an answer in bytes, 4 MiB. vLLM's and SGLang's of /server_info
	// have all settings of the engine.
	MaxBody int64
}

// errNotThere is a page that an engine does not have.
var errNotThere = errors.New("discover: the engine does not have it")

// get fetches a page of an engine; a nil out reads nothing.
func (a *Asker) get(ctx context.Context, address, path string, out any) error {
	timeout, limit := a.Timeout, a.MaxBody
	timeout = cmp.Or(timeout, 2*time.Second)
	limit = cmp.Or(limit, 4<<20)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := a.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusMethodNotAllowed:
		return fmt.Errorf("%w: %s", errNotThere, path)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("discover: %s of %s: status %d", path, address, resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return err
	case int64(len(body)) > limit:
		return fmt.Errorf("discover: %s of %s has more than %d bytes", path, address, limit)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("discover: %s of %s: %w", path, address, err)
	}
	return nil
}

// getOwn fetches a page that only one kind of engine has. JSON of another shape is the page of
// another server that has this path, such as one that answers 200 to all: errNotThere.
func (a *Asker) getOwn(ctx context.Context, address, path string, out any) error {
	err := a.get(ctx, address, path, out)
	if _, other := errors.AsType[*json.UnmarshalTypeError](err); other {
		return fmt.Errorf("%w: %w", errNotThere, err)
	}
	return err
}

// Healthy is nil when the engine says that it works: 200 of /health.
func (a *Asker) Healthy(ctx context.Context, p *store.Pod) error {
	return a.get(ctx, addressOf(p), "/health", nil)
}

func addressOf(p *store.Pod) string {
	if p.Address != "" {
		return p.Address
	}
	return p.Name
}

// Ask fills what is empty in a pod with what its engine says. The model, its other names, its adapters and the
// kind come by /v1/models. The endpoints, ranks and block size come by vLLM's /kv_event_sources (0.31 and later)
// or SGLang's /server_info (0.5.13 and later). What an engine does not have stays empty. It returns an error,
// and leaves the pod as it was, when the engine cannot be asked.
func (a *Asker) Ask(ctx context.Context, p *store.Pod) error {
	at := addressOf(p)
	got := *p
	if needs := p.Model == "" || p.Engine == ""; needs || p.Aliases == nil && p.Adapters == nil {
		// Without what it is only asked for as well, the pod can be registered all the same.
		if err := a.models(ctx, at, &got); err != nil && needs {
			return err
		}
	}
	if p.Events == "" {
		// Each in turn, and only what is missing: other engines say 404.
		err := errNotThere
		if got.Engine != "sglang" {
			err = a.vllm(ctx, at, &got)
		}
		if errors.Is(err, errNotThere) && got.Engine != "vllm" {
			err = a.sglang(ctx, at, &got)
		}
		if err != nil && !errors.Is(err, errNotThere) {
			return err
		}
	}
	*p = got
	return nil
}

// engines are the kinds by what they call themselves in /v1/models.
var engines = map[string]string{"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm"}

// card is a model as an engine lists it. There is one for each name that it serves the model
// by, and one for each LoRA adapter, whose parent is one of those.
type card struct {
	ID      string  `json:"id"`
	OwnedBy string  `json:"owned_by"`
	Root    *string `json:"root"`
	Parent  *string `json:"parent"`
}

func (a *Asker) models(ctx context.Context, at string, p *store.Pod) error {
	var answer struct {
		Data []card `json:"data"`
	}
	if err := a.get(ctx, at, "/v1/models", &answer); err != nil {
		return err
	}
	cards := slices.DeleteFunc(answer.Data, func(c card) bool { return c.ID == "" })
	isBase := func(c card) bool { return c.Parent == nil }
	first := slices.IndexFunc(cards, func(c card) bool { return isBase(c) && c.ID == p.Model })
	if first < 0 {
		first = slices.IndexFunc(cards, isBase)
	}
	if first < 0 {
		return fmt.Errorf("discover: %s has no model", at)
	}
	base := cards[first]
	p.Model = cmp.Or(p.Model, base.ID)
	p.Engine = cmp.Or(p.Engine, engines[base.OwnedBy])
	if p.Aliases == nil && p.Adapters == nil {
		p.Aliases, p.Adapters = namesIn(cards, base, p.Model)
	}
	return nil
}

// namesIn returns what an engine calls a model besides its name here, and the model's
// adapters, as many as a pod can have. Where it serves several models only those of base
// count.
func namesIn(cards []card, base card, model string) (aliases, adapters []string) {
	served := map[string]bool{}
	for _, c := range cards {
		same := c.ID == base.ID || c.Root != nil && base.Root != nil && *c.Root == *base.Root
		if c.Parent != nil || !same || served[c.ID] {
			continue
		}
		served[c.ID] = true
		if c.ID != model && len(aliases) < store.MaxNames {
			aliases = append(aliases, c.ID)
		}
	}
	for _, c := range cards {
		if c.Parent != nil && served[*c.Parent] && !served[c.ID] && c.ID != model && len(aliases)+len(adapters) < store.MaxNames {
			served[c.ID] = true
			adapters = append(adapters, c.ID)
		}
	}
	return aliases, adapters
}

// vllm asks /kv_event_sources: an object of the configuration of each rank.
func (a *Asker) vllm(ctx context.Context, at string, p *store.Pod) error {
	var ranks map[string]struct {
		Enabled   *bool   `json:"enable_kv_cache_events"`
		Publisher string  `json:"publisher"`
		Endpoint  string  `json:"endpoint"`
		Replay    *string `json:"replay_endpoint"`
	}
	if err := a.getOwn(ctx, at, "/kv_event_sources", &ranks); err != nil {
		return err
	}
	for _, c := range ranks {
		// What vLLM lists is the configuration of a rank, which has a publisher and an endpoint.
		if c.Publisher == "" && c.Endpoint == "" && c.Enabled == nil {
			return fmt.Errorf("%w: /kv_event_sources is another page", errNotThere)
		}
	}
	if len(ranks) == 0 || len(ranks) > store.MaxRanks {
		return nil // it publishes nothing
	}
	events, replay := make([]string, len(ranks)), make([]string, len(ranks))
	for name, c := range ranks {
		r, err := strconv.Atoi(name)
		if err != nil || r < 0 || r >= len(ranks) {
			return fmt.Errorf("discover: %s has the rank %q of %d", at, name, len(ranks))
		}
		if c.Endpoint == "" || c.Publisher == "null" || c.Enabled != nil && !*c.Enabled {
			return nil
		}
		events[r] = c.Endpoint
		if c.Replay != nil {
			replay[r] = *c.Replay
		}
	}
	p.Events, p.Replay, p.Ranks = join(events), join(replay), len(ranks)
	p.Engine = cmp.Or(p.Engine, "vllm")
	return nil
}

// join is one endpoint where the others are by port offset, else all of them with
// commas; "" when one is missing.
func join(list []string) string {
	offsets := true
	host, port, err := net.SplitHostPort(strings.TrimPrefix(list[0], "tcp://"))
	base, err2 := strconv.Atoi(port)
	for r, e := range list {
		if e == "" {
			return ""
		}
		offsets = offsets && err == nil && err2 == nil && e == endpoint(host, base+r)
	}
	if offsets {
		return list[0]
	}
	return strings.Join(list, ",")
}

// sglang asks /server_info, whose kv_events is null when there are none.
func (a *Asker) sglang(ctx context.Context, at string, p *store.Pod) error {
	var answer struct {
		PageSize int `json:"page_size"`
		Events   *struct {
			Host      string `json:"endpoint_host"`
			Port      int    `json:"endpoint_port_base"`
			Replay    *int   `json:"replay_endpoint_port_base"`
			BlockSize int    `json:"block_size"`
			Ranks     int    `json:"dp_size"`
		} `json:"kv_events"`
	}
	if err := a.getOwn(ctx, at, "/server_info", &answer); err != nil {
		return err
	}
	if answer.Events == nil {
		return nil
	}
	e := answer.Events
	if e.Port < 1 || e.Port > 65535 || e.Ranks < 0 || e.Ranks > store.MaxRanks || e.BlockSize < 0 || e.BlockSize > store.MaxBlockSize {
		return fmt.Errorf("discover: %s has events at port %d, %d ranks and blocks of %d tokens", at, e.Port, e.Ranks, e.BlockSize)
	}
	e.Host = cmp.Or(e.Host, "*")
	p.Events = endpoint(e.Host, e.Port)
	if e.Replay != nil && *e.Replay > 0 {
		p.Replay = endpoint(e.Host, *e.Replay)
	}
	p.Ranks = max(1, e.Ranks)
	p.BlockSize = cmp.Or(p.BlockSize, e.BlockSize)
	p.Engine = cmp.Or(p.Engine, "sglang")
	return nil
}
