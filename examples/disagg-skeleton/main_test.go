package main

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/scorer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	var out strings.Builder
	must.OK(t, run(t.Context(), &out))
	const want = `a question on a document     2148 tokens,    0 cached, as predicted: true  p-1 -> d-1
another one on it            2348 tokens, 2048 cached, as predicted: true  p-1 -> d-1
the first one goes on        2238 tokens, 2192 cached, as predicted: true  d-1 alone: short
by the workers' names        1000 tokens,    0 cached, as predicted: true  p-2 -> d-2
24 at once: all answered, prefilled by 2 workers, decoded by 2
when a worker has died       1000 tokens,    0 cached, as predicted: true  d-2 alone: p-2 is gone
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

// TestFleet looks at what a request leaves behind, and at the costs of the policy.
func TestFleet(t *testing.T) {
	f := must.Get(startFleet(t.Context()))(t)
	defer func() { _ = f.close() }()
	must.Get(f.serve(t.Context(), &request{id: "a", tokens: numbers(1, 1000), maxTokens: 3, prefill: "p-1"}))(t)
	p := must.Get(f.router.Loads(t.Context(), model))(t)
	for at, l := range p.Loads {
		if l.Requests != 0 || l.Work != 0 || l.Blocks != 0 {
			t.Errorf("%v has %+v when all has ended", at, l)
		}
	}
	if len(p.Engines) != 4 {
		t.Errorf("%d workers have told their load", len(p.Engines))
	}
	d := must.Get(f.router.Route(t.Context(), route.Request{Score: scorer.Request{Model: model, Input: scorer.Tokens(numbers(1, 1000))}, Role: route.RolePair, Explain: true, PinnedPrefill: pin("p-1")}))(t)
	if d.Policy != policyName || d.Prefill.Costs[0].Total != 8 || d.Prefill.Costs[0].Terms[0].Value != 8 || d.Pod != "d-1" {
		t.Errorf("%+v, %+v", d, d.Prefill)
	}
	// A fetch of KV that is not there, or of another prompt, is refused.
	var res result
	for _, o := range []order{{ID: "none", Tokens: numbers(1, 8), MaxTokens: 1, From: f.workers["p-1"].url}, {Tokens: nil, MaxTokens: 1}} {
		if err := call(t.Context(), "POST", f.workers["d-1"].url+"/decode", o, &res); err == nil {
			t.Errorf("%+v was answered with %+v", o, res)
		}
	}
	if _, err := f.serve(t.Context(), &request{id: "b", tokens: numbers(1, 10), maxTokens: 1, decode: "nobody"}); err == nil {
		t.Error("a worker that there is not was found")
	}
}
