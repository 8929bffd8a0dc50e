package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/terminal"
)

// lookAtServer asks a server that runs.
func (c *Config) lookAtServer(ctx context.Context) *Section {
	if c.Server == "" {
		return nil
	}
	s := &Section{Name: "server", Subject: c.Server}
	add := func(f check.Finding) { s.Findings = append(s.Findings, f) }
	at, err := client.New(client.Config{URL: c.Server, Token: c.Token, Timeout: c.Timeout, UserAgent: "kvatlas-doctor/" + c.Version})
	if err != nil {
		add(check.Finding{Level: check.Fail, What: "health", Found: strings.TrimPrefix(err.Error(), "client: "), Do: "correct --server: host:port, or a URL"})
		return s
	}
	defer at.Close()
	begin := time.Now()
	h, err := at.Health(ctx)
	if err != nil {
		add(check.Finding{
			Level: check.Fail, What: "health", Found: terminal.ServerAnswer(c.Server, err), Means: "no client is answered there",
			Do: "start a server (kvatlas serve), or correct --server",
		})
		return s
	}
	add(check.Finding{What: "health", Found: fmt.Sprintf("answers, in %v", time.Since(begin).Round(10*time.Microsecond))})

	ready := check.Finding{What: "readiness", Found: "wants requests"}
	if err := at.Ready(ctx); err != nil {
		ready.Level, ready.Found = check.Warn, terminal.ServerAnswer(c.Server, err)
		ready.Means, ready.Do = "load balancers send it no requests", "the reason is in the answer; with strict-ready, Redis must be reachable"
	}
	add(ready)

	version := check.Finding{What: "server version", Found: h.Version}
	if h.Version != c.Version {
		version.Level = check.Info
		version.Means = "this program is " + c.Version + ": what it says may be of another version than the server's"
	}
	add(version)

	index := check.Finding{What: "index", Found: "in " + h.Backend}
	switch {
	case h.Backend == "memory" && c.Redis.URL != "":
		index.Level = check.Warn
		index.Means = "the server keeps an index of its own, and does not use the Redis of this configuration"
		index.Do = "give the server the same configuration: --redis"
	case h.Backend == "memory":
		index.Level = check.Info
		index.Means = "the index is lost when the process ends, and other servers have others"
		index.Do = "one server alone may do so; several share an index in Redis (--redis)"
	}
	add(index)
	s.Findings = append(s.Findings, podsOf(ctx, c.Server, at)...)
	if f, ok := eventsOf(ctx, at); ok {
		add(f)
	}
	if f, ok := truthOf(ctx, at); ok {
		add(f)
	}
	return s
}

// truthOf says whether engines have what the index says they hold; ok is false where no
// request has told what its engine had cached.
func truthOf(ctx context.Context, at *client.Client) (f check.Finding, ok bool) {
	models, err := at.Loads(ctx, "")
	if err != nil {
		return f, false
	}
	var lies []string
	told := 0
	for _, list := range models {
		for i := range list {
			t := list[i].Truth
			if t == nil {
				continue
			}
			told++
			if t.Lies {
				lies = append(lies, fmt.Sprintf("%s rank %d (%d of %d tokens)", terminal.Printable(list[i].Pod), list[i].Rank, t.DeliveredTokens, t.PredictedTokens))
			}
		}
	}
	f = check.Finding{What: "truth of the index", Found: fmt.Sprintf("ranks that have told what their engines had cached: %d; none had much less than the index said", told)}
	if len(lies) > 0 {
		f.Level, f.Found = check.Warn, firstOf(lies)
		f.Means = "these engines had less than half of what the index says they hold, so requests go to the wrong pods"
		f.Do = "ranks with events are read anew by themselves; else compare block size, hash seed and adapter names of what writes the index with the engine's"
	}
	return f, told > 0
}

// eventsOf says which engines the server reads no events of, of those that it should; ok is
// false where it reads none, or where its metrics are not to be had.
func eventsOf(ctx context.Context, at *client.Client) (f check.Finding, ok bool) {
	text, err := at.Metrics(ctx)
	if err != nil {
		return f, false
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return f, false
	}
	read, away := 0, []string(nil)
	for _, m := range families["kvatlas_ingest_connected"].GetMetric() {
		if read++; m.GetGauge().GetValue() == 0 {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			away = append(away, fmt.Sprintf("%s rank %s", terminal.Printable(labels["pod"]), terminal.Printable(labels["rank"])))
		}
	}
	f = check.Finding{What: "events of engines", Found: fmt.Sprintf("ranks that the server reads: %d; it is connected to all", read)}
	if len(away) > 0 {
		f.Level, f.Found = check.Warn, fmt.Sprintf("not connected to %d of %d: %s", len(away), read, firstOf(away))
		f.Means = "these engines are down, or publish elsewhere: what they held counts until they are back or their pods are retired"
		f.Do = "see whether the engines run; where one is gone for good, retire its pod (DELETE /v1/pods/{name}); the log has the endpoint and the error"
	}
	return f, read > 0
}

// firstOf sorts a list, and names the first of it.
func firstOf(list []string) string {
	const most = 5
	slices.Sort(list)
	text := strings.Join(list[:min(len(list), most)], ", ")
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text
}

// maxAsked bounds the models whose tokenizers a server is asked for: it loads them for that.
const maxAsked = 8

// podsOf says which pods there are, and of which of their models the server has no tokenizer.
// It says nothing where the token may not list pods.
func podsOf(ctx context.Context, server string, at *client.Client) (out []check.Finding) {
	pods, err := at.Pods(ctx)
	if e, ok := errors.AsType[*client.Error](err); ok && e.Status < http.StatusInternalServerError {
		return nil
	}
	if err != nil {
		return []check.Finding{{
			Level: check.Fail, What: "pods", Found: terminal.ServerAnswer(server, err),
			Means: "what it knew before still counts, and grows old: scores are degraded, and requests are routed by the loads known till then",
			Do:    "see whether Redis runs, and whether the server reaches it: kvatlas doctor --redis URL, and the server's log",
		}}
	}
	if len(pods) == 0 {
		return []check.Finding{{
			Level: check.Warn, What: "pods", Found: "none are registered", Means: "there is no pod to send a request to: scores are empty, and routes are refused",
			Do: "name engines with --pods when the server starts, or register them with POST /v1/pods; the log says why pods that were named are missing",
		}}
	}
	var models []string
	for i := range pods {
		if m := pods[i].Model; pods[i].PartOf == nil && !slices.Contains(models, m) {
			models = append(models, m)
		}
	}
	slices.Sort(models)
	out = append(out, check.Finding{What: "pods", Found: fmt.Sprintf("%d, of %d models", len(pods), len(models))})
	for _, m := range models[:min(len(models), maxAsked)] {
		f := check.Finding{What: "tokenizer of a pod", Where: terminal.Printable(m), Found: "the server has it"}
		if _, err := at.Tokenize(ctx, client.TokenizeRequest{Model: m, Prompt: "a"}); err != nil {
			f.Level, f.Found = check.Warn, terminal.ServerAnswer(server, err)
			f.Means = "texts and chats of this model are sent by load alone, wherever their prefix is cached; token ids and block keys can be scored"
			f.Do = "put its files into MODEL/ below the server's --tokenizers, or let the server reach the hub"
		}
		out = append(out, f)
	}
	return out
}
