package scorer_test

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// The histories are of dynamo-kv-router 1.6.1: events applied to its real
// radix tree and the overlap scores that it gave. A pod is "worker", its ranks
// the dp ranks.

type dynamoFile struct {
	Histories []dynamoHistory `json:"histories"`
}

type dynamoHistory struct {
	Name        string     `json:"name"`
	Ops         []dynamoOp `json:"ops"`
	Results     []string   `json:"results"`
	Checkpoints []struct {
		AfterOps int           `json:"after_ops"`
		Queries  []dynamoQuery `json:"queries"`
	} `json:"checkpoints"`
}

type dynamoQuery struct {
	LocalHashes []uint64       `json:"local_hashes"`
	Scores      []dynamoScore  `json:"scores"`
	Flat        *[]dynamoScore `json:"flat_model_scores"`
}

type dynamoScore struct {
	Worker int `json:"worker_id"`
	Rank   int `json:"dp_rank"`
	Blocks int `json:"blocks"`
}

type dynamoOp struct {
	Op     string `json:"op"`
	Worker int    `json:"worker_id"`
	Rank   int    `json:"dp_rank"`
	Event  struct {
		Worker int    `json:"worker_id"`
		Tier   string `json:"storage_tier"`
		Event  struct {
			Rank int             `json:"dp_rank"`
			Data json.RawMessage `json:"data"`
		} `json:"event"`
	} `json:"event"`
}

type dynamoData struct {
	Stored *struct {
		Parent *uint64 `json:"parent_hash"`
		Blocks []struct {
			Hash  uint64 `json:"block_hash"`
			Local uint64 `json:"tokens_hash"`
		} `json:"blocks"`
	} `json:"stored"`
	Removed *struct {
		Hashes []uint64 `json:"block_hashes"`
	} `json:"removed"`
}

func loadDynamo(t *testing.T) (f dynamoFile) {
	t.Helper()
	file := must.Get(os.Open("testdata/dynamo_index.json.gz"))(t)
	defer file.Close()
	z := must.Get(gzip.NewReader(file))(t)
	must.OK(t, json.NewDecoder(z).Decode(&f))
	return f
}

// chainKeys chains local hashes, as the public scheme does.
func chainKeys(locals []uint64) []blockkey.Key {
	keys := make([]blockkey.Key, len(locals))
	for i, l := range locals {
		if i == 0 {
			keys[i] = blockkey.Key(l)
			continue
		}
		keys[i] = extend(keys[i-1], l)
	}
	return keys
}

func extend(prev blockkey.Key, local uint64) blockkey.Key {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(prev))
	binary.LittleEndian.PutUint64(b[8:], local)
	return blockkey.Key(xxh3.HashSeed(b[:], 1337))
}

// dynamoReplay applies events to an index, keeping per (worker, rank, tier)
// what the engine's own hashes stand for.
type dynamoReplay struct {
	index *plainIndex
	known map[string]map[uint64]blockkey.Key
}

func (d *dynamoReplay) apply(t *testing.T, op dynamoOp) {
	t.Helper()
	tiers := map[string]store.Tier{"": store.GPU, "device": store.GPU, "host_pinned": store.CPU, "disk": store.Disk, "external": store.Shared}
	switch op.Op {
	case "remove_worker":
		d.end(op.Worker, -1)
		return
	case "remove_worker_dp_rank":
		d.end(op.Worker, op.Rank)
		return
	}
	tier, ok := tiers[op.Event.Tier]
	if !ok {
		t.Fatalf("unknown tier %q", op.Event.Tier)
	}
	worker, rank := op.Event.Worker, op.Event.Event.Rank
	pod := fmt.Sprint(worker)
	known := d.of(worker, rank, tier)
	var data dynamoData
	if string(op.Event.Event.Data) == `"cleared"` {
		for tr := range store.Tier(store.NumTiers) {
			d.index.end(pod, rank, tr)
			clear(d.of(worker, rank, tr))
		}
		return
	}
	must.OK(t, json.Unmarshal(op.Event.Event.Data, &data))
	if s := data.Stored; s != nil {
		var prev blockkey.Key
		if s.Parent != nil {
			p, ok := known[*s.Parent]
			if !ok {
				return // as the real tree: nothing to hang the blocks on
			}
			prev = p
		}
		for i, b := range s.Blocks {
			k := blockkey.Key(b.Local)
			if s.Parent != nil || i > 0 {
				k = extend(prev, b.Local)
			}
			if old, again := known[b.Hash]; again && old != k {
				// One hash of the engine names one block: it has moved.
				d.index.remove("m", pod, rank, tier, old)
			}
			known[b.Hash], prev = k, k
			d.index.add("m", pod, rank, tier, k)
		}
		return
	}
	for _, h := range data.Removed.Hashes {
		if k, ok := known[h]; ok {
			d.index.remove("m", pod, rank, tier, k)
			delete(known, h)
		}
	}
}

func (d *dynamoReplay) of(worker, rank int, tier store.Tier) map[uint64]blockkey.Key {
	id := fmt.Sprintf("%d/%d/%s", worker, rank, tier)
	if d.known[id] == nil {
		d.known[id] = map[uint64]blockkey.Key{}
	}
	return d.known[id]
}

func (d *dynamoReplay) end(worker, rank int) {
	for r := range 64 {
		if rank >= 0 && r != rank {
			continue
		}
		for tier := range store.Tier(store.NumTiers) {
			d.index.end(fmt.Sprint(worker), r, tier)
			delete(d.known, fmt.Sprintf("%d/%d/%s", worker, r, tier))
		}
	}
}

func TestDynamoHistories(t *testing.T) {
	f := loadDynamo(t)
	queries, flat := 0, 0
	for _, h := range f.Histories {
		t.Run(h.Name, func(t *testing.T) {
			d := &dynamoReplay{index: newPlainIndex(t), known: map[string]map[uint64]blockkey.Key{}}
			s := newScorer(t, scorer.Config{Index: d.index})
			done := 0
			for _, cp := range h.Checkpoints {
				for ; done < cp.AfterOps; done++ {
					d.apply(t, h.Ops[done])
				}
				for i, q := range cp.Queries {
					want := map[string]float64{}
					rows := q.Scores
					if q.Flat != nil {
						rows = *q.Flat
						flat++
					}
					queries++
					for _, r := range rows {
						if r.Blocks > 0 {
							want[fmt.Sprintf("%d/%d", r.Worker, r.Rank)] = float64(r.Blocks)
						}
					}
					resp := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chainKeys(q.LocalHashes))})
					got := map[string]float64{}
					for _, p := range resp.Pods {
						for _, r := range p.Ranks {
							got[fmt.Sprintf("%s/%d", p.Pod, r.Rank)] = float64(r.Blocks)
						}
					}
					if fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("after %d ops, query %d: got %v, want %v", cp.AfterOps, i, got, want)
					}
				}
			}
		})
	}
	if len(f.Histories) != 44 || queries < 100 || flat == 0 {
		t.Fatalf("ran %d histories, %d queries, %d by the flat model", len(f.Histories), queries, flat)
	}
}
