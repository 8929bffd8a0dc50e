// Program kv-cache-aware-scorer is the place of kvatlas in an inference scheduler that
// filters, scores and picks. It is one scorer among others, and asks a server by REST.
//
//	make run    # a server with a model and what its pods hold
//	go run ./examples/kv-cache-aware-scorer --model meta-llama/Meta-Llama-3-8B-Instruct --prompt "..."
//
// It takes the pods of the model from the server and schedules the prompt with every queue
// empty, then with the best one's full.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kvatlas/kvatlas/client"
)

func main() {
	server := flag.String("server", "http://127.0.0.1:8080", "kvatlas server")
	model := flag.String("model", "", "model of the prompt")
	prompt := flag.String("prompt", "", "the prompt")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *server, &Request{*model, *prompt}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, server string, r *Request) error {
	c, err := client.New(client.Config{URL: server})
	if err != nil {
		return err
	}
	defer c.Close()
	pods, err := c.Pods(ctx)
	if err != nil {
		return err
	}
	var endpoints []Endpoint
	for _, p := range pods {
		endpoints = append(endpoints, Endpoint{Name: p.Name, Model: p.Model})
	}
	s := &Scheduler{
		Filters: []Filter{ServesModel},
		Scorers: []Weighted{{&KVCacheScorer{Client: c, Budget: 100 * time.Millisecond}, 2}, {QueueScorer{}, 1}},
		Failed:  func(err error) { fmt.Fprintln(w, "scheduling without the KV cache:", err) },
	}
	best, err := s.Schedule(ctx, r, endpoints)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "queues are empty:", best.Name)
	for i := range endpoints {
		if endpoints[i].Name == best.Name {
			endpoints[i].Waiting = 8
		}
	}
	// What it holds is worth twice the queue here: it is left only if it holds less than half.
	if best, err = s.Schedule(ctx, r, endpoints); err != nil {
		return err
	}
	fmt.Fprintln(w, "its queue is long:", best.Name)
	return nil
}
