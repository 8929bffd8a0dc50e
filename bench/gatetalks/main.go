// Command gatetalks has recorded conversations with simulated engines through kvatlas gateway,
// by one policy after the other: the table of the README.
//
//	go build -o bin/kvatlas ./cmd/kvatlas
//	go run ./bench/gatetalks --kvatlas bin/kvatlas
//
// Each policy has engines and a gateway of its own, and the same conversations in the same
// order. Times are those of the engines' clock.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
	"github.com/kvatlas/kvatlas/bench/internal/program"
	"github.com/kvatlas/kvatlas/sim/talks"
)

func main() {
	program.Main("gatetalks", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) })
}

// options are what the command line says.
type options struct {
	kvatlas                          string
	pods, blocks, chats, talks, port int
	speed                            float64
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o := options{}
	fs := flag.NewFlagSet("gatetalks", flag.ContinueOnError)
	fs.StringVar(&o.kvatlas, "kvatlas", "bin/kvatlas", "the program")
	policies := fs.String("policies", "eta,round_robin,least_requests", "a list with commas")
	fs.IntVar(&o.pods, "pods", 8, "how many engines")
	fs.IntVar(&o.blocks, "blocks", 12_000, "blocks of 16 tokens that each has room for")
	fs.IntVar(&o.chats, "chats", 24, "conversations at a time")
	fs.IntVar(&o.talks, "talks", 100, "conversations in all")
	fs.Float64Var(&o.speed, "speed", 10, "how many times faster than real engines they are")
	fs.IntVar(&o.port, "port", 22000, "first of the ports that are taken")
	if err := fs.Parse(args); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "policy\tturns\tcached tokens of the prompts\tmean TTFT s\tp50\tp99\t")
	for policy := range strings.SplitSeq(*policies, ",") {
		t, err := o.try(ctx, policy)
		if err != nil {
			return fmt.Errorf("%s: %w", policy, err)
		}
		slices.Sort(t.firsts)
		sum := time.Duration(0)
		for _, d := range t.firsts {
			sum += d
		}
		n := len(t.firsts)
		s := func(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()*o.speed) }
		fmt.Fprintf(w, "%s\t%d\t%.1f %%\t%s\t%s\t%s\t\n", policy, n, 100*float64(t.cached)/float64(t.prompt), s(sum/time.Duration(n)), s(t.firsts[n/2]), s(t.firsts[n*99/100]))
	}
	return w.Flush()
}

// trial is a run of the conversations by one policy.
type trial struct {
	gateway string

	mu             sync.Mutex // protects all below
	firsts         []time.Duration
	prompt, cached int
}

// try has all conversations by a policy.
func (o *options) try(ctx context.Context, policy string) (_ *trial, err error) {
	at := func(n int) string { return "127.0.0.1:" + strconv.Itoa(o.port+n) }
	control, api := "http://"+at(300), "http://"+at(302)
	engines, err := proc.Start(ctx, at(300), proc.Answers(control+"/pods"), o.kvatlas, "sim", "--model", "m", "--pods", strconv.Itoa(o.pods), "--blocks", strconv.Itoa(o.blocks), "--speed", fmt.Sprint(o.speed), "--port", strconv.Itoa(o.port),
		"--events-port", strconv.Itoa(o.port+100), "--replay-port", strconv.Itoa(o.port+200), "--control", at(300))
	if err != nil {
		return nil, err
	}
	defer engines.Stop()
	var pods []string
	for n := range o.pods {
		pods = append(pods, at(n))
	}
	gateway, err := proc.Start(ctx, at(301), o.hasEvents(api+"/v1/pods"), o.kvatlas, "gateway", "--pods", strings.Join(pods, ","), "--gateway-listen", at(301), "--listen", at(302), "--log-level", "error", "--hub-offline", "--block-size", "16", "--drain-delay", "0s")
	if err != nil {
		return nil, err
	}
	defer gateway.Stop()
	if err := put(ctx, api+"/v1/models/m/routing", `{"policy":`+strconv.Quote(policy)+`}`); err != nil {
		return nil, err
	}
	t := &trial{gateway: gateway.URL}
	list := make(chan talks.Conversation)
	var chats sync.WaitGroup
	errs := make([]error, o.chats)
	for i := range o.chats {
		chats.Go(func() {
			for talk := range list {
				if errs[i] == nil {
					errs[i] = t.have(ctx, talk, o)
				}
			}
		})
	}
	all := talks.Recorded()
	for i := range o.talks {
		list <- all[i%len(all)]
	}
	close(list)
	chats.Wait()
	return t, errors.Join(errs...)
}

// have has a conversation, as far as the engines have room for it.
func (t *trial) have(ctx context.Context, talk talks.Conversation, o *options) error {
	for i := range talk {
		turn := &talk[i]
		if turn.Tokens()+turn.Output > o.blocks*16*2/3 {
			return nil
		}
		if i > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(float64(turn.Think) / o.speed)):
			}
		}
		if err := t.ask(ctx, turn); err != nil {
			return err
		}
	}
	return nil
}

// ask sends a turn and notes when its first token came and what was cached.
func (t *trial) ask(ctx context.Context, turn *talks.Turn) error {
	body, err := json.Marshal(map[string]any{"model": "m", "prompt": turn.Prompt(1), "max_tokens": turn.Output, "stream": true, "stream_options": map[string]bool{"include_usage": true}})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.gateway+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	start := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var first time.Duration
	var last struct {
		Usage *struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	s := bufio.NewScanner(resp.Body)
	for s.Scan() {
		if first == 0 {
			first = time.Since(start)
		}
		if data, ok := bytes.CutPrefix(s.Bytes(), []byte("data: {")); ok && bytes.Contains(data, []byte(`"usage":{`)) {
			if err := json.Unmarshal(append([]byte("{"), data...), &last); err != nil {
				return err
			}
		}
	}
	if resp.StatusCode != http.StatusOK || last.Usage == nil {
		return errors.Join(fmt.Errorf("status %d without usage", resp.StatusCode), s.Err())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.firsts = append(t.firsts, first)
	t.prompt, t.cached = t.prompt+last.Usage.Prompt, t.cached+last.Usage.Details.Cached
	return nil
}

// hasEvents has no error when the gateway has found where the events of all engines are.
func (o *options) hasEvents(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if n := bytes.Count(b, []byte(`"events":`)); err == nil && n != o.pods {
			err = fmt.Errorf("the gateway reads the events of %d engines", n)
		}
		return err
	}
}

func put(ctx context.Context, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("PUT %s: status %d, %w", url, resp.StatusCode, err)
	}
	return nil
}
