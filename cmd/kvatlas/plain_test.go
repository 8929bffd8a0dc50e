package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// blockNames are the names of a prompt's blocks, as kvatlas inspect keys prints them.
func blockNames(t *testing.T, model string, size int, prompt []uint32) (names []string) {
	t.Helper()
	list := must.Get(json.Marshal(prompt))(t)
	status, stdout, stderr := call(t, "", "inspect", "keys", "--model", model, "--block-size", fmt.Sprint(size), "--tokens", strings.Trim(string(list), "[]"))
	if status != cli.ExitOK {
		t.Fatal(status, stderr)
	}
	for line := range strings.Lines(stdout) {
		name, err := strconv.Unquote(line[strings.IndexByte(line, '"') : strings.LastIndexByte(line, '"')+1])
		if err != nil {
			t.Fatal(line, err)
		}
		names = append(names, name)
	}
	return names
}

// Engines write block keys and their addresses, and register nothing. A request that names pods finds what
// they hold; one that names none finds nothing.
func TestPlainValuesOfUnregisteredPods(t *testing.T) {
	const one, two = "10.0.0.1:8000", "10.0.0.2:8000"
	standalone, cluster := redistest.Start(t), redistest.StartCluster(t, 3, false)
	for name, s := range map[string]struct {
		url   string
		plain redis.UniversalClient
	}{"standalone": {standalone.URL(), standalone.Client()}, "cluster": {cluster.URL(), cluster.Client()}} {
		t.Run(name, func(t *testing.T) {
			r := start(t, "--redis="+s.url)
			prompt := tokens(256)
			names := blockNames(t, "m", 64, prompt)
			if len(names) != 4 {
				t.Fatalf("%d blocks", len(names))
			}
			for i, key := range names {
				must.OK(t, s.plain.Append(t.Context(), key, ","+one).Err())
				if i < 2 {
					must.OK(t, s.plain.Append(t.Context(), key, ","+two).Err())
				}
			}
			ask := func(pods ...string) string {
				t.Helper()
				resp, err := r.client().Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: prompt, Pods: pods})
				if err != nil || resp.Degraded != nil {
					t.Fatal(resp, err)
				}
				return fmt.Sprint(resp.Best, resp.Scores)
			}
			for want, pods := range map[string][]string{
				one + "map[" + one + ":4 " + two + ":2]":   {one, two},
				two + "map[" + two + ":2]":                 {two},
				one + "map[" + one + ":4 10.0.0.3:8000:0]": {one, "10.0.0.3:8000"},
				"map[]":           nil,
				"map[10.0.0.1:0]": {"10.0.0.1"}, // a value with a port belongs to the pod with that port
			} {
				if got := ask(pods...); got != want {
					t.Errorf("%q: %s, want %s", pods, got, want)
				}
			}
			if status, body := get(t, r.url+"/v1/pods"); status != http.StatusOK || strings.Contains(body, "10.0.0.") {
				t.Errorf("registered are %s", body)
			}
			// One that is registered after all is found without being named.
			must.OK(t, r.client().RegisterPod(t.Context(), client.Pod{Name: two, Model: "m"}))
			if got, want := ask(), two+"map["+two+":2]"; got != want {
				t.Errorf("registered: %s, want %s", got, want)
			}
			if got, want := ask(one, two), one+"map["+one+":4 "+two+":2]"; got != want {
				t.Errorf("one registered, both named: %s, want %s", got, want)
			}
		})
	}
}

// Where the model allows it, requests need not name those pods either, on any server.
func TestPlainValuesOfAllowedModels(t *testing.T) {
	const one, two, model = "10.0.0.1:8000", "10.0.0.2:8000", "org/m"
	standalone, cluster := redistest.Start(t), redistest.StartCluster(t, 3, false)
	for name, s := range map[string]struct {
		url   string
		plain redis.UniversalClient
	}{"standalone": {standalone.URL(), standalone.Client()}, "cluster": {cluster.URL(), cluster.Client()}} {
		t.Run(name, func(t *testing.T) {
			r, other := start(t, "--redis="+s.url), start(t, "--redis="+s.url)
			prompt := tokens(256)
			for i, key := range blockNames(t, model, 64, prompt) {
				value := one
				if i < 2 {
					value += "," + two
				}
				must.OK(t, s.plain.Set(t.Context(), key, value, 0).Err())
			}
			ask := func(want string, pods ...string) {
				t.Helper()
				for _, r := range []*running{other, r, other} {
					for _, strategy := range []string{"longest_prefix", "coverage", "highest_block"} {
						resp, err := r.client().Score(t.Context(), client.ScoreRequest{Model: model, Tokens: prompt, Pods: pods, Strategy: strategy})
						if err != nil || resp.Degraded != nil {
							t.Fatal(resp, err)
						}
						if got := fmt.Sprint(resp.Scores); got != want {
							t.Errorf("%s: %s, want %s", strategy, got, want)
						}
					}
				}
			}
			const both = "map[" + one + ":4 " + two + ":2]"
			ask("map[]")
			for range 2 {
				if m, err := r.client().SetUnregistered(t.Context(), model, true); err != nil || *m != (client.Model{Name: model, BlockSize: 64, Scheme: "native", Unregistered: true}) {
					t.Fatal(m, err)
				}
				ask(both)
				ask("map["+two+":2]", two) // the candidates are the request's
				ask("map[10.0.0.3:8000:0]", "10.0.0.3:8000")
				if models, err := other.client().Models(t.Context()); err != nil || len(models) != 1 || !models[0].Unregistered {
					t.Error(models, err)
				}
				if m, err := other.client().SetUnregistered(t.Context(), model, false); err != nil || m.Unregistered {
					t.Fatal(m, err)
				}
				ask("map[]")
			}
			must.Get(r.client().SetUnregistered(t.Context(), model, true))(t)
			// Registered or not, both are found, and their names are theirs.
			must.OK(t, r.client().RegisterPod(t.Context(), client.Pod{Name: "decode-0", Address: "http://" + two, Model: model}))
			ask("map[" + one + ":4 decode-0:2]")
		})
	}
}
