package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
	"github.com/kvatlas/kvatlas/bench/internal/traffic"
	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/sim/encode"
)

const (
	// engineBlock is the block size of the engines, vLLM's default.
	engineBlock = 16
	// pods is how many engines there are, each of which holds all prompts.
	pods = 10
	// vocabulary bounds the tokens: numbers of five and six digits, as those of models in use.
	vocabulary = 150_000
	// settleTimeout is how long a server may take for engines' events.
	settleTimeout = 40 * time.Second
)

// engine publishes KV-cache events as vLLM 0.24 does.
type engine struct {
	pub      *zmq.Publisher
	endpoint string
	next     uint64
}

// newEngines makes n engines. With an error it returns those that it has made.
func newEngines(ctx context.Context, n int) (out []*engine, err error) {
	for range n {
		address, err := proc.FreeAddress(ctx)
		if err != nil {
			return out, err
		}
		e := &engine{endpoint: "tcp://" + address}
		e.pub, err = zmq.NewPublisher(zmq.PublisherConfig{Endpoint: e.endpoint, Queue: 1 << 17, Keep: 1})
		if err != nil {
			return out, err
		}
		out = append(out, e)
	}
	return out, nil
}

func closeEngines(engines []*engine) (err error) {
	for _, e := range engines {
		err = errors.Join(err, e.pub.Close())
	}
	return err
}

func endpoints(engines []*engine) (out []string) {
	for _, e := range engines {
		out = append(out, e.endpoint)
	}
	return out
}

// heard waits until so many servers hear each of the engines.
func heard(engines []*engine, servers int) error {
	end := time.Now().Add(settleTimeout)
	for _, e := range engines {
		for e.pub.Subscribers() < servers {
			if time.Now().After(end) {
				return fmt.Errorf("%d of %d servers hear the engine at %s", e.pub.Subscribers(), servers, e.endpoint)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// stored are the messages by which the blocks of a prompt are stored, so many blocks in each.
func stored(dst [][]byte, tokens []uint32, blocks int) [][]byte {
	var hashes []event.Hash
	for _, k := range blockKeys(tokens, engineBlock) {
		hashes = append(hashes, event.Hash(k))
	}
	for at := 0; at < len(hashes); at += blocks {
		to := min(at+blocks, len(hashes))
		e := event.Event{Kind: event.Stored, Hashes: hashes[at:to], Tokens: tokens[at*engineBlock : to*engineBlock], BlockSize: engineBlock, Medium: "GPU"}
		if at > 0 {
			e.Parent, e.HasParent = hashes[at-1], true
		}
		b := event.Batch{Time: float64(time.Now().UnixMicro()) / 1e6, Events: []event.Event{e}}
		dst = append(dst, encode.Append(nil, &b, encode.VLLM24))
	}
	return dst
}

// publish sends messages.
func (e *engine) publish(payloads [][]byte) {
	for _, p := range payloads {
		e.pub.Publish(zmq.Message{Topic: "kv-events", Seq: e.next, Payload: p})
		e.next++
	}
}

// newPrompt draws tokens.
func newPrompt(random *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = random.Uint32N(vocabulary)
	}
	return tokens
}

func blockKeys(tokens []uint32, size int) []blockkey.Key {
	return blockkey.AppendNative(nil, tokens, size, blockkey.NativeSeed("", ""))
}

// localHashes are what Dynamo takes in /query_by_hash: hashes of each block by itself.
func localHashes(tokens []uint32, size int) (out []int64) {
	for at := 0; at+size <= len(tokens); at += size {
		out = append(out, int64(blockKeys(tokens[at:at+size], size)[0])) //nolint:gosec // its bits, as Dynamo has them
	}
	return out
}

// held is how many pods an answer names that hold so many tokens or more.
func held(answer []byte, tokens int) (n int, err error) {
	var a struct {
		// Of kvatlas.
		Matched map[string]struct {
			Tokens int `json:"tokens"`
		} `json:"matched"`
		// Of Dynamo's indexer, by worker and rank.
		Scores map[string]json.RawMessage `json:"scores"`
		// Of Dynamo's selection service.
		BlockSize int `json:"block_size"`
		Workers   []struct {
			Blocks int `json:"device_blocks"`
		} `json:"workers"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return 0, fmt.Errorf("%.100s: %w", answer, err)
	}
	count := func(got int) {
		if got >= tokens {
			n++
		}
	}
	for _, m := range a.Matched {
		count(m.Tokens)
	}
	for _, w := range a.Workers {
		count(w.Blocks * a.BlockSize)
	}
	if a.Matched != nil {
		return n, nil // its scores are numbers
	}
	for _, ranks := range a.Scores {
		var r map[string]int
		if err := json.Unmarshal(ranks, &r); err != nil {
			return 0, fmt.Errorf("%.100s: %w", answer, err)
		}
		count(r["0"])
	}
	return n, nil
}

// askHeld asks a side how many pods hold a prompt.
func (s *side) askHeld(ctx context.Context, model string, tokens []uint32) (int, error) {
	path, body := "/v1/score", `{"model":"`+model+`","tokens":[`
	switch s.name {
	case dynamoIndexer:
		path, body = "/query", `{"model_name":"`+model+`","token_ids":[`
	case dynamoSelection:
		path, body = "/overlap_scores", `{"model_name":"`+model+`","token_ids":[`
	}
	answer, err := s.post(ctx, path, body+string(traffic.List(tokens))+"]}")
	if err != nil {
		return 0, err
	}
	return held(answer, len(tokens))
}

var errLate = errors.New("a server does not hold what the engines have told")

// settled waits until a side's answer says that as many pods as wanted hold a prompt.
func (s *side) settled(ctx context.Context, model string, tokens []uint32, want int) error {
	for end := time.Now().Add(settleTimeout); ; time.Sleep(5 * time.Millisecond) {
		n, err := s.askHeld(ctx, model, tokens)
		if err == nil && n >= want {
			return nil
		}
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("%s, %d tokens: %d pods of %d: %w", s.name, len(tokens), n, want, errLate), err)
		}
	}
}
