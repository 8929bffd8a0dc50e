package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// TestCaseTies asks three kinds of servers, two of each, for prompts of which three
// pods hold the same blocks.
func TestCaseTies(t *testing.T) {
	redis := redistest.Start(t)
	kinds := map[string][]string{
		"memory":  {},
		"redis":   {"--redis=" + redis.URL()},
		"replica": {"--redis=" + redis.URL(), "--replica"},
	}
	const prompts = 60
	pods := []string{"a", "b", "c"}
	shared := tokens(3 * 16)
	// Prompts that go on differently, by whole blocks and by less than one.
	prompt := func(i int) []uint32 {
		more := slices.Repeat([]uint32{uint32(i)}, 1+(i%2)*20)
		return append(slices.Clone(shared), more...)
	}
	best := map[string][]string{}
	for _, kind := range []string{"memory", "redis", "replica"} {
		for _, n := range []int{1, 2} {
			name := fmt.Sprint(kind, n)
			c := start(t, append(kinds[kind], "--block-size=16")...).client()
			eventually.NoError(t, name+" is ready", func() error { return c.Ready(t.Context()) })
			for _, pod := range pods {
				must.Get(c.Blocks(t.Context(), client.BlocksRequest{Op: client.OpAdd, Model: "m", Pod: pod, Tokens: shared}))(t)
			}
			for i := range prompts {
				ask := client.ScoreRequest{Model: "m", Tokens: prompt(i)}
				eventually.NoError(t, "all pods are known to "+name, func() error {
					got, err := c.Score(t.Context(), ask)
					if err == nil && fmt.Sprint(got.Scores) != "map[a:3 b:3 c:3]" {
						err = fmt.Errorf("scores %v", got.Scores)
					}
					if err == nil {
						best[name] = append(best[name], got.Best)
					}
					return err
				})
			}
			if !slices.Equal(best[name], best["memory1"]) {
				t.Errorf("%s has other pods than memory1:\n%v\n%v", name, best[name], best["memory1"])
			}
		}
	}
	all := strings.Join(best["memory1"], "")
	for _, pod := range pods {
		// 20 are expected; fewer than 9 or more than 31 have odds of 1 in 1,000.
		if n := strings.Count(all, pod); n < 9 || n > 31 {
			t.Errorf("%s is the best of %d of %d prompts: %s", pod, n, prompts, all)
		}
	}
}
