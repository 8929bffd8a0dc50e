package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvatlas/kvatlas/bench/internal/traffic"
)

// job is one kind of call to one side.
type job struct {
	side *side
	form string
	// calls are for each prompt the requests of a call, one after the other.
	calls [][]request
	// after is sent for each call when all have been measured: it ends what they have booked.
	after *request
}

// work is what sides are compared by.
type work struct {
	what   string
	tokens int
	calls  int // of a sample
	peer   job
	ours   []job
}

// ids numbers bookings.
var ids atomic.Int64

func nextID() string { return fmt.Sprintf("r%09d", ids.Add(1)) }

// cost is what a call has taken of a processor.
type cost struct{ own, behind time.Duration }

func (c cost) all() float64 { return float64(c.own+c.behind) / 1e3 }

// sample makes n calls on so many connections. They are new, since servers close what is idle.
func (j *job) sample(ctx context.Context, conns, n int) (c cost, err error) {
	open, err := j.side.connect(ctx, conns)
	if err != nil {
		return c, err
	}
	defer closeAll(open)
	own, behind, err := j.side.spent(ctx)
	if err != nil {
		return c, err
	}
	booked := make([][]string, conns)
	var g errgroup.Group
	for k := range conns {
		g.Go(func() error {
			for i := k; i < n; i += conns {
				id := nextID()
				for _, r := range j.calls[i%len(j.calls)] {
					if _, err := open[k].Ask(r.with(id)...); err != nil {
						return fmt.Errorf("%s, %s: %w", j.side.name, j.form, err)
					}
				}
				booked[k] = append(booked[k], id)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return c, err
	}
	ownAfter, behindAfter, err := j.side.spent(ctx)
	if err != nil {
		return c, err
	}
	if j.after != nil {
		for _, all := range booked {
			for _, id := range all {
				if _, err := open[0].Ask(j.after.with(id)...); err != nil {
					return c, fmt.Errorf("%s, %s: ending %s: %w", j.side.name, j.form, id, err)
				}
			}
		}
	}
	return cost{(ownAfter - own) / time.Duration(n), (behindAfter - behind) / time.Duration(n)}, nil
}

// lengths are those of prompts, in tokens.
var lengths = []int{131072, 16384, 2048, 128}

// newPrompts draws several prompts of each length, so that not each lookup finds its blocks in the
// nearest cache.
func newPrompts() map[int][][]uint32 {
	random := rand.New(rand.NewPCG(19, 15)) //nolint:gosec // tokens of a benchmark
	out := map[int][][]uint32{}
	for i, n := range []int{3, 8, 16, 16} {
		for range n {
			out[lengths[i]] = append(out[lengths[i]], newPrompt(random, lengths[i]))
		}
	}
	return out
}

// calls of a sample, by the length of its prompts.
var calls = map[int]int{0: 160, 128: 160, 2048: 80, 16384: 20, 131072: 4}

const (
	model      = "m"
	jsonKind   = "application/json"
	binaryKind = "application/vnd.kvatlas.tokens"
)

// Forms of a prompt's tokens in a request to kvatlas. head is the JSON of all other fields.
var forms = []struct {
	name, kind string
	body       func(head string, tokens []uint32) []byte
}{
	{"JSON", jsonKind, func(head string, tokens []uint32) []byte {
		return fmt.Appendf(nil, `{%s,"tokens":[%s]}`, head, traffic.List(tokens))
	}},
	{"base64", jsonKind, func(head string, tokens []uint32) []byte {
		return fmt.Appendf(nil, `{%s,"tokens_b64":"%s"}`, head, traffic.Packed(tokens))
	}},
	{"binary", binaryKind, func(head string, tokens []uint32) []byte {
		return append([]byte("{"+head+"}\n"), traffic.Words(tokens)...)
	}},
}

// each makes calls of one request for each prompt.
func each(prompts [][]uint32, f func(tokens []uint32) request) (out [][]request) {
	for _, p := range prompts {
		out = append(out, []request{f(p)})
	}
	return out
}

// with appends requests to each call.
func with(calls [][]request, more ...request) (out [][]request) {
	for _, c := range calls {
		out = append(out, append(c[:len(c):len(c)], more...))
	}
	return out
}

// works are all that is compared.
func works(s *sides, prompts map[int][][]uint32) []work {
	probe := func(path string) [][]request { return [][]request{{newRequest(http.MethodGet, path, "", nil)}} }
	out := []work{{what: "health probe", peer: job{side: s.indexer, calls: probe("/health")}, ours: []job{{side: s.memory, form: "no body", calls: probe("/healthz")}}}}
	head := `"model":"` + model + `"`
	post := func(path, kind string, body []byte) request { return newRequest(http.MethodPost, path, kind, body) }
	dynamo := func(path, head string, prompts [][]uint32) [][]request {
		return each(prompts, func(tokens []uint32) request {
			return post(path, jsonKind, fmt.Appendf(nil, `{"model_name":"%s"%s,"token_ids":[%s]}`, model, head, traffic.List(tokens)))
		})
	}
	// ours are jobs of kvatlas for each form of the tokens.
	ours := func(path, head string, prompts [][]uint32, names ...string) (out []job) {
		for _, side := range []*side{s.memory, s.redis} {
			for _, f := range forms {
				if strings.Contains(strings.Join(names, " "), f.name) {
					out = append(out, job{side: side, form: f.name, calls: each(prompts, func(tokens []uint32) request { return post(path, f.kind, f.body(head, tokens)) })})
				}
			}
		}
		return out
	}
	for _, n := range slices.Backward(lengths) {
		out = append(out, work{what: "score by tokens", tokens: n, peer: job{side: s.indexer, calls: dynamo("/query", "", prompts[n])},
			ours: ours("/v1/score", head, prompts[n], "JSON", "base64", "binary")})
	}
	for _, n := range []int{2048, 16384, 131072} {
		hashes := each(prompts[n], func(tokens []uint32) request {
			text := strings.ReplaceAll(strings.Trim(fmt.Sprint(localHashes(tokens, engineBlock)), "[]"), " ", ",")
			return post("/query_by_hash", jsonKind, fmt.Appendf(nil, `{"model_name":"%s","block_hashes":[%s]}`, model, text))
		})
		keys := func(size int) [][]request {
			return each(prompts[n], func(tokens []uint32) request {
				var names []string
				for _, k := range blockKeys(tokens, size) {
					names = append(names, `"`+k.String()+`"`)
				}
				return post("/v1/score", jsonKind, fmt.Appendf(nil, `{%s,"block_keys":[%s]}`, head, strings.Join(names, ",")))
			})
		}
		out = append(out, work{what: "score by block keys", tokens: n, peer: job{side: s.indexer, calls: hashes}, ours: []job{
			{side: s.small, form: "keys of 16 tokens", calls: keys(engineBlock)}, {side: s.memory, form: "keys of 64 tokens", calls: keys(64)},
		}})
	}
	booked, named := `,"selection_id":"`+idMark+`"`, head+`,"reserve":true,"request_id":"`+idMark+`"`
	free := newRequest(http.MethodDelete, "/reservations/"+idMark, "", nil)
	done := post("/reservations/"+idMark+"/prefill_complete", jsonKind, []byte("{}"))
	ourDone := post("/v1/requests/"+idMark+"/done", jsonKind, []byte("{"+head+"}"))
	ourEnd := post("/v1/requests/"+idMark+"/end", jsonKind, []byte("{"+head+"}"))
	for _, n := range []int{2048, 16384, 131072} {
		query := ours("/v1/route", head, prompts[n], "JSON", "binary")
		reserve, whole := ours("/v1/route", named, prompts[n], "JSON", "binary"), ours("/v1/route", named, prompts[n], "JSON", "binary")
		for i := range reserve {
			reserve[i].after = &ourEnd
			whole[i].calls = with(whole[i].calls, ourDone, ourEnd)
		}
		taken := dynamo("/select_and_reserve", booked, prompts[n])
		out = append(out,
			work{what: "choose a pod", tokens: n, peer: job{side: s.selection, calls: dynamo("/select", "", prompts[n])}, ours: query},
			work{what: "choose and book", tokens: n, peer: job{side: s.selection, calls: taken, after: &free}, ours: reserve},
			work{what: "choose, book, done, end", tokens: n, peer: job{side: s.selection, calls: with(taken, done, free)}, ours: whole})
	}
	for i := range out {
		out[i].calls = calls[out[i].tokens]
	}
	return out
}
