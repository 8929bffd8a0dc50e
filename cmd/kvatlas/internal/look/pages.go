package look

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/store"
)

const podsUsage = `kvatlas pods lists the pods that are registered at a running server.

  kvatlas pods
  kvatlas pods --model MODEL
  kvatlas pods --json

A token is taken from $KVATLAS_TOKEN. EVENTS is where the pod's events are read;
"approximate" has none, and counts what was sent there lately as held.

`

func writePods(t *table, answer []byte, model string) error {
	var a struct {
		Pods []client.Pod `json:"pods"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return err
	}
	t.row("POD", "MODEL", "ENGINE", "ROLE", "RANKS", "KV TOKENS", "EVENTS", "LEASE")
	for i := range a.Pods {
		p := &a.Pods[i]
		if model != "" && p.Model != model && !slices.Contains(p.Aliases, model) {
			continue
		}
		role, events := p.Role, p.Events
		if o := p.PartOf; o != nil {
			role = fmt.Sprintf("worker %d of %d of %s#%d", o.Worker, o.Workers, o.Pod, o.Rank)
		}
		if events == "" && p.Approximate {
			events = "approximate"
		}
		t.row(p.Name, p.Model, p.Engine, role, count(p.Ranks), count(p.KVTokens), events, lease(p.LeaseSeconds))
	}
	return nil
}

// lease is how long a registration lives, "" where what the server says is no lease.
func lease(seconds float64) string {
	switch {
	case seconds == 0:
		return "until deleted"
	case seconds < 0 || seconds > store.MaxLease.Seconds():
		return ""
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond).String()
}

const modelsUsage = `kvatlas models lists the models that a running server indexes, and the tokenizers
that it has in memory.

  kvatlas models
  kvatlas models --json

A token is taken from $KVATLAS_TOKEN. BLOCK is the index block size in tokens. A
tokenizer is loaded by the first text of its model.

`

func writeModels(t *table, answer []byte, _ string) error {
	type loaded struct {
		Model        string `json:"model"`
		From         string `json:"from"`
		MemoryBytes  int64  `json:"memory_bytes"`
		ChatTemplate bool   `json:"chat_template"`
	}
	var a struct {
		Models     []client.Model `json:"models"`
		Tokenizers []loaded       `json:"tokenizers"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return err
	}
	indexed, tokenizers := map[string]client.Model{}, map[string]loaded{}
	for _, m := range a.Models {
		indexed[m.Name] = m
	}
	for _, l := range a.Tokenizers {
		tokenizers[l.Model] = l
	}
	names := slices.Sorted(maps.Keys(indexed))
	for _, n := range slices.Sorted(maps.Keys(tokenizers)) {
		if _, is := indexed[n]; !is {
			names = append(names, n)
		}
	}
	t.row("MODEL", "BLOCK", "TOKENIZER", "MEMORY", "CHATS")
	for _, n := range names {
		l, has := tokenizers[n]
		memory, chats := "", ""
		if has {
			memory = mebibytes(l.MemoryBytes)
			chats = "no template"
			if l.ChatTemplate {
				chats = "yes"
			}
		}
		t.row(n, count(indexed[n].BlockSize), l.From, memory, chats)
	}
	return nil
}

const loadsUsage = `kvatlas loads lists what runs on each rank, as a running server has booked it and as
engines say.

  kvatlas loads
  kvatlas loads --model MODEL
  kvatlas loads --json

A token is taken from $KVATLAS_TOKEN. Of requests that were routed with a reservation are
REQUESTS (their number), BLOCKS (of the index, in use) and PREFILL TOKENS (still to do).
RUNNING and WAITING (requests) and CACHE USED (of the engine's KV cache) are what the
engine said, AGE (seconds) ago. DELIVERED is how much of the tokens that were predicted
to be cached recent requests really had.

`

func writeLoads(t *table, answer []byte, model string) error {
	var a struct {
		Models map[string][]client.RankLoad `json:"models"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return err
	}
	t.row("MODEL", "POD", "RANK", "REQUESTS", "BLOCKS", "PREFILL TOKENS", "RUNNING", "WAITING", "CACHE USED", "AGE", "DELIVERED")
	for _, m := range slices.Sorted(maps.Keys(a.Models)) {
		if model != "" && m != model {
			continue
		}
		for i := range a.Models[m] {
			l := &a.Models[m][i]
			cells := []string{m, l.Pod, fmt.Sprint(l.Rank), fmt.Sprint(l.Requests), fmt.Sprint(l.Blocks), fmt.Sprint(l.PrefillTokens), "", "", "", "", ""}
			if e := l.Engine; e != nil {
				cells[6], cells[7] = fmt.Sprint(e.Running), fmt.Sprint(e.Waiting)
				if e.KVUsage != nil {
					cells[8] = percent(*e.KVUsage)
				}
				cells[9] = fmt.Sprintf("%.1fs", e.AgeS)
			}
			if tr := l.Truth; tr != nil && tr.PredictedTokens > 0 {
				cells[10] = percent(float64(tr.DeliveredTokens) / float64(tr.PredictedTokens))
				if tr.Lies {
					cells[10] += " (the index lies)"
				}
			}
			t.row(cells...)
		}
	}
	return nil
}

const prefixesUsage = `kvatlas prefixes lists the prefixes that requests were routed with most of late: system
prompts, tools, long chats.

  kvatlas prefixes
  kvatlas prefixes --model MODEL
  kvatlas prefixes --json

A token is taken from $KVATLAS_TOKEN. KEY is the block key that names a prefix, which
kvatlas score --block-keys takes; no text is kept. SHARE is the part of the model's
requests that begin so, MISSED how many of them were sent where not all of it was held.
SHOULD HOLD are the ranks that should have it besides those that HOLD it.

`

func writePrefixes(t *table, answer []byte, model string) error {
	var a struct {
		Models map[string]client.ModelPrefixes `json:"models"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return err
	}
	t.row("MODEL", "KEY", "TOKENS", "REQUESTS", "SHARE", "MISSED", "HOLD", "SHOULD HOLD")
	for _, m := range slices.Sorted(maps.Keys(a.Models)) {
		if model != "" && m != model {
			continue
		}
		list := a.Models[m].Prefixes
		for i := range list {
			x := &list[i]
			var hold, should []string
			for _, h := range x.HeldBy {
				hold = append(hold, fmt.Sprintf("%s#%d (%s)", h.Pod, h.Rank, h.Tier))
			}
			for _, s := range x.ShouldHold {
				should = append(should, fmt.Sprintf("%s#%d", s.Pod, s.Rank))
			}
			t.row(m, x.Key, fmt.Sprint(x.Tokens), fmt.Sprintf("%.1f", x.Requests), percent(x.Share), fmt.Sprintf("%.1f", x.Missed), strings.Join(hold, ", "), strings.Join(should, ", "))
		}
	}
	return nil
}

// percent is a share, 0 to 1.
func percent(share float64) string {
	return fmt.Sprintf("%.0f%%", 100*share)
}
