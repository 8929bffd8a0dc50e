package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/sim/trial"
)

// kvatlas up has conversations with engines where its server routes them. It shows that what was
// predicted of them is reused, and how the candidates ranked.
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

// What is left at its default makes way for what listens there already; what is named does not.
func TestUpLeavesTakenPorts(t *testing.T) {
	t.Parallel()
	taken := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = taken.Close() })
	port := taken.Addr().(*net.TCPAddr).Port
	if port+portTries*portStep > 65000 {
		t.Skipf("the system gave port %d, above which there is no room", port)
	}
	for _, given := range []bool{true, false} {
		c := &upCall{sim: &simCall{pods: 1, host: "127.0.0.1", port: port, eventsPort: port, replaysPort: port, control: taken.Addr().String()}, listen: taken.Addr().String(), given: func(string) bool { return given }}
		moved := c.leaveTakenPorts(t.Context())
		if given != (len(moved) == 0) || given != (c.sim.port == port) || given != (c.sim.eventsPort == port) || given != (c.sim.replaysPort == port) ||
			given != (c.listen == taken.Addr().String()) || given != (c.sim.control == taken.Addr().String()) {
			t.Errorf("given %v: %+v, listen %s; %q", given, c.sim, c.listen, moved)
		}
		if !given && (len(moved) != 5 || (c.sim.port-port)%portStep != 0 || c.listen != "127.0.0.1:0") {
			t.Errorf("%+v, listen %s; %q", c.sim, c.listen, moved)
		}
	}
}

// kvatlas up --compare prints the same figures each time, and others by another seed.
func TestCompare(t *testing.T) {
	compare := func(more ...string) string {
		status, out, errs := call(t, "", append([]string{"up", "--compare=random", "--pods=4", "--chats=4", "--blocks=1000"}, more...)...)
		if status != cli.ExitOK {
			t.Fatalf("%v: %d %s", more, status, errs)
		}
		return out
	}
	one := compare()
	if again := compare(); again != one {
		t.Errorf("the same call prints\n%s\nand\n%s", one, again)
	}
	if other := compare("--seed=2"); other == one {
		t.Errorf("another seed prints the same: %s", one)
	}
}

// The table of docs/sim.md, of which the README has figures, is what its command prints. The test compares
// each column that is printed, which with the race detector is one, as each takes it a quarter of a
// minute.
func TestCompareDocumented(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../../docs/sim.md"))(t)
	said := regexp.MustCompile("(?s)`kvatlas up --compare (\\S+)`.*?```\n(.*?)```").FindSubmatch(page)
	if said == nil {
		t.Fatal("docs/sim.md has no table of policies with its command")
	}
	policies := string(said[1])
	if raceDetector {
		policies, _, _ = strings.Cut(policies, ",")
	}
	status, out, errs := call(t, "", "up", "--compare="+policies)
	if status != cli.ExitOK {
		t.Fatalf("%d %s", status, errs)
	}
	first, _, _ := strings.Cut(out, "\n")
	if !strings.HasPrefix(string(said[2]), first+"\n") {
		t.Errorf("the page does not begin with %q", first)
	}
	want, got := columns(string(said[2])), columns(out)
	for name, cells := range got {
		if n := len(want[name]); n < len(cells) || !slices.Equal(want[name][:len(cells)], cells) {
			t.Errorf("%s: the page says %q, the command %q", name, want[name], cells)
		}
	}
	readme := must.Get(os.ReadFile("../../README.md"))(t)
	for _, name := range []string{"of the prompts", "TTFT mean"} {
		if len(got[name]) == 0 || !strings.Contains(string(readme), "**"+got[name][0]+"**") {
			t.Errorf("the README does not say %s: %q", name, got[name])
		}
	}
}

// columns are the cells of a table that kvatlas up --compare prints, by row.
func columns(text string) map[string][]string {
	rows := map[string][]string{}
	for line := range strings.Lines(text) {
		if cells := regexp.MustCompile(`\s{2,}`).Split(strings.TrimSpace(line), -1); len(cells) > 1 {
			rows[cells[0]] = cells[1:]
		}
	}
	return rows
}

// With one conversation at a time nothing comes between a prediction and the engine: what is
// predicted in a trial is cached, token by token.
func TestTrialPredicts(t *testing.T) {
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		p := &program{&cli.Program{}}
		c := must.Get(p.readUpCall([]string{"--compare=eta", "--chats=1", "--pods=2", "--blocks=1000", "--engine=" + engine}))(t)
		config := must.Get(c.trialOf("eta"))(t)
		r := must.Get(trial.Run(t.Context(), config))(t)
		if r.Predicted != r.Cached || r.Cached == 0 || r.Turns < 50 {
			t.Errorf("%s: %d tokens of %d turns were predicted, %d were cached", engine, r.Predicted, r.Turns, r.Cached)
		}
	}
}
