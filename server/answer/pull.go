package answer

import (
	"cmp"
	"crypto/rand"
	"net"

	"github.com/kvatlas/kvatlas/route"
)

// pullAnswer is the place from which part of a prompt is fetched.
type pullAnswer struct {
	Place
	Address string  `json:"address,omitempty"`
	Tokens  int     `json:"tokens"`
	MS      float64 `json:"ms"`
}

// transferParams are vLLM's kv_transfer_params for its tier that fetches from other engines.
type transferParams struct {
	Source struct {
		RequestID string `json:"kv_request_id"`
		Host      string `json:"remote_host"`
		Port      int    `json:"remote_port"`
	} `json:"remote_kv_source"`
}

// planAnswer is what each way costs.
type planAnswer struct {
	Wait      *wayAnswer `json:"wait"`
	Recompute *wayAnswer `json:"recompute"`
	Pull      *wayAnswer `json:"pull"`
}

type wayAnswer struct {
	Place
	Total float64 `json:"total"`
}

// headerSource gives llm-d's sidecars the pod to fetch from.
const headerSource = "x-kv-cache-source-host-port"

// addPull tells in an answer what is fetched for a request, whose id may be empty.
func (a *Routed) addPull(d *route.Decision, id string) {
	if w := d.Ways; w != nil {
		a.PullPlan = &planAnswer{wayOf(w.Wait), wayOf(w.Recompute), wayOf(w.Pull)}
	}
	from := d.Pull
	if from == nil {
		return
	}
	a.PullFrom = &pullAnswer{PlaceOf(from.RankRef), AddressOf(from.Pod, from.Address), from.Tokens, from.MS}
	at := hostPort(from.Pod, from.Address)
	a.addHeader(headerSource, at)
	host, _, err := net.SplitHostPort(at)
	if err != nil {
		host = at
	}
	p := &transferParams{}
	p.Source.RequestID, p.Source.Host, p.Source.Port = cmp.Or(id, rand.Text()), host, from.Port
	a.KVTransfer = p
}

func wayOf(w *route.Way) *wayAnswer {
	if w == nil {
		return nil
	}
	return &wayAnswer{PlaceOf(w.RankRef), w.Total}
}
