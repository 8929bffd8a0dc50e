package main

import (
	"context"
	"errors"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

const (
	model     = "demo"
	blockSize = 16
)

// router is kvatlas in one process: what workers hold, what they say of their load, and which takes a
// request. With store/redis and route/loads/redis in the place of what is in memory, any number of processors
// choose by the same.
type router struct {
	*route.Router
	index  *memory.Index
	ingest *ingest.Ingester
}

func newRouter() (*router, error) {
	index, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	r := &router{index: index}
	r.ingest, err = ingest.New(ingest.Config{Index: index, BlockSize: blockSize})
	if err != nil {
		return nil, errors.Join(err, index.Close())
	}
	sc, err := scorer.New(scorer.Config{Index: index, BlockSize: blockSize})
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	r.Router, err = route.New(route.Config{Scorer: sc, Pods: index, Loads: loads.NewMemory(nil), Seed: 1})
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *router) close() error { return errors.Join(r.ingest.Close(), r.index.Close()) }

// tellEvents takes what a worker says of its cache.
func (r *router) tellEvents(ctx context.Context, worker string, seq uint64, events []event.Event) error {
	_, err := r.ingest.Push(ctx, ingest.Pushed{Pod: worker, Model: model, Engine: "vllm", Seq: &seq, Ranks: []ingest.RankEvents{{Events: events}}})
	return err
}

// tellLoad takes what a worker says of its load.
func (r *router) tellLoad(ctx context.Context, worker string, running, waiting, waitingTokens int) error {
	return r.PutEngine(ctx, model, worker, []loads.Engine{{Running: int64(running), Waiting: int64(waiting), WaitingTokens: int64(waitingTokens), KVUsage: -1}})
}

// register makes a worker known, in a zone: a pair is of one zone.
func (r *router) register(ctx context.Context, name, role, address, zone string) error {
	_, err := r.index.Register(ctx, store.Pod{
		Name: name, Model: model, Role: role, Address: address, Engine: "vllm", BlockSize: blockSize, Labels: map[string]string{"zone": zone},
	})
	return err
}
