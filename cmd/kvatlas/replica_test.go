package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// TestReplica serves from a replica beside a server that asks Redis: from before
// Redis is there until after it has gone.
func TestReplica(t *testing.T) {
	redis := redistest.Prepare(t)
	flags := []string{"--redis=" + redis.URL(), "--block-size=16"}
	r := start(t, append(flags, "--replica", "--replica-max-lag=100ms", "--replica-max-stale=1h")...)
	c, ctx := r.client(), t.Context()
	if status, body := get(t, r.url+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "has not caught up") {
		t.Errorf("without Redis, /readyz is %d %s", status, body)
	}
	redis.Run()
	eventually.NoError(t, "ready", func() error { return c.Ready(ctx) })
	if h, err := c.Health(ctx); err != nil || h.Backend != "replica" {
		t.Errorf("got %+v, %v", h, err)
	}
	writer := start(t, flags...).client()
	must.OK(t, writer.RegisterPod(ctx, client.Pod{Name: "p", Model: "m"}))
	must.Get(writer.Blocks(ctx, client.BlocksRequest{Op: client.OpAdd, Model: "m", Pod: "p", Tokens: tokens(64)}))(t)
	ask := client.ScoreRequest{Model: "m", Tokens: tokens(70)}
	eventually.NoError(t, "the replica sees it", func() error {
		got, err := c.Score(ctx, ask)
		if err == nil && (got.Scores["p"] != 4 || got.Degraded != nil) {
			err = fmt.Errorf("got %+v", got)
		}
		return err
	})
	eventually.NoError(t, "the figures", func() error { // in use it is while it does not lag
		_, body := get(t, r.url+"/metrics")
		for _, want := range []string{"kvatlas_replica_in_use 1", "kvatlas_replica_blocks 4", `kvatlas_replica_lookups_total{from="stale"} 0`, "kvatlas_replica_lag_seconds 0", "kvatlas_index_blocks 4"} {
			if !strings.Contains(body, want) {
				return fmt.Errorf("the metrics have no %s", want)
			}
		}
		return nil
	})
	redis.Kill()
	eventually.NoError(t, "the answer is called stale", func() error {
		got, err := c.Score(ctx, ask)
		if err == nil && (got.Scores["p"] != 4 || got.Degraded == nil || got.Degraded.Reason != "index_stale" || got.Degraded.StaleMS < 100) {
			err = fmt.Errorf("got %+v, %+v", got, got.Degraded)
		}
		return err
	})
	if err := c.Ready(ctx); err != nil {
		t.Errorf("not ready: %v", err)
	}
	eventually.NoError(t, "the log tells of it", func() error {
		if log := r.stderr.String(); !strings.Contains(log, "answered from the replica in memory") || !strings.Contains(log, `"to":"stale"`) {
			return fmt.Errorf("it says\n%s", log)
		}
		return nil
	})
	if status := r.end(); status != cli.ExitOK {
		t.Errorf("ends with %d\n%s", status, r.stderr)
	}
}

func TestChangelog(t *testing.T) {
	redis := redistest.Start(t)
	for _, step := range []struct {
		args, want string
	}{{"", "off\n"}, {"--on --entries 100", "on\nkva{reg}:log ends at "}, {"", "on\nkva{reg}:log ends at "}, {"--off", "off\n"}, {"", "off\n"}} {
		status, out, errs := call(t, "", append([]string{"changelog", "--redis", redis.URL()}, strings.Fields(step.args)...)...)
		if status != cli.ExitOK || !strings.HasPrefix(out, step.want) {
			t.Errorf("%q: status %d, %q %q", step.args, status, out, errs)
		}
	}
	for args, want := range map[string]string{
		"":                                   "--redis is required",
		"--redis redis://a --on --off":       "both given",
		"--redis redis://a --on --entries 1": "--entries is 1",
		"--redis redis://a what":             "flags only",
		"--redis redis://127.0.0.1:1 --timeout 1s": "",
	} {
		status, _, errs := call(t, "", append([]string{"changelog"}, strings.Fields(args)...)...)
		if status == cli.ExitOK || !strings.Contains(errs, want) {
			t.Errorf("%q: status %d, %q", args, status, errs)
		}
	}
	if status, out, _ := call(t, "", "changelog", "--help"); status != cli.ExitOK || !strings.Contains(out, "-entries") {
		t.Errorf("help: %d %s", status, out)
	}
}
