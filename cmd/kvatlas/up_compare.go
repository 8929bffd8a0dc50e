package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvatlas/kvatlas/route"
	simengine "github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/trial"
	"github.com/kvatlas/kvatlas/sim/wire"
)

// trialOf is a trial of the conversations by a policy.
func (c *upCall) trialOf(policy string) (trial.Config, error) {
	settings := route.DefaultSettings()
	settings.Policy = policy
	t := trial.Config{Settings: &settings, Seed: c.seed}
	for _, config := range c.sim.podConfigs() {
		pod, err := wire.NewPod(config) // which knows the defaults, and never lives
		if err != nil {
			return t, err
		}
		t.Pods = append(t.Pods, trial.Pod{Name: pod.Address(), Engine: pod.Config().Engine})
	}
	pod, err := simengine.New(t.Pods[0].Engine)
	if err != nil {
		return t, err
	}
	t.Work = trial.Work{Talks: trial.Recorded(pod.Capacity()), Together: c.chats}
	t.Work.Shuffle(c.seed)
	return t, nil
}

// compared is what came of a policy.
type compared struct {
	policy string
	trial.Result
}

// comparePolicies has the conversations once by each policy and prints what came of it, side by side.
func (p *program) comparePolicies(ctx context.Context, c *upCall) error {
	var (
		results []compared
		config  trial.Config
		err     error
	)
	for _, policy := range c.compare {
		if config, err = c.trialOf(policy); err != nil {
			return err
		}
		r, err := trial.Run(ctx, config)
		if err != nil {
			return fmt.Errorf("%s: %w", policy, err)
		}
		results = append(results, compared{policy, r})
	}
	one := results[0]
	pod, err := simengine.New(config.Pods[0].Engine)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.Stdout, "%d recorded conversations, %d turns with %d prompt tokens, %d at a time, %d simulated %v with room for %d tokens each, seed %d\n\n",
		len(config.Work.Talks), one.Turns, one.Prompt, c.chats, len(config.Pods), c.sim.config.Engine.Kind, pod.Capacity(), c.seed)
	w := tabwriter.NewWriter(p.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name string, cell func(t *compared) string) {
		fmt.Fprintf(w, "%s\t", name)
		for i := range results {
			fmt.Fprintf(w, "%s\t", cell(&results[i]))
		}
		fmt.Fprintln(w)
	}
	row("", func(t *compared) string { return t.policy })
	row("cached tokens", func(t *compared) string { return strconv.Itoa(t.Cached) })
	row("of the prompts", func(t *compared) string { return share(t.Cached, t.Prompt) })
	row("predicted", func(t *compared) string {
		if e, err := route.ParsePolicy(t.policy); err == nil && e.Blind {
			return "-" // it looks nothing up
		}
		return share(t.Predicted, t.Prompt)
	})
	row("TTFT mean", func(t *compared) string { return milliseconds(t.MeanFirst()) })
	row("TTFT p50", func(t *compared) string { return milliseconds(t.FirstAt(0.5)) })
	row("TTFT p90", func(t *compared) string { return milliseconds(t.FirstAt(0.9)) })
	row("turns a pod", func(t *compared) string {
		return fmt.Sprintf("%d to %d", slices.Min(t.PodTurns), slices.Max(t.PodTurns))
	})
	row("all of it", func(t *compared) string { return fmt.Sprintf("%.1f s", t.Length.Seconds()) })
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintln(p.Stdout, "\n"+strings.TrimSpace(compareNote))
	return err
}

const compareNote = `Times are virtual. TTFT is the time to the first token, from when a turn comes.`

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.0f ms", d.Seconds()*1000) }
