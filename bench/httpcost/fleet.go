package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/kvatlas/kvatlas/bench/internal/traffic"
)

// shapes name what a fleet holds of a prompt. In stairs each pod holds another part of its
// beginning, and the first pod all of it.
var shapes = []string{"stairs", "whole"}

// fleetTokens is how long the prompts are that fleets hold.
const fleetTokens = 16_384

// fleetKinds ask for prompts that ten and a thousand pods hold, for the ten best and for all.
func (o *options) fleetKinds(redis bool) (out []kind) {
	where := ""
	if redis {
		where = "redis-"
	}
	for _, shape := range shapes {
		for _, pods := range []int{10, 1000} {
			name := fmt.Sprintf("%s%s-%d", where, shape, pods)
			own := 1 + len(out)                                   // each fleet has a prompt of its own, a little longer than whole blocks
			tokens := tokensOf(fleetTokens + own)                 // a few more than whole blocks
			list, _ := json.Marshal(tokens)                       // numbers cannot fail
			quoted, _ := json.Marshal(prose(4*fleetTokens + own)) // nor can a text
			for i, top := range []string{`,"top":10`, ""} {
				name := name + []string{"-top", "-all"}[i]
				byTokens := kind{name: name, path: "/v1/score", calls: o.calls, body: fmt.Appendf(nil, `{"model":"m","tokens":%s%s}`, list, top)}
				byText := kind{name: name + "-text", path: "/v1/score", calls: o.calls, body: fmt.Appendf(nil, `{"model":%q,"prompt":%s,"mode":"sync"%s}`, o.model, quoted, top)}
				byTokens.prepare = func(context.Context, *server) error { return nil }
				byText.prepare = byTokens.prepare
				if i == 0 {
					byTokens.prepare = heldByFleet("m", shape, pods, func(context.Context, *server) ([]uint32, error) { return tokens, nil })
					byText.prepare = heldByFleet(o.model, shape, pods, func(ctx context.Context, s *server) ([]uint32, error) {
						return s.tokenize(ctx, o.model, string(quoted))
					})
				}
				out = append(out, byTokens)
				if !redis { // those servers tokenize no texts ahead
					out = append(out, byText)
				}
			}
		}
	}
	return out
}

// heldByFleet has pods hold tokens in a shape.
func heldByFleet(model, shape string, pods int, tokens func(context.Context, *server) ([]uint32, error)) func(context.Context, *server) error {
	return func(ctx context.Context, s *server) error {
		all, err := tokens(ctx, s)
		if err != nil {
			return err
		}
		for i := range pods {
			n := len(all)
			if shape == "stairs" {
				n -= i * len(all) / pods
			}
			body := fmt.Appendf(nil, `{"op":"add","model":%q,"pod":"10.%d.%d.%d:8000","tokens_b64":%q}`, model, len(model), i/250, i%250, traffic.Packed(all[:n]))
			if err := s.post(ctx, "/v1/blocks", body); err != nil {
				return err
			}
		}
		return nil
	}
}

// tokenize asks a server for the tokens of a text, which it remembers from then on.
func (s *server) tokenize(ctx context.Context, model, quoted string) ([]uint32, error) {
	c, err := traffic.Dial(ctx, s.Address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	body, err := c.Ask(request("/v1/tokenize", fmt.Appendf(nil, `{"model":%q,"prompt":%s}`, model, quoted), 0))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	err = json.Unmarshal(body, &answer)
	return answer.Tokens, err
}
