package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Place is a data-parallel rank of a pod.
type Place struct {
	// Pod is the pod's name.
	Pod string `json:"pod"`
	// Rank is the data-parallel rank in it.
	Rank int `json:"rank"`
}

// Pin is the pod that a request must go to.
type Pin struct {
	// Pod is the pod's name. Required.
	Pod string `json:"pod"`
	// Rank is the data-parallel rank; nil lets the router choose it.
	Rank *int `json:"rank,omitempty"`
}

// RouteRequest asks which pod and rank a request should go to.
type RouteRequest struct {
	// ScoreRequest is the prompt, and which Pods may be chosen. Its Top, Strategy, EarlyExit
	// and Predicted are not sent.
	ScoreRequest
	// Reserve books the request where it goes. Without it nothing is changed.
	Reserve bool
	// ID names the request, 1 to 128 bytes; "" lets the server draw a name. A second call
	// with the name of a request that runs returns what the first one chose.
	ID string
	// ExpectedOutputTokens is how long the output may be; 0 is not known.
	ExpectedOutputTokens int
	// Policy is the name of a policy; "" is the model's.
	Policy string
	// Overrides are settings that this request has otherwise, a JSON object; may be nil.
	Overrides json.RawMessage
	// Session names what the request is a part of, up to 256 bytes; "" means none. Requests of one
	// session go to one place while it may take them.
	Session string
	// Role is "prefill" or "decode" for a pod of that part alone, "pair" for one of each.
	Role string
	// Pinned is the pod that must be chosen; may be nil. PinnedPrefill is the same for the
	// pod that prefills, of a pair.
	Pinned        *Pin
	PinnedPrefill *Pin
	// Labels are labels that the pod must have.
	Labels map[string]string
	// Prefer are weights of labels, as "zone=a", that make a pod cheaper or, below 0,
	// dearer.
	Prefer map[string]float64
}

// MarshalJSON writes the body of POST /v1/route. It refuses texts that are not UTF-8.
func (r RouteRequest) MarshalJSON() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	texts := []string{"request_id", r.ID, "policy", r.Policy, "role", r.Role, "session", r.Session, "overrides", string(r.Overrides)}
	for name, value := range r.Labels {
		texts = append(texts, "labels", name, "labels", value)
	}
	for label := range r.Prefer {
		texts = append(texts, "prefer", label)
	}
	if r.Pinned != nil {
		texts = append(texts, "pinned", r.Pinned.Pod)
	}
	if r.PinnedPrefill != nil {
		texts = append(texts, "pinned_prefill", r.PinnedPrefill.Pod)
	}
	if err := checkTexts(texts...); err != nil {
		return nil, err
	}
	w := struct {
		scoreWire
		Reserve   bool               `json:"reserve,omitempty"`
		ID        string             `json:"request_id,omitempty"`
		Expected  int                `json:"expected_output_tokens,omitempty"`
		Policy    string             `json:"policy,omitempty"`
		Overrides json.RawMessage    `json:"overrides,omitempty"`
		Session   string             `json:"session,omitempty"`
		Role      string             `json:"role,omitempty"`
		Pinned    *Pin               `json:"pinned,omitempty"`
		Prefill   *Pin               `json:"pinned_prefill,omitempty"`
		Labels    map[string]string  `json:"labels,omitempty"`
		Prefer    map[string]float64 `json:"prefer,omitempty"`
	}{r.wire(), r.Reserve, r.ID, r.ExpectedOutputTokens, r.Policy, r.Overrides, r.Session, r.Role, r.Pinned, r.PinnedPrefill, r.Labels, r.Prefer}
	w.Top, w.Strategy, w.EarlyExit, w.scoreWire.Predicted = 0, "", false, false
	if r.Body != nil && r.Tokens == nil && r.BlockKeys == nil {
		return over(r.Body, w)
	}
	return json.Marshal(w)
}

// RouteResponse is where a request goes.
type RouteResponse struct {
	// Place is the pod and the rank that were chosen.
	Place
	// Address is the pod's, where its registration has one.
	Address string `json:"address"`
	// Policy is the name of the policy that has chosen.
	Policy string `json:"policy"`
	// Fallbacks are where to try next, in order.
	Fallbacks []Place `json:"fallbacks"`
	// Overlap is what the chosen rank can reuse.
	Overlap Overlap `json:"overlap"`
	// Session is what became of the request's session; nil if it has none.
	Session *RouteSession `json:"session"`
	// Tokens are those of the prompt; with Source "estimate" they were not looked up.
	Tokens TokenCount `json:"tokens"`
	// Reservation is the name to report by; "" when nothing was booked.
	Reservation string `json:"reservation"`
	// Again reports whether an earlier call had booked the request.
	Again bool `json:"again"`
	// Resolved is what the request's model means, where it is an alias or an adapter.
	Resolved *Resolved `json:"resolved"`
	// Costs are what the candidates cost, when Explain was asked for.
	Costs []Cost `json:"costs"`
	// Prefill is the pod that prefills, when Role was "pair"; the rest is about the pod that
	// decodes. It is nil when that one prefills as well: LocalPrefill says why.
	Prefill      *RoutePrefill `json:"prefill"`
	LocalPrefill string        `json:"local_prefill"`
	// Pairs are the cheapest pairs, when Explain was asked for.
	Pairs []PairCost `json:"pairs"`
	// Headers are those to send the request with, as llm-d's sidecars read them.
	Headers map[string]string `json:"headers"`
	// PullFrom is the place from which the pod that prefills fetches part of the prompt; nil means none.
	// KVTransferParams is the same as vLLM's field of that name.
	PullFrom         *PullSource     `json:"pull_from"`
	KVTransferParams json.RawMessage `json:"kv_transfer_params"`
	// PullPlan is what each way costs, when Explain was asked for and there is one to fetch from.
	PullPlan *PullPlan `json:"pull_plan"`
	// Degraded says why the choice was made with less than there is; may be nil.
	Degraded *Degraded `json:"degraded"`
	ReturnedTokens
}

// PullSource is a rank that part of a prompt is fetched from.
type PullSource struct {
	Place
	// Address is its pod's, where the registration has one.
	Address string `json:"address,omitempty"`
	// Tokens is how many are fetched, and MS how many milliseconds that takes.
	Tokens int     `json:"tokens"`
	MS     float64 `json:"ms"`
}

// PullPlan is the cost of waiting at a holder of the prompt, of prefilling elsewhere, and of fetching
// elsewhere. Each is nil where there is no such place.
type PullPlan struct {
	Wait      *PullWay `json:"wait"`
	Recompute *PullWay `json:"recompute"`
	Pull      *PullWay `json:"pull"`
}

// PullWay is a place and its cost.
type PullWay struct {
	Place
	Total float64 `json:"total"`
}

// RouteSession is what became of a request's session.
type RouteSession struct {
	// State is new, kept, or why it moved: gone, busy, unbalanced, unknown.
	State string `json:"state"`
	// Was is where it went before, if that is known.
	Was *Place `json:"was,omitempty"`
}

// RoutePrefill is the pod that prefills.
type RoutePrefill struct {
	Place
	// Address, Fallbacks, Overlap and Costs are as in RouteResponse.
	Address   string  `json:"address"`
	Fallbacks []Place `json:"fallbacks"`
	Overlap   Overlap `json:"overlap"`
	Costs     []Cost  `json:"costs"`
}

// PairCost is what two places cost together.
type PairCost struct {
	Prefill Place `json:"prefill"`
	Decode  Place `json:"decode"`
	// Total is the cost; nil of a pair with a place that is too busy.
	Total *float64 `json:"total"`
	// Terms are the parts of it by name.
	Terms map[string]float64 `json:"terms"`
}

// Overlap is what the chosen rank holds of a prompt.
type Overlap struct {
	// Blocks are whole index blocks, Tokens what the engine can reuse.
	Blocks int `json:"blocks"`
	Tokens int `json:"tokens"`
	// BestTokens is the most that any candidate could reuse.
	BestTokens int `json:"best_tokens"`
	// Tiers are the tokens by the best tier that holds each.
	Tiers map[string]int `json:"tiers"`
	// PredictedTokens is how many of them, in tier gpu, are only predicted.
	PredictedTokens int `json:"predicted_tokens"`
}

// Cost is what a candidate costs.
type Cost struct {
	Place
	// Total is the cost; nil of one that is too busy.
	Total *float64 `json:"total"`
	// Terms are the parts of it by name.
	Terms map[string]float64 `json:"terms"`
	// Load is what ran there.
	Load Load `json:"load"`
	// HeldTokens are the prompt's tokens there by tier.
	HeldTokens map[string]int `json:"held_tokens"`
	// PredictedTokens is how many of them are only predicted.
	PredictedTokens int `json:"predicted_tokens"`
}

// Load is what running requests take of a rank.
type Load struct {
	// Generation is the rank's generation that it belongs to.
	Generation uint64 `json:"generation"`
	// Work is the prefill that is booked and not done, in units of the model's shape;
	// PrefillTokens is the same in tokens.
	Work          int64 `json:"work"`
	PrefillTokens int64 `json:"prefill_tokens"`
	// Blocks are the index blocks that running requests have in use.
	Blocks int64 `json:"blocks"`
	// Requests is how many run.
	Requests int64 `json:"requests"`
	// Speed is how many units of prefill the rank does in a millisecond, learnt from
	// Samples requests; 0 is not known.
	Speed   float64 `json:"speed"`
	Samples int64   `json:"samples"`
}

// RankLoad is the load of a rank.
type RankLoad struct {
	Place
	Load
	// Engine is what the rank's engine has reported within 10 s, nil for nothing.
	Engine *EngineLoad `json:"engine"`
	// Truth is what its requests were promised and given, nil where none has reported it.
	Truth *Truth `json:"truth"`
}

// EngineLoad is what an engine says that runs on a rank.
type EngineLoad struct {
	// Running and Waiting are its requests.
	Running int64 `json:"running"`
	Waiting int64 `json:"waiting"`
	// WaitingTokens is what the waiting ones have to prefill, nil if that is not known, and
	// KVUsage the share of the cache in use.
	WaitingTokens *int64   `json:"waiting_tokens,omitempty"`
	KVUsage       *float64 `json:"kv_usage,omitempty"`
	// KVTokens is for how many tokens the cache has room, 0 if that is not known.
	KVTokens int64 `json:"kv_tokens,omitempty"`
	// Gone is how many booked requests it has not had for a while.
	Gone int64 `json:"gone,omitempty"`
	// AgeS is how long ago it said so, in seconds.
	AgeS float64 `json:"age_s"`
}

// Truth is what recent requests on a rank were promised by the index and given by the engine.
type Truth struct {
	Requests        int64 `json:"requests"`
	PredictedTokens int64 `json:"predicted_tokens"`
	DeliveredTokens int64 `json:"delivered_tokens"`
	// Lies reports whether it was given less than half, of enough requests to judge by.
	Lies bool `json:"lies"`
}

// Report is what became of a report on a request.
type Report struct {
	// Known reports whether the request runs. Of one that has ended, or whose lease is
	// over, the report changes nothing.
	Known bool `json:"known"`
	// Place is where it was booked; after Done of a pair, the place that prefilled.
	Place
	// First reports whether this report changed something: it is not the second of its kind.
	First bool `json:"first"`
	// PredictedTokens is how many tokens the router took for cached.
	PredictedTokens int `json:"predicted_tokens"`
}

// Route chooses the pod and rank for a request. When no pod may take it the error is an
// *Error with status 404, when all are busy one with 503 and RetryAfter.
func (c *Client) Route(ctx context.Context, r RouteRequest) (*RouteResponse, error) {
	return ask[RouteResponse](ctx, c, http.MethodPost, "/v1/route", r)
}

// Done reports that the prefill of a request is over, most often with its first token.
// Argument cached is how many tokens the engine says it has reused; nil is not known.
func (c *Client) Done(ctx context.Context, model, id string, cached *int) (*Report, error) {
	return c.report(ctx, id, "done", reportWire{Model: model, Cached: cached})
}

// Output reports how many tokens the output of a request has so far. It renews the lease.
func (c *Client) Output(ctx context.Context, model, id string, tokens int) (*Report, error) {
	return c.report(ctx, id, "output", reportWire{Model: model, Tokens: &tokens})
}

// End reports that a request is over, however it ended.
func (c *Client) End(ctx context.Context, model, id string) (*Report, error) {
	return c.report(ctx, id, "end", reportWire{Model: model})
}

// Settle reports that a request is over whose answer came in one piece, and how many tokens the engine
// says it has reused. It is Done and End in one call. Nothing is learnt of the pod's speed.
func (c *Client) Settle(ctx context.Context, model, id string, cached int) (*Report, error) {
	return c.report(ctx, id, "end", reportWire{Model: model, Cached: &cached})
}

type reportWire struct {
	Model  string `json:"model"`
	Cached *int   `json:"cached_tokens,omitempty"`
	Tokens *int   `json:"tokens,omitempty"`
}

func (c *Client) report(ctx context.Context, id, kind string, w reportWire) (*Report, error) {
	if err := checkTexts("model", w.Model, "id", id); err != nil {
		return nil, err
	}
	return ask[Report](ctx, c, http.MethodPost, "/v1/requests/"+url.PathEscape(id)+"/"+kind, w)
}

// Loads returns the loads by model, in order of pod and rank; model "" is all models.
func (c *Client) Loads(ctx context.Context, model string) (map[string][]RankLoad, error) {
	path := "/v1/loads"
	if model != "" {
		path += "?model=" + url.QueryEscape(model)
	}
	var out struct {
		Models map[string][]RankLoad `json:"models"`
	}
	err := c.Call(ctx, http.MethodGet, path, nil, &out)
	return out.Models, err
}

// Prefixes returns the prefixes that requests were routed with most of late, by model; model ""
// is all models, and limit 0 the server's own, 20.
func (c *Client) Prefixes(ctx context.Context, model string, limit int) (map[string]ModelPrefixes, error) {
	query := url.Values{}
	if model != "" {
		query.Set("model", model)
	}
	if limit != 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	var out struct {
		Models map[string]ModelPrefixes `json:"models"`
	}
	err := c.Call(ctx, http.MethodGet, withQuery("/v1/prefixes", query), nil, &out)
	return out.Models, err
}

// EngineReport is what an engine says that runs on a rank of a pod.
type EngineReport struct {
	// Rank is the rank, Running and Waiting are its requests.
	Rank    int   `json:"rank,omitempty"`
	Running int64 `json:"running"`
	Waiting int64 `json:"waiting"`
	// WaitingTokens is what the waiting ones have to prefill. KVUsage is the share of the cache that
	// requests have in use, 0 to 1; nil is not known.
	WaitingTokens *int64   `json:"waiting_tokens,omitempty"`
	KVUsage       *float64 `json:"kv_usage,omitempty"`
	// KVTokens is for how many tokens the rank's cache has room, 0 if that is not known.
	KVTokens int64 `json:"kv_tokens,omitempty"`
}

// PushLoad reports what an engine says of its own load, and returns for how long that counts.
// A pod that is not known is an *Error with status 404.
func (c *Client) PushLoad(ctx context.Context, pod string, r EngineReport) (time.Duration, error) {
	var out struct {
		Stale float64 `json:"stale_after_s"`
	}
	err := c.Call(ctx, http.MethodPost, "/v1/pods/"+url.PathEscape(pod)+"/load", r, &out)
	return time.Duration(out.Stale * float64(time.Second)), err
}

// Routing returns how a model's requests are routed, as a JSON object.
func (c *Client) Routing(ctx context.Context, model string) (json.RawMessage, error) {
	var out json.RawMessage
	err := c.Call(ctx, http.MethodGet, "/v1/models/"+url.PathEscape(model)+"/routing", nil, &out)
	return out, err
}

// SetRouting replaces the settings of a model that the JSON object names, and returns all.
func (c *Client) SetRouting(ctx context.Context, model string, settings json.RawMessage) (json.RawMessage, error) {
	var out json.RawMessage
	err := c.Call(ctx, http.MethodPut, "/v1/models/"+url.PathEscape(model)+"/routing", settings, &out)
	return out, err
}
