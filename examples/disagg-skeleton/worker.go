package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/sim/engine"
)

// speed is how many times faster than a real engine the workers run.
const speed = 200

// worker is a simulated engine behind HTTP, which prefills or decodes and tells the router what
// it holds and what runs there:
//
//	POST /prefill  {"id", "tokens"} -> {"cached"}, and keeps the KV of the prompt under the id
//	GET  /kv/{id}  the KV, once: here the tokens stand for it
//	POST /decode   {"id", "tokens", "max_tokens", "from"} -> {"cached", "output"}; from is where
//	               the KV is, empty to compute it here
type worker struct {
	name   string
	router *router
	start  time.Time
	wake   chan struct{}
	stop   context.CancelFunc
	done   chan struct{}
	server *http.Server
	url    string

	mu     sync.Mutex // protects all below
	engine *engine.Engine
	next   uint64
	open   map[uint64]chan engine.Output
	kv     map[string][]uint32
}

func startWorker(ctx context.Context, r *router, name, role, zone string) (*worker, error) {
	config := engine.Config{Kind: engine.VLLM, BlockSize: blockSize, Blocks: 4096}
	if role == "decode" {
		config.Timing.Prefill = -1 // the KV of its prompts comes from elsewhere, or see compute
	}
	e, err := engine.New(config)
	if err != nil {
		return nil, err
	}
	w := &worker{
		name: name, router: r, start: time.Now(), wake: make(chan struct{}, 1), done: make(chan struct{}),
		engine: e, open: map[uint64]chan engine.Output{}, kv: map[string][]uint32{},
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w.url = "http://" + l.Addr().String()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /prefill", serve(w.prefill))
	mux.HandleFunc("POST /decode", serve(w.decode))
	mux.HandleFunc("GET /kv/{id}", w.giveKV)
	w.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ctx, w.stop = context.WithCancel(ctx)
	go func() { _ = w.server.Serve(l) }()
	go w.run(ctx)
	if err := r.register(ctx, name, role, w.url, zone); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// close ends the worker as a crash would: without a message.
func (w *worker) close() {
	w.stop()
	_ = w.server.Close()
	<-w.done
}

// order is the body of POST /prefill and of POST /decode.
type order struct {
	ID        string   `json:"id"`
	Tokens    []uint32 `json:"tokens"`
	MaxTokens int      `json:"max_tokens,omitempty"`
	From      string   `json:"from,omitempty"`
}

// result is the answer.
type result struct {
	Cached int      `json:"cached"`
	Output []uint32 `json:"output,omitempty"`
}

// serve makes a handler of a function.
func serve(do func(ctx context.Context, o *order) (*result, error)) http.HandlerFunc {
	return func(rw http.ResponseWriter, req *http.Request) {
		var o order
		if err := json.NewDecoder(http.MaxBytesReader(rw, req.Body, 16<<20)).Decode(&o); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		res, err := do(req.Context(), &o)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(rw).Encode(res)
	}
}

// prefill computes a prompt, and keeps its KV for the decode worker.
func (w *worker) prefill(ctx context.Context, o *order) (*result, error) {
	res, err := w.generate(ctx, o.Tokens, 1)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.kv[o.ID] = o.Tokens
	w.mu.Unlock()
	return &result{Cached: res.Cached}, nil
}

// giveKV hands out the KV of a prompt, and forgets it.
func (w *worker) giveKV(rw http.ResponseWriter, req *http.Request) {
	w.mu.Lock()
	tokens, ok := w.kv[req.PathValue("id")]
	delete(w.kv, req.PathValue("id"))
	w.mu.Unlock()
	if !ok {
		http.NotFound(rw, req)
		return
	}
	_ = json.NewEncoder(rw).Encode(tokens)
}

// decode fetches the KV of a prompt, or computes it, and generates.
func (w *worker) decode(ctx context.Context, o *order) (*result, error) {
	if o.From != "" {
		var kv []uint32
		if err := call(ctx, http.MethodGet, o.From+"/kv/"+o.ID, nil, &kv); err != nil {
			return nil, err
		}
		if !slices.Equal(kv, o.Tokens) {
			return nil, fmt.Errorf("the KV of %s is of another prompt", o.ID)
		}
	} else if err := w.compute(ctx, o.Tokens); err != nil {
		return nil, err
	}
	return w.generate(ctx, o.Tokens, o.MaxTokens)
}

// compute takes the time that a prompt takes which no other has computed: this engine has
// prompts for nothing.
func (w *worker) compute(ctx context.Context, tokens []uint32) error {
	w.mu.Lock()
	cached := w.engine.Reusable(engine.Request{Tokens: tokens}).Tokens()
	w.mu.Unlock()
	ms := float64(loads.DefaultShape.Units(len(tokens)-cached, cached)) / loads.DefaultSpeed
	select {
	case <-time.After(time.Duration(ms * float64(time.Millisecond) / speed)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// generate has the engine answer with n tokens.
func (w *worker) generate(ctx context.Context, tokens []uint32, n int) (*result, error) {
	outputs := make(chan engine.Output, n)
	w.mu.Lock()
	id := w.next
	w.next++
	w.open[id] = outputs
	output := make([]uint32, n)
	for i := range output {
		output[i] = uint32(1_000_000 + i)
	}
	err := w.engine.Submit(w.now(), engine.Request{ID: id, Tokens: tokens, Output: output})
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
	res := &result{}
	for {
		select {
		case o := <-outputs:
			if o.First {
				res.Cached = o.Hit.Tokens()
			}
			if res.Output = append(res.Output, o.Token); o.Last {
				return res, nil
			}
		case <-w.done:
			return nil, errors.New(w.name + " is gone")
		case <-ctx.Done():
			w.mu.Lock()
			w.engine.Cancel(id)
			delete(w.open, id)
			w.mu.Unlock()
			return nil, ctx.Err()
		}
	}
}

// now is the engine's time.
func (w *worker) now() time.Duration { return time.Since(w.start) * speed }

// run runs the engine until ctx ends.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for seq := uint64(0); ; {
		var report engine.Report
		w.mu.Lock()
		w.engine.Advance(w.now(), &report)
		at, due := w.engine.Due()
		stats := w.engine.Stats()
		w.mu.Unlock()

		// What it holds and what runs is told before the answers that tell that it has ended.
		var events []event.Event
		for _, b := range report.Batches {
			events = append(events, b.Events...)
		}
		if len(events) > 0 {
			w.tell(w.router.tellEvents(ctx, w.name, seq, events))
			seq++
		}
		w.tell(w.router.tellLoad(ctx, w.name, stats.Running, stats.Waiting, stats.WaitingTokens))
		w.deliver(report.Outputs)

		wait := time.Hour
		if due {
			wait = max(0, (at-w.now())/speed)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// tell says why the router could not be told.
func (w *worker) tell(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", w.name, err)
	}
}

func (w *worker) deliver(outputs []engine.Output) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range outputs {
		if open := w.open[o.ID]; open != nil {
			open <- o // has room for all
		}
		if o.Last {
			delete(w.open, o.ID)
		}
	}
}
