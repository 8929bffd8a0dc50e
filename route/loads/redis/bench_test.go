package redis_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/loads/redis"
	"github.com/kvatlas/kvatlas/store"
)

// serverCPU is how many seconds of a processor the server has used.
func serverCPU(b *testing.B, client *goredis.Client) (seconds float64) {
	b.Helper()
	for line := range strings.Lines(client.Info(b.Context(), "cpu").Val()) {
		for _, name := range []string{"used_cpu_sys:", "used_cpu_user:"} {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
				f := must.Get(strconv.ParseFloat(v, 64))(b)
				seconds += f
			}
		}
	}
	return seconds
}

// BenchmarkServerCPU measures what a request costs the server, in microseconds of its
// processor. It has ping and mget of the prompt's blocks for comparison, and the whole
// request of book, done and end. Half of each prompt's marks are those of requests that run.
// The CPU time is taken every slice calls. The median of the slices and the least are
// reported, since others on the machine make a slice dearer and never cheaper.
func BenchmarkServerCPU(b *testing.B) {
	const slice = 200
	server := redistest.Start(b)
	client := goredis.NewClient(&goredis.Options{Network: "unix", Addr: server.Socket})
	b.Cleanup(func() { _ = client.Close() })
	s := must.Get(redis.New(redis.Config{Client: client, Prefix: "kva", Timeout: 10 * time.Second}))(b)
	run := func(name string, one func(i int)) {
		b.Run(name, func(b *testing.B) {
			var took []float64
			before, i := serverCPU(b, client), 0
			for b.Loop() {
				one(i)
				if i++; i%slice == 0 {
					now := serverCPU(b, client)
					took = append(took, (now-before)*1e6/slice)
					before = now
				}
			}
			if len(took) == 0 {
				took = []float64{(serverCPU(b, client) - before) * 1e6 / float64(i)}
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2], "server-us/op")
			b.ReportMetric(took[0], "least-us/op")
		})
	}
	run("ping", func(int) { client.Ping(b.Context()) })
	for _, tokens := range []int{2048, 16384, 131072} {
		blocks := tokens / 64
		names := make([]string, blocks)
		for i := range names {
			names[i] = fmt.Sprintf("block:%08d", i)
			client.Set(b.Context(), names[i], "17", 0)
		}
		run(fmt.Sprint("mget/", tokens), func(int) { client.MGet(b.Context(), names...) })
		call := func(i int) *loads.Call {
			c := &loads.Call{Model: "m", ID: "bench", Lease: time.Minute, Tokens: tokens, BlockSize: 64, Weights: loads.Weights{Wait: 1, Requests: 1}}
			for k := range blocks {
				key := blockkey.Key(k + 1)
				if k > blocks/2 {
					key = blockkey.Key(i)<<32 | blockkey.Key(k)
				}
				c.Keys = append(c.Keys, key)
			}
			for p := range 8 {
				c.Candidates = append(c.Candidates, loads.Candidate{RankRef: store.RankRef{Pod: fmt.Sprint("10.0.0.", p, ":8000")}, Uncached: tokens / 2, Work: int64(tokens), Factor: 1, Speed: 16, Twin: 0.2})
			}
			return c
		}
		for p := range 8 { // what runs on each pod
			c := call(-1 - p)
			c.ID, c.Candidates = fmt.Sprint("runs", p, tokens), c.Candidates[p:p+1]
			must.Get(s.Book(b.Context(), c))(b)
		}
		run(fmt.Sprint("request/", tokens), func(i int) {
			must.Get(s.Book(b.Context(), call(i)))(b)
			must.Get(s.Done(b.Context(), "m", "bench", loads.Done{Cached: -1, Shape: loads.DefaultShape}))(b)
			must.Get(s.End(b.Context(), "m", "bench"))(b)
		})
	}
}
