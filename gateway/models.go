package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// The bounds of a list of models.
const (
	modelsWait  = 3 * time.Second
	modelsBytes = 4 << 20
	modelsPods  = 64
)

// listModels answers GET /v1/models where the pods differ in what they list: with the cards of
// one of each kind, as these engines wrote them. It reports whether it has; a list that all
// pods have alike is passed on like any other page.
func (g *Gateway) listModels(x *exchange, w http.ResponseWriter, r *http.Request) bool {
	reg := g.c.Index.Cached()
	kinds := map[string]*store.Pod{}
	var order []string
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.PartOf != nil {
			continue
		}
		kind := strings.Join(slices.Concat([]string{p.Model}, p.Aliases, []string{""}, p.Adapters), "\n")
		if was := kinds[kind]; was == nil {
			order = append(order, kind)
			kinds[kind] = p
		} else if g.pods.isDown(was.Name) && !g.pods.isDown(p.Name) {
			kinds[kind] = p
		}
	}
	if len(kinds) < 2 {
		return false
	}
	order = order[:min(len(order), modelsPods)]
	ctx, cancel := context.WithTimeout(r.Context(), modelsWait)
	defer cancel()
	lists := make([][]json.RawMessage, len(order))
	var all sync.WaitGroup
	for i, kind := range order {
		all.Go(func() { lists[i] = g.askModels(ctx, kinds[kind], r.Header) })
	}
	all.Wait()
	seen := map[string]bool{}
	out := []json.RawMessage{}
	for _, list := range lists {
		for _, card := range list {
			var c struct {
				ID string `json:"id"`
			}
			if json.Unmarshal(card, &c) == nil && c.ID != "" && !seen[c.ID] {
				seen[c.ID] = true
				out = append(out, card)
			}
		}
	}
	if len(out) == 0 {
		return false // one of them says why
	}
	x.status = http.StatusOK
	w.Header().Set("Content-Type", "application/json")
	b, err := json.Marshal(map[string]any{"object": "list", "data": out})
	if err != nil {
		return false
	}
	_, _ = w.Write(append(b, '\n')) // a client that has gone
	return true
}

// askModels returns the cards that a pod lists, none where it does not answer.
func (g *Gateway) askModels(ctx context.Context, p *store.Pod, header http.Header) []json.RawMessage {
	resp, err := g.page(ctx, p, "v1/models", header.Get("Authorization"))
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, modelsBytes))
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(b, &list) != nil {
		return nil
	}
	return list.Data
}
