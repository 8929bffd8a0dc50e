package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/sim/trial"
)

// kvatlas up has conversations with engines where its server routes them, and shows that what
// was predicted of them is reused, and how the candidates ranked.
func TestUp(t *testing.T) {
	for _, x := range []struct {
		args   []string
		policy string
		blind  bool
	}{
		{nil, "eta", false},
		{[]string{"--policy=round_robin", "--engine=sglang"}, "round_robin", true},
		{[]string{"--policy=dynamo", "--engine=trtllm", "--seed=7"}, "dynamo", false},
		{[]string{"--choose=prefix"}, "eta", false}, // how policies were called before there were more than two
		{[]string{"--choose=turns"}, "round_robin", true},
	} {
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		var out, errs output
		p := &program{&cli.Program{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Name: "kvatlas"}}
		done := make(chan struct{})
		r := &running{t: t, stdout: &out, stderr: &errs, done: done}
		go func() {
			defer close(done)
			r.status = p.run(ctx, append([]string{
				"up", "--pods=2", "--chats=3", "--speed=1000", "--interval=20ms", "--listen=127.0.0.1:0", "--control=127.0.0.1:0",
				fmt.Sprintf("--port=%d", redistest.FreePort(t)), fmt.Sprintf("--events-port=%d", redistest.FreePort(t)), fmt.Sprintf("--replay-port=%d", redistest.FreePort(t)),
			}, x.args...))
		}()
		predicted := `[1-9][0-9.]* %`
		if x.blind {
			predicted = "-"
		}
		said := regexp.MustCompile(`since the start: \d{2,} turns, ` + predicted + ` of their tokens predicted, [1-9][0-9.]* % reused, first token after \d+`)
		rank := regexp.MustCompile(`(?m)^` + x.policy + `: \d+ tokens to 127.0.0.1:\d+; 1. 127.0.0.1:\d+ costs [^;]*: \d+ held, \d+ run there; 2. `)
		r.await(func() map[string]any {
			if said.MatchString(out.String()) && rank.MatchString(out.String()) {
				return map[string]any{}
			}
			return nil
		})
		stop()
		<-done
		if r.status != cli.ExitOK {
			t.Errorf("%v: it ended with %d: %s", x.args, r.status, errs.String())
		}
		if text := out.String(); strings.Contains(text, "failed:") && !strings.Contains(text, "context canceled") {
			t.Errorf("%v: %s", x.args, text)
		}
	}
	for _, args := range []string{
		"--choose=luck", "--choose=turns --policy=eta", "--policy=luck", "--compare=eta,luck", "--compare=eta --policy=eta", "--compare=eta --for=1s", "--chats=0", "--interval=1ms",
		"--engine=tgi", "--blocks=300", "--compare=" + strings.Repeat("eta,", 17), "now",
	} {
		if status, _, errs := call(t, "", append([]string{"up"}, strings.Fields(args)...)...); status != cli.ExitUsage {
			t.Errorf("kvatlas up %s: %d %s", args, status, errs)
		}
	}
}

// kvatlas up --compare prints the same figures each time, and others by another seed.
func TestCompare(t *testing.T) {
	compare := func(more ...string) string {
		status, out, errs := call(t, "", append([]string{"up", "--compare=eta,round_robin,random", "--pods=4", "--chats=4", "--blocks=1000"}, more...)...)
		if status != cli.ExitOK {
			t.Fatalf("%v: %d %s", more, status, errs)
		}
		return out
	}
	one := compare("--compare=random")
	if again := compare("--compare=random"); again != one {
		t.Errorf("the same call prints\n%s\nand\n%s", one, again)
	}
	if other := compare("--compare=random", "--seed=2"); other == one {
		t.Errorf("another seed prints the same: %s", one)
	}
	out := compare()
	var cached, ttft [3]float64
	for _, line := range strings.Split(out, "\n") {
		for name, figures := range map[string]*[3]float64{"cached tokens": &cached, "TTFT mean": &ttft} {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
				if _, err := fmt.Sscan(strings.ReplaceAll(rest, "ms", ""), &figures[0], &figures[1], &figures[2]); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
			}
		}
	}
	if cached[1] == 0 || cached[0] < 1.5*cached[1] || ttft[0] == 0 || ttft[1] == 0 {
		t.Errorf("%v tokens are cached, first tokens after %v ms:\n%s", cached, ttft, out)
	}
}

// With one conversation at a time nothing comes between a prediction and the engine: what is
// predicted in a trial is cached, token by token.
func TestTrialPredicts(t *testing.T) {
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		p := &program{&cli.Program{}}
		c, err := p.readUpCall([]string{"--compare=eta", "--chats=1", "--pods=2", "--blocks=1000", "--engine=" + engine})
		if err != nil {
			t.Fatal(err)
		}
		config, err := c.trialOf("eta")
		if err != nil {
			t.Fatal(err)
		}
		r, err := trial.Run(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		if r.Predicted != r.Cached || r.Cached == 0 || r.Turns < 50 {
			t.Errorf("%s: %d tokens of %d turns were predicted, %d were cached", engine, r.Predicted, r.Turns, r.Cached)
		}
	}
}
