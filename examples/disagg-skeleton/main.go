// Program disagg-skeleton is disaggregated serving in small. A processor asks a router with a cost function
// of its own for two workers: one prefills a request and one decodes it. It sends the request to simulated
// workers, which report to the router what they hold and what runs there.
//
//	go run ./examples/disagg-skeleton
//
//	request -> processor -> router (policy.go) : one choice, both halves booked
//	               |-> prefill worker  -> KV ->  decode worker -> answer
//	                        '---- events, load ----'--> router
//
// All of it runs in one process and without cgo. The router is package route; with a server the
// same choice is POST /v1/route with "role":"pair".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// fleet is a router with its workers, by name.
type fleet struct {
	router  *router
	workers map[string]*worker
	processor
}

// startFleet has a worker of each kind in two zones, and the policy of this program.
func startFleet(ctx context.Context) (*fleet, error) {
	r, err := newRouter()
	if err != nil {
		return nil, err
	}
	f := &fleet{router: r, workers: map[string]*worker{}, processor: processor{r}}
	for _, w := range [][3]string{{"p-1", "prefill", "1"}, {"p-2", "prefill", "2"}, {"d-1", "decode", "1"}, {"d-2", "decode", "2"}} {
		started, err := startWorker(ctx, r, w[0], w[1], w[2])
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.workers[w[0]] = started
	}
	settings := `{"policy":"` + policyName + `","pair":{"require_same":["zone"],"local_tokens":128}}`
	if _, err := r.PutSettings(ctx, model, []byte(settings)); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *fleet) close() error {
	for _, w := range f.workers {
		w.close()
	}
	return f.router.close()
}

func run(ctx context.Context, out io.Writer) error {
	f, err := startFleet(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = f.close() }()

	document := numbers(1, 2048)
	ask := func(title string, r *request) (*answer, error) {
		a, err := f.serve(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", title, err)
		}
		who := a.prefill + " -> " + a.decode
		switch {
		case a.failed != nil:
			who = a.decode + " alone: " + a.prefill + " is gone"
		case a.prefill == "":
			who = fmt.Sprintf("%s alone: %s", a.decode, a.alone)
		}
		fmt.Fprintf(out, "%-28s %4d tokens, %4d cached, as predicted: %-5v %s\n", title, len(r.tokens), a.cached, a.cached == a.predicted, who)
		return a, nil
	}
	first, err := ask("a question on a document", &request{id: "1", tokens: append(document[:2048:2048], numbers(10_000, 100)...), maxTokens: 50, prefill: "p-1"})
	if err != nil {
		return err
	}
	if _, err := ask("another one on it", &request{id: "2", tokens: append(document[:2048:2048], numbers(20_000, 300)...), maxTokens: 50}); err != nil {
		return err
	}
	chat := append(append(document[:2048:2048], numbers(10_000, 100)...), first.output...)
	if _, err := ask("the first one goes on", &request{id: "3", tokens: append(chat, numbers(30_000, 40)...), maxTokens: 50, decode: first.decode}); err != nil {
		return err
	}
	if _, err := ask("by the workers' names", &request{id: "4", tokens: numbers(40_000, 1000), maxTokens: 5, prefill: "p-2", decode: "d-2"}); err != nil {
		return err
	}
	if err := burst(ctx, f, out); err != nil {
		return err
	}
	f.workers["p-2"].close()
	_, err = ask("when a worker has died", &request{id: "5", tokens: numbers(50_000, 1000), maxTokens: 5, prefill: "p-2"})
	return err
}

// burst serves many requests at once.
func burst(ctx context.Context, f *fleet, out io.Writer) error {
	const n = 24
	answers, errs := make([]*answer, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			answers[i], errs[i] = f.serve(ctx, &request{id: fmt.Sprint("burst ", i), tokens: numbers(uint32(1_000_000*(i+1)), 1500), maxTokens: 20})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	count := map[string]int{}
	for _, a := range answers {
		count[a.prefill]++
		count[a.decode]++
	}
	fmt.Fprintf(out, "%d at once: all answered, prefilled by %d workers, decoded by %d\n", n, min(1, count["p-1"])+min(1, count["p-2"]), min(1, count["d-1"])+min(1, count["d-2"]))
	return nil
}

// numbers are n tokens from first on.
func numbers(first uint32, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = first + uint32(i)
	}
	return out
}
