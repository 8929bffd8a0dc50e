package answer

import (
	"cmp"
	"crypto/rand"
	"net"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/route"
)

// transferParams are vLLM's kv_transfer_params for its tier that fetches from other engines.
type transferParams struct {
	Source struct {
		RequestID string `json:"kv_request_id"`
		Host      string `json:"remote_host"`
		Port      int    `json:"remote_port"`
	} `json:"remote_kv_source"`
}

// headerSource gives llm-d's sidecars the pod to fetch from.
const headerSource = "x-kv-cache-source-host-port"

// addPull adds to an answer what is fetched for a request. The request may have no id.
func (a *Routed) addPull(d *route.Decision, id string) {
	if w := d.Ways; w != nil {
		a.PullPlan = &client.PullPlan{Wait: wayOf(w.Wait), Recompute: wayOf(w.Recompute), Pull: wayOf(w.Pull)}
	}
	from := d.Pull
	if from == nil {
		return
	}
	a.PullFrom = &client.PullSource{Place: PlaceOf(from.RankRef), Address: AddressOf(from.Pod, from.Address), Tokens: from.Tokens, MS: from.MS}
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

func wayOf(w *route.Way) *client.PullWay {
	if w == nil {
		return nil
	}
	return &client.PullWay{Place: PlaceOf(w.RankRef), Total: w.Total}
}
