package replica

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/cputime"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/changelog"
)

// countFold counts blocks, as cheaply as a folder can.
type countFold struct{ blocks, credits int }

func (c *countFold) Begin(*store.Registry) {}

func (c *countFold) Run(n int, holders []store.HolderID) bool {
	c.blocks += n
	c.credits += n * len(holders)
	return true
}

// fill writes n blocks that are all held by pods.
func fill(b *testing.B, x store.Index, pods int, keys []blockkey.Key) {
	b.Helper()
	for part := range slices.Chunk(keys, 2048) {
		var batches []store.Batch
		for p := range pods {
			batches = append(batches, store.Batch{Pod: fmt.Sprint("pod", p), Model: model, Ops: []store.Op{{Kind: store.Add, Keys: part}}})
		}
		must.OK(b, x.Apply(b.Context(), batches...))
	}
}

// BenchmarkLookup is a lookup of a chain that 10 pods hold, or none, in an index
// of 200,000 blocks. It is made from the replica, and from Redis (MGET) beside
// it.
func BenchmarkLookup(b *testing.B) {
	s := redistest.Start(b)
	p := newPrefix()
	x := openRedis(b, s.URL(), p)
	all := keysOf(1, 200_000)
	fill(b, x, 10, all)
	r := openReplica(b, s.URL(), p)
	catchUp(b, r)
	st := r.Status()
	b.Logf("%d blocks take %.1f bytes each", st.Blocks, float64(st.Bytes)/float64(st.Blocks))
	missing := keysOf(2, 8192)
	for _, n := range []int{128, 1024, 8192} {
		for _, of := range []struct {
			name string
			keys []blockkey.Key
		}{{"hit", all[5000 : 5000+n]}, {"miss", missing[:n]}} {
			for _, from := range []struct {
				name string
				x    store.Index
			}{{"replica", r}, {"redis", x}} {
				b.Run(fmt.Sprintf("%s/keys=%d/from=%s", of.name, n, from.name), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						f := &countFold{}
						q := store.Query{Model: blockkey.ModelOf(model), Keys: of.keys, Fold: f}
						if err := from.x.Lookup(b.Context(), &q); err != nil || f.blocks != n || of.name == "hit" != (f.credits == 10*n) {
							b.Fatalf("%+v, %v", f, err)
						}
					}
				})
			}
		}
	}
	if st := r.Status(); st.Lookups[Redis] != 0 {
		b.Fatalf("some lookups were not from memory: %+v", st)
	}
}

// scriptTime is how long servers have worked on scripts.
func scriptTime(b *testing.B, servers []*redistest.Server) (us float64) {
	b.Helper()
	for _, s := range servers {
		_, rest, _ := strings.Cut(s.Client().Info(b.Context(), "commandstats").Val(), "cmdstat_evalsha:calls=")
		_, rest, _ = strings.Cut(rest, "usec=")
		text, _, _ := strings.Cut(rest, ",")
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			us += n
		}
	}
	return us
}

// BenchmarkApply is what the log costs a writer. Events are of 16 blocks, with the log
// off and on, on a single server and a cluster. Figure server-us is the servers' time
// alone.
func BenchmarkApply(b *testing.B) {
	single, cluster := redistest.Start(b), redistest.StartCluster(b, 3, false)
	for _, on := range []struct {
		name, url string
		servers   []*redistest.Server
	}{{"single", single.URL(), []*redistest.Server{single}}, {"cluster", cluster.URL(), cluster.Masters}} {
		for _, entries := range []int{0, changelog.DefaultEntries} {
			b.Run(fmt.Sprintf("%s/log=%v", on.name, entries > 0), func(b *testing.B) {
				x := openRedis(b, on.url, newPrefix())
				must.OK(b, x.SetLog(b.Context(), entries))
				all := keysOf(1, 1<<17)
				b.ReportAllocs()
				at := 0
				before := scriptTime(b, on.servers)
				for b.Loop() {
					// Each second pass takes away what the one before has added.
					kind := store.Add
					if at/len(all)%2 == 1 {
						kind = store.Remove
					}
					op := store.Op{Kind: kind, Keys: all[at%len(all):][:16]}
					must.OK(b, x.Apply(b.Context(), store.Batch{Pod: "a", Model: model, Ops: []store.Op{op}}))
					at += 16
				}
				b.ReportMetric((scriptTime(b, on.servers)-before)/float64(b.N), "server-us/op")
			})
		}
	}
}

// seen is a sink that notes when the first block of an event arrives.
type seen struct {
	table *table
	at    sync.Map // blockkey.StoreKey -> *atomic.Int64
	began time.Time
}

func (s *seen) Anew(p uint64)  { s.table.Anew(p) }
func (s *seen) Whole(p uint64) { s.table.Whole(p) }

func (s *seen) Set(keys []blockkey.StoreKey, holders []store.HolderID) error {
	err := s.table.Set(keys, holders)
	for _, k := range keys {
		if v, ok := s.at.Load(k); ok {
			v.(*atomic.Int64).CompareAndSwap(0, int64(time.Since(s.began)))
		}
	}
	return err
}

// BenchmarkLag writes events of 16 blocks at a steady rate, by 4 writers. It reports
// how long after a write was sent its block was in the replica's table. For
// comparison it reports how long the write itself took. The rate that was reached is
// reported, too: a busy machine may not keep up. Use it with -benchtime 5s.
func BenchmarkLag(b *testing.B) {
	single, cluster := redistest.Start(b), redistest.StartCluster(b, 3, false)
	for _, on := range []struct{ name, url string }{{"single", single.URL()}, {"cluster", cluster.URL()}} {
		for _, rate := range []int{100, 1000, 3000} {
			b.Run(fmt.Sprintf("%s/events=%d", on.name, rate), func(b *testing.B) { lag(b, on.url, rate) })
		}
	}
}

func lag(b *testing.B, url string, rate int) {
	p := newPrefix()
	x, y := openRedis(b, url, p), openRedis(b, url, p)
	s := &seen{table: newTable(1 << 30), began: time.Now()}
	f := must.Get(y.Follow(changelog.Config{Sink: s, Entries: changelog.DefaultEntries}))(b)
	write(b, x, "a", store.Add, 1)
	must.OK(b, f.CatchUp(b.Context()))
	type event struct {
		sent, done int64
		seen       *atomic.Int64
	}
	var mu sync.Mutex // protects events
	var events []event
	const writers = 4
	every := time.Second * writers / time.Duration(rate)
	var n atomic.Int64
	mask := blockkey.ModelOf(model)
	b.ResetTimer()
	begin := time.Now()
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			next := time.Now().Add(every * time.Duration(w) / writers)
			for n.Add(1) <= int64(b.N) {
				time.Sleep(time.Until(next)) // events come at a rate
				next = next.Add(every)
				keys := keysOf(uint64(time.Now().UnixNano())^uint64(w)<<60, 16)
				e := event{seen: new(atomic.Int64)}
				s.at.Store(keys[0].In(mask), e.seen)
				e.sent = int64(time.Since(s.began))
				if err := x.Apply(b.Context(), store.Batch{Pod: "a", Model: model, Ops: []store.Op{{Kind: store.Add, Keys: keys}}}); err != nil {
					b.Error(err)
					return
				}
				e.done = int64(time.Since(s.began))
				mu.Lock()
				events = append(events, e)
				mu.Unlock()
			}
		})
	}
	writing.Wait()
	took := time.Since(begin)
	must.OK(b, f.CatchUp(b.Context()))
	b.StopTimer()
	var lags, writes []int64
	for _, e := range events {
		if e.seen.Load() == 0 {
			b.Fatal("an event was never seen")
		}
		lags, writes = append(lags, e.seen.Load()-e.sent), append(writes, e.done-e.sent)
	}
	slices.Sort(lags)
	slices.Sort(writes)
	at := func(list []int64, part float64) float64 { return float64(list[int(part*float64(len(list)-1))]) / 1e6 }
	b.ReportMetric(at(lags, 0.5), "lag-p50-ms")
	b.ReportMetric(at(lags, 0.99), "lag-p99-ms")
	b.ReportMetric(at(writes, 0.5), "write-p50-ms")
	b.ReportMetric(at(writes, 0.99), "write-p99-ms")
	b.ReportMetric(float64(len(events))/took.Seconds(), "events/s")
	if st := f.State(); st.Gaps != 0 {
		b.Fatalf("%+v", st)
	}
}

// BenchmarkReady is from nothing to a replica that answers from memory, of an index of
// 1,048,576 blocks that two pods hold. It reports the CPU time of this process and of the
// server for each block beside the time on the clock.
func BenchmarkReady(b *testing.B) {
	s := redistest.Start(b)
	p := newPrefix()
	all := keysOf(1, 1<<20)
	fill(b, openRedis(b, s.URL(), p), 2, all)
	b.ResetTimer()
	own, server := cputime.Process(), s.CPUTime()
	for b.Loop() {
		r := openReplica(b, s.URL(), p)
		catchUp(b, r)
		if st := r.Status(); st.Blocks != int64(len(all)) {
			b.Fatalf("%+v", st)
		}
		r.Close()
	}
	n := float64(b.N * len(all))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/block")
	b.ReportMetric(float64((cputime.Process()-own).Nanoseconds())/n, "own-ns/block")
	b.ReportMetric(float64((s.CPUTime()-server).Nanoseconds())/n, "server-ns/block")
}
