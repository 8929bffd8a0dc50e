package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/kvatlas/kvatlas/bench/internal/traffic"
	"github.com/kvatlas/kvatlas/blockkey"
)

// kind is a request that is sent again and again.
type kind struct {
	name    string
	path    string
	body    []byte
	calls   int                                  // of a round
	prepare func(context.Context, *server) error // before the first, once
}

// pods is how many pods hold all of each prompt.
const pods = 10

// kinds are what a server with the index in memory, or in Redis, is asked.
func (o *options) kinds(redis bool) []kind {
	if o.fleets {
		return o.fleetKinds(redis)
	}
	where, few := "", max(1, o.calls/10)
	if redis {
		where = "redis-"
	}
	out := []kind{
		tokensKind(where+"tokens-128", 128, o.calls),
		tokensKind(where+"tokens-2k", 2048, o.calls),
		keysKind(where+"keys-2k", 2048, o.calls),
		tokensKind(where+"tokens-16k", 16384, o.calls/2),
	}
	if redis {
		return append(out, routeKind(where+"route-2k", 2048, o.calls))
	}
	return append(out,
		o.textKind("text-8k", prose(8<<10), o.calls),
		o.textKind("text-1M", prose(1<<20-1<<12), few),
		o.textKind("text-1M-code", code(1<<20-1<<12), few))
}

func tokensOf(n int) []uint32 {
	rng := rand.New(rand.NewPCG(1, uint64(n))) //nolint:gosec // the same in each run
	out := make([]uint32, n)
	for i := range out {
		out[i] = rng.Uint32N(128_000)
	}
	return out
}

// held has all pods hold the tokens.
func held(tokens []uint32) func(context.Context, *server) error {
	text := traffic.Packed(tokens)
	return func(ctx context.Context, s *server) error {
		for i := range pods {
			if err := s.post(ctx, "/v1/blocks", fmt.Appendf(nil, `{"op":"add","model":"m","pod":"10.0.0.%d:8000","tokens_b64":%q}`, i, text)); err != nil {
				return err
			}
		}
		return nil
	}
}

func tokensKind(name string, n, calls int) kind {
	tokens := tokensOf(n)
	return kind{name: name, path: "/v1/score", calls: calls, prepare: held(tokens), body: fmt.Appendf(nil, `{"model":"m","tokens":[%s]}`, traffic.List(tokens))}
}

func keysKind(name string, n, calls int) kind {
	tokens := tokensOf(n)
	var names []string
	for _, k := range blockkey.AppendNative(nil, tokens, 64, blockkey.NativeSeed("", "")) {
		names = append(names, k.String())
	}
	list, _ := json.Marshal(names) // neither can texts
	return kind{name: name, path: "/v1/score", calls: calls, prepare: held(tokens), body: []byte(`{"model":"m","block_keys":` + string(list) + `}`)}
}

func routeKind(name string, n, calls int) kind {
	k := tokensKind(name, n, calls)
	k.path = "/v1/route"
	return k
}

// textKind asks for a text whose tokens the prefix store knows.
func (o *options) textKind(name, text string, calls int) kind {
	body, _ := json.Marshal(map[string]string{"model": o.model, "prompt": text, "mode": "sync"}) // nor this
	return kind{name: name, path: "/v1/score", calls: calls, body: body, prepare: func(context.Context, *server) error { return nil }}
}

// prose is a text of n bytes in lines.
func prose(n int) string {
	var b strings.Builder
	words := strings.Fields("the quick brown fox jumps over a lazy dog while seventeen engines compute what nobody has asked for yet")
	rng := rand.New(rand.NewPCG(2, uint64(n))) //nolint:gosec // the same in each run
	for b.Len() < n {
		for range 12 {
			b.WriteString(words[rng.IntN(len(words))])
			b.WriteByte(' ')
		}
		b.WriteByte('\n')
	}
	return b.String()[:n]
}

// code is a text of n bytes of which every tenth needs an escape in JSON.
func code(n int) string {
	line := "\tif err := open(\"file\", \"r\"); err != nil {\n\t\treturn \"\", err // café\n\t}\n"
	return strings.Repeat(line, n/len(line)+1)[:n/len(line)*len(line)]
}
