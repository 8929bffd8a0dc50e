package server_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
)

var updateExplanations = flag.Bool("update", false, "write testdata/explanations.txt anew")

// explained is a server of which time stands still but for the test.
type explained struct {
	*routing
	at time.Time
}

// newExplained has a fleet of each kind of pod, holders in each tier, and requests that run.
func newExplained(t *testing.T) *explained {
	t.Helper()
	e := &explained{at: time.UnixMicro(1_800_000_000_000_000)}
	now := func() time.Time { return e.at }
	index := openIndex(t)
	sc := must.Get(scorer.New(scorer.Config{Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), BlockSize: 16}))(t)
	router := must.Get(route.New(route.Config{Scorer: sc, Pods: index, Loads: loads.NewMemory(now), Seed: 1, Now: now}))(t)
	s := must.Get(server.New(server.Config{Scorer: sc, Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), Router: router, BlockSize: 16}))(t)
	e.routing = &routing{T: t, h: s.Handler()}
	for _, pod := range []string{
		`{"name":"a","model":"m","labels":{"zone":"1"},"kv_tokens":64000,"address":"http://10.0.0.1:8000"}`,
		`{"name":"b","model":"m","ranks":2,"block_size":32,"labels":{"zone":"2"}}`,
		`{"name":"c","model":"m","labels":{"zone":"2"}}`,
		`{"name":"d1","model":"pd","role":"decode","labels":{"zone":"1","host":"x"}}`,
		`{"name":"d2","model":"pd","role":"decode","labels":{"zone":"2","host":"y"}}`,
		`{"name":"p1","model":"pd","role":"prefill","labels":{"zone":"1","host":"z"},"address":"10.0.0.7:8000"}`,
		`{"name":"p2","model":"pd","role":"prefill","labels":{"zone":"2","host":"y"}}`,
	} {
		e.ok("POST", "/v1/pods", pod)
	}
	hold := func(model, pod string, rank int, tier string, n int) {
		e.ok("POST", "/v1/blocks", fmt.Sprintf(`{"op":"add","model":%q,"pod":%q,"rank":%d,"tier":%q,"tokens":[%s]}`, model, pod, rank, tier, upTo(n)))
	}
	hold("m", "a", 0, "gpu", 1600)
	hold("m", "b", 1, "cpu", 800)
	hold("m", "b", 0, "disk", 160)
	hold("pd", "p1", 0, "gpu", 1600)
	hold("pd", "d2", 0, "cpu", 320)
	for i, at := range []string{`"model":"m","pinned":{"pod":"a"}`, `"model":"m","pinned":{"pod":"b","rank":0}`, `"model":"pd","role":"prefill","pinned":{"pod":"p2"}`, `"model":"pd","role":"decode","pinned":{"pod":"d1"}`} {
		e.ok("POST", "/v1/route", fmt.Sprintf(`{%s,"tokens":[9,%s],"reserve":true,"request_id":"busy%d"}`, at, upTo(1000*(4-i)), i))
	}
	e.ok("POST", "/v1/pods/c/load", `{"running":2,"waiting":1,"waiting_tokens":500,"kv_usage":0.5,"kv_tokens":64000}`)
	return e
}

// explanations are requests by name; @n stands for the tokens 1 to n. Those that book are
// sent twice.
func explanations() (all [][2]string) {
	add := func(name, body string) { all = append(all, [2]string{name, body}) }
	for _, p := range route.Policies() {
		add("policy "+p, `{"model":"m","tokens":"@2000","policy":"`+p+`"}`)
		add("policy "+p+" for a prompt that nobody holds", `{"model":"m","tokens":[7,8,9],"policy":"`+p+`"}`)
		add("policy "+p+" for a pair", `{"model":"pd","tokens":"@2000","role":"pair","policy":"`+p+`"}`)
	}
	add("beta is fixed", `{"model":"m","tokens":"@2000","overrides":{"beta":0}}`)
	add("preferred labels", `{"model":"m","tokens":"@2000","prefer":{"zone=2":0.5}}`)
	add("limits", `{"model":"m","tokens":"@2000","overrides":{"busy":{"requests":1}}}`)
	add("a drawn one", `{"model":"m","tokens":"@2000","overrides":{"temperature":1}}`)
	add("dynamo with decay and tiers", `{"model":"m","tokens":"@2000","policy":"dynamo","overrides":{"dynamo":{"overlap_score_credit_decay":0.5,"shared_cache_multiplier":0.1}}}`)
	add("decode alone", `{"model":"pd","tokens":"@2000","role":"decode"}`)
	add("pair in one zone", `{"model":"pd","tokens":"@2000","role":"pair","overrides":{"pair":{"require_same":["zone"]}}}`)
	add("pair on one host if possible", `{"model":"pd","tokens":"@2000","role":"pair","overrides":{"pair":{"prefer_same":{"host":1,"zone":0.2}}}}`)
	add("pair with a transfer", `{"model":"pd","tokens":"@2000","role":"pair","overrides":{"pull":{"block_bytes":2000000,"bandwidth":1e10,"tiers":[]}}}`)
	add("pair of one by rule, short", `{"model":"pd","tokens":"@100","role":"pair"}`)
	add("pair of one by rule, held", `{"model":"pd","tokens":"@330","role":"pair","pinned":{"pod":"d2"},"overrides":{"pair":{"local_tokens":0}}}`)
	add("pair of one, no prefill pod", `{"model":"pd","tokens":"@2000","role":"pair","overrides":{"pair":{"require_same":["rack"]}}}`)
	add("pair of one, whole", `{"model":"m","tokens":"@2000","role":"pair","overrides":{"pull":{"block_bytes":2000000,"bandwidth":1e9}}}`)
	add("no pair", `{"model":"pd","tokens":"@2000","role":"pair","overrides":{"pair":{"require_same":["rack"],"local_fallback":false}}}`)
	const pull = `"overrides":{"pull":{"block_bytes":1000000,"bandwidth":1e10}`
	add("pull plan: pull", `{"model":"m","tokens":"@2000","request_id":"x",`+pull+`}}`)
	add("pull plan: wait, a second later", `{"model":"m","tokens":"@2000","request_id":"x",`+pull+`}}`)
	add("pull plan: recompute", `{"model":"m","tokens":"@2000","request_id":"x","overrides":{"beta":0,"pull":{"block_bytes":9000000,"bandwidth":1e10}}}`)
	add("pull plan without the owner", `{"model":"m","tokens":"@2000","request_id":"x","pinned":{"pod":"c"},`+pull+`}}`)
	add("pull plan of a pair", `{"model":"pd","tokens":"@2000","role":"pair","request_id":"x","pinned_prefill":{"pod":"p2"},`+pull+`}}`)
	add("pull by dynamo", `{"model":"m","tokens":"@2000","policy":"dynamo","request_id":"x","pinned":{"pod":"c"},`+pull+`}}`)
	add("booked", `{"model":"m","tokens":"@2000","reserve":true,"request_id":"x"}`)
	add("a pair booked", `{"model":"pd","tokens":"@2000","role":"pair","reserve":true,"request_id":"y"}`)
	return all
}

// broken breaks an answer into lines: one of a candidate, and one of each further part.
var broken = strings.NewReplacer(`,{"pod"`, ",\n {\"pod\"", `,{"prefill"`, ",\n {\"prefill\"", `"costs":[`, "\"costs\":[\n ", `"pairs":[`, "\n\"pairs\":[\n ", `,"prefill":{"pod":`, ",\n\"prefill\":{\"pod\":",
	`,"headers"`, ",\n\"headers\"", `,"pull_plan"`, ",\n\"pull_plan\"", `,"pull_from"`, ",\n\"pull_from\"")

// TestExplanations compares the explained answers of each policy, of pairs and of pull plans byte
// by byte with testdata/explanations.txt. The flag -update writes that anew: read the difference.
func TestExplanations(t *testing.T) {
	var got bytes.Buffer
	for _, x := range explanations() {
		e := newExplained(t)
		asks := [][2]string{x}
		if strings.HasSuffix(x[0], "booked") {
			asks = append(asks, [2]string{x[0] + " again", x[1]})
		}
		for _, x := range asks {
			e.at = e.at.Add(100 * time.Millisecond)
			if strings.HasSuffix(x[0], "a second later") {
				e.at = e.at.Add(time.Second)
			}
			body := strings.TrimSuffix(x[1], "}") + `,"explain":true}`
			fmt.Fprintf(&got, "# %s\n%s\n", x[0], body)
			for _, n := range []int{100, 330, 2000} {
				body = strings.ReplaceAll(body, fmt.Sprintf(`"@%d"`, n), "["+upTo(n)+"]")
			}
			w := e.do("POST", "/v1/route", body)
			fmt.Fprintf(&got, "%d %s\n\n", w.Code, broken.Replace(strings.TrimSpace(w.Body.String())))
		}
	}
	const file = "testdata/explanations.txt"
	if *updateExplanations {
		must.OK(t, os.WriteFile(file, got.Bytes(), 0o644))
	}
	want := must.Get(os.ReadFile(file))(t)
	if bytes.Equal(want, got.Bytes()) {
		return
	}
	wanted := strings.Split(string(want), "\n# ")
	for i, part := range strings.Split(got.String(), "\n# ") {
		if i >= len(wanted) || part != wanted[i] {
			t.Fatalf("answered\n%s\nexpected\n%s", part, strings.Join(wanted[min(i, len(wanted)):min(i+1, len(wanted))], ""))
		}
	}
	t.Fatalf("%d answers are missing", len(wanted)-strings.Count(got.String(), "\n# ")-1)
}
