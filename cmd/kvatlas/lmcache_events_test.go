package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// lmcacheEvent is an event as LMCache 0.5.6 has made it, recorded.
type lmcacheEvent struct {
	Hashes    []int64  `json:"block_hashes"`
	Parent    *int64   `json:"parent_block_hash"`
	Tokens    []uint32 `json:"token_ids"`
	BlockSize int      `json:"block_size"`
	Medium    string   `json:"medium"`
}

func lmcacheEvents(t *testing.T) (out []lmcacheEvent) {
	t.Helper()
	text := must.Get(os.ReadFile("testdata/lmcache-kv-events.json"))(t)
	if err := json.Unmarshal(text, &out); err != nil || len(out) != 4 {
		t.Fatalf("%d events, %v", len(out), err)
	}
	return out
}

// vllmTopic publishes what vLLM 0.14 to 0.16 does, whose events are arrays.
type vllmTopic struct {
	pub    *zmq.Publisher
	events string
	replay string
	seq    uint64
}

func newVLLMTopic(t *testing.T) *vllmTopic {
	t.Helper()
	e := newTestEngine(t)
	return &vllmTopic{pub: e.pub, events: e.events, replay: e.replay}
}

// publish sends one message of events, each encoded.
func (v *vllmTopic) publish(events ...[]byte) {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, 1.5)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, e := range events {
		b = append(b, e...)
	}
	b = msgp.AppendInt(b, 0)
	v.pub.Publish(zmq.Message{Topic: "kv-events", Seq: v.seq, Payload: b})
	v.seq++
}

func appendHashes(b []byte, hashes []int64) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for _, h := range hashes {
		b = msgp.AppendInt64(b, h)
	}
	return b
}

// stored is a BlockStored; medium is appended as it is.
func stored(hashes []int64, parent *int64, tokens []uint32, size int, medium []byte) []byte {
	b := msgp.AppendArrayHeader(nil, 8)
	b = msgp.AppendString(b, "BlockStored")
	b = appendHashes(b, hashes)
	if parent == nil {
		b = msgp.AppendNil(b)
	} else {
		b = msgp.AppendInt64(b, *parent)
	}
	b = msgp.AppendArrayHeader(b, uint32(len(tokens)))
	for _, id := range tokens {
		b = msgp.AppendUint32(b, id)
	}
	b = msgp.AppendInt(b, size)
	b = msgp.AppendNil(b)
	b = append(b, medium...)
	return msgp.AppendNil(b)
}

func removedFrom(hashes []int64, medium string) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendString(b, "BlockRemoved")
	b = appendHashes(b, hashes)
	return msgp.AppendString(b, medium)
}

func text(s string) []byte { return msgp.AppendString(nil, s) }

func (e *lmcacheEvent) bytes(medium []byte) []byte {
	return stored(e.Hashes, e.Parent, e.Tokens, e.BlockSize, medium)
}

// tiersOf asks for a score until what is matched of the pod, by best tier in tokens, is
// that.
func (s *served) tiersOf(t *testing.T, what string, prompt []uint32, pod string, want map[string]int) {
	t.Helper()
	var got map[string]int
	awaitThat(t, what, stringer(func() string { return fmt.Sprint("the last were ", got, "\n", s.log) }), func() bool {
		resp := must.Get(s.c.Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: prompt}))(t)
		got = map[string]int{}
		for tier, blocks := range resp.Matched[pod].Tiers {
			got[tier] = blocks * resp.Blocks.Size
		}
		return maps.Equal(got, want)
	})
}

type stringer func() string

func (f stringer) String() string { return f() }

// TestLMCacheThroughVLLM has LMCache's recorded events between vLLM's own on one topic,
// and looks at what a score says: in memory and in Redis.
func TestLMCacheThroughVLLM(t *testing.T) {
	for _, where := range []string{"memory", "redis"} {
		t.Run(where, func(t *testing.T) {
			var args []string
			if where == "redis" {
				args = append(args, "--redis="+redistest.Start(t).URL())
			}
			v := newVLLMTopic(t)
			const pod = "10.0.0.1:8000"
			r := start(t, append(args, "--pods="+pod+"?model=m&events="+v.events+"&replay="+v.replay, "--score-budget=5s", "--ingest-unremoved-blocks=6")...)
			s := &served{url: r.url, log: r.stderr, c: r.client()}
			chunks := lmcacheEvents(t)
			prompt := tokensFrom(0, 1024)
			if want := chunks[0].Tokens[:256]; !slices.Equal(prompt[:256], want) {
				t.Fatalf("the tokens of tests begin with %d, those of the record with %d", prompt[:3], want[:3])
			}

			// vLLM computes 640 tokens in blocks of 16, and LMCache stores its chunks,
			// in turns.
			gpu := make([]int64, 40)
			for i := range gpu {
				gpu[i] = int64(i+1) * -0x1234567 // as negative as LMCache's
			}
			v.publish(stored(gpu[:20], nil, prompt[:320], 16, text("GPU")), chunks[0].bytes(text("cpu")))
			v.publish(chunks[1].bytes(text("cpu")), stored(gpu[20:], &gpu[19], prompt[320:640], 16, text("GPU")))
			s.tiersOf(t, "GPU before cpu", prompt, pod, map[string]int{"gpu": 640})
			v.publish(chunks[2].bytes(text("cpu")), chunks[3].bytes(text("cpu")))
			s.tiersOf(t, "cpu behind the GPU", prompt, pod, map[string]int{"gpu": 640, "cpu": 384})

			// The GPU evicts from the end; the cpu's credit stays.
			v.publish(removedFrom(gpu[20:], "GPU"))
			s.tiersOf(t, "half of the GPU", prompt, pod, map[string]int{"gpu": 320, "cpu": 704})
			v.publish(removedFrom(gpu[:20], "GPU"))
			s.tiersOf(t, "nothing in the GPU", prompt, pod, map[string]int{"cpu": 1024})

			// A medium that is no text, as torch's device object would be, and one that
			// is unknown, cost their own event alone.
			other := make([]uint32, 512)
			for i := range other {
				other[i] = uint32(9000 + i)
			}
			ext := msgp.AppendMapHeader(nil, 1)
			ext = append(append(ext, text("type")...), text("cpu")...)
			v.publish(stored([]int64{-7}, nil, other[:256], 256, ext), stored([]int64{-8}, nil, other[:256], 256, text("device(type='cuda')")),
				stored([]int64{-9}, nil, other[:257], 256, text("cpu")))
			s.tiersOf(t, "behind a medium that is no text", other, pod, map[string]int{"cpu": 256})
			v.publish(stored([]int64{-10}, ptr(-9), other[256:], 256, text("cpu")))
			s.tiersOf(t, "six chunks", other, pod, map[string]int{"cpu": 512})
			s.tiersOf(t, "six chunks", prompt, pod, map[string]int{"cpu": 1024})

			// A seventh takes the first for removed, unless that was stored again.
			v.publish(chunks[0].bytes(text("cpu")))
			s.tiersOf(t, "stored again", prompt, pod, map[string]int{"cpu": 1024})
			v.publish(stored([]int64{-11}, nil, other[128:384], 256, text("cpu")))
			s.tiersOf(t, "the second is the oldest", prompt, pod, map[string]int{"cpu": 256})

			// MP mode announces removals, in capitals, and is believed from then on: the oldest stay.
			v.publish(removedFrom([]int64{-11}, "CPU"))
			s.tiersOf(t, "removed", other[128:], pod, map[string]int{})
			for i := range 8 {
				from := uint32(20_000 + 256*i)
				v.publish(stored([]int64{int64(100 + i)}, nil, tokensFrom(from, 256), 256, text("CPU")))
			}
			for i := range 8 {
				s.tiersOf(t, "no age any more", tokensFrom(uint32(20_000+256*i), 256), pod, map[string]int{"cpu": 256})
			}
			s.tiersOf(t, "nor for those before", other, pod, map[string]int{"cpu": 512})
		})
	}
}

func ptr(v int64) *int64 { return &v }

func tokensFrom(first uint32, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = first + uint32(i)
	}
	return out
}
