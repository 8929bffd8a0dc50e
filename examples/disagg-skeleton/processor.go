package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// processor takes requests: it asks the router for workers, sends them there, and
// reports how they go on.
type processor struct{ router *router }

// request is a prompt and how long its answer shall be. Prefill and Decode are the workers
// that it must go to, empty for any.
type request struct {
	id              string
	tokens          []uint32
	maxTokens       int
	prefill, decode string
}

// answer names the workers that did each part.
type answer struct {
	prefill, decode string
	alone           route.Local // why decode did all
	predicted       int         // tokens that were thought to be cached where it was prefilled
	cached          int         // those that were
	output          []uint32
	failed          error // of the worker that should have prefilled
}

func (p *processor) serve(ctx context.Context, r *request) (*answer, error) {
	d, err := p.router.Route(ctx, route.Request{
		Score: scorer.Request{Model: model, Input: scorer.Tokens(r.tokens)}, Role: route.RolePair, Reserve: true, ID: r.id, Expected: r.maxTokens,
		Pinned: pin(r.decode), PinnedPrefill: pin(r.prefill),
	})
	if err != nil {
		return nil, err
	}
	// Whatever becomes of it, both bookings end with the request.
	defer func() { _, _ = p.router.End(context.WithoutCancel(ctx), model, d.Reservation) }()

	a := &answer{decode: d.Pod, alone: d.Prefills, predicted: d.Cached()}
	decode := order{ID: d.Reservation, Tokens: r.tokens, MaxTokens: r.maxTokens}
	if d.Prefill != nil {
		a.prefill, a.predicted = d.Prefill.Pod, d.Prefill.Cached()
		var done result
		if a.failed = call(ctx, http.MethodPost, d.Prefill.Address+"/prefill", order{ID: d.Reservation, Tokens: r.tokens}, &done); a.failed == nil {
			a.cached, decode.From = done.Cached, d.Prefill.Address
			if _, err := p.router.Done(ctx, model, d.Reservation, done.Cached); err != nil {
				return nil, err
			}
		} // else the decode worker prefills as well
	}
	var done result
	if err := call(ctx, http.MethodPost, d.Address+"/decode", decode, &done); err != nil {
		return nil, err
	}
	if decode.From == "" {
		a.cached = done.Cached
		if _, err := p.router.Done(ctx, model, d.Reservation, done.Cached); err != nil {
			return nil, err
		}
	}
	a.output = done.Output
	return a, nil
}

// pin is the worker of a name.
func pin(worker string) *store.RankRef {
	if worker == "" {
		return nil
	}
	return &store.RankRef{Pod: worker, Rank: -1}
}

// call sends JSON and reads JSON.
func call(ctx context.Context, method, url string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("%s: %s %s", url, resp.Status, strings.TrimSpace(string(text)))
	}
	return json.NewDecoder(resp.Body).Decode(out)
}
