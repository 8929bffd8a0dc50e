package server_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/cputime"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/telemetry"
)

// benchPods hold all of every prompt, as in the table of docs/performance.md.
const benchPods = 10

// benchBodies are the bodies of one prompt of n tokens in each form.
func benchBodies(tb testing.TB, index store.Index, n int) map[string]string {
	tb.Helper()
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	tokens := make([]uint32, n)
	raw := make([]byte, 0, 4*n)
	for i := range tokens {
		tokens[i] = rng.Uint32N(128_000)
		raw = binary.LittleEndian.AppendUint32(raw, tokens[i])
	}
	keys := blockkey.AppendNative(nil, tokens, store.DefaultBlockSize, blockkey.NativeSeed("", ""))
	var batches []store.Batch
	for p := range benchPods {
		batches = append(batches, store.Batch{Pod: fmt.Sprintf("10.0.0.%d:8000", p), Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: keys}}})
	}
	must.OK(tb, index.Apply(tb.Context(), batches...))
	list := must.Get(json.Marshal(tokens))(tb)
	hexKeys := make([]string, len(keys))
	for i, k := range keys {
		hexKeys[i] = k.String()
	}
	hexList := must.Get(json.Marshal(hexKeys))(tb)
	return map[string]string{
		"tokens":     `{"model":"m","tokens":` + string(list) + `}`,
		"tokens_b64": `{"model":"m","tokens_b64":"` + base64.StdEncoding.EncodeToString(raw) + `"}`,
		"block_keys": `{"model":"m","block_keys":` + string(hexList) + `}`,
		"binary":     "{\"model\":\"m\"}\n" + string(raw),
	}
}

// benchServer is a server with all metrics and no log, as under load.
func benchServer(b *testing.B, index store.Index) *server.Server {
	b.Helper()
	metrics := telemetry.NewMetrics()
	sc := must.Get(scorer.New(scorer.Config{Index: index, Observer: metrics.Scorer(), Budget: time.Second}))(b)
	s := must.Get(server.New(server.Config{Scorer: sc, Index: index, Metrics: metrics}))(b)
	return s
}

func eachBody(b *testing.B, run func(b *testing.B, s *server.Server, body string)) {
	index := openIndex(b)
	s := benchServer(b, index)
	for _, n := range []int{2 << 10, 16 << 10, 128 << 10} {
		bodies := benchBodies(b, index, n)
		for _, form := range []string{"tokens", "tokens_b64", "block_keys", "binary"} {
			b.Run(fmt.Sprintf("%s/%dk", form, n>>10), func(b *testing.B) { run(b, s, bodies[form]) })
		}
	}
}

// BenchmarkScoreHandler is a whole score without the connection: what the
// server's own code costs. Figure cpu-us/op is processor time, which a machine
// that others use disturbs less.
func BenchmarkScoreHandler(b *testing.B) {
	eachBody(b, func(b *testing.B, s *server.Server, body string) {
		h := s.Handler()
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		w := &nowhere{header: http.Header{}}
		text := strings.NewReader(body)
		r := httptest.NewRequest(http.MethodPost, "/v1/score", text)
		r.Header.Set("Content-Type", contentType(body))
		before := cputime.Process()
		for b.Loop() {
			text.Reset(body)
			clear(w.header)
			w.status = 0
			h.ServeHTTP(w, r)
			if w.status != http.StatusOK {
				b.Fatal(w.status)
			}
		}
		reportCPU(b, before)
	})
}

// contentType is the one of a body of benchBodies.
func contentType(body string) string {
	if strings.Contains(body[:min(100, len(body))], "\n") {
		return request.TokensType
	}
	return "application/json"
}

// nowhere is a http.ResponseWriter that keeps nothing.
type nowhere struct {
	header http.Header
	status int
}

func (w *nowhere) Header() http.Header         { return w.header }
func (w *nowhere) WriteHeader(status int)      { w.status = status }
func (w *nowhere) Write(b []byte) (int, error) { return len(b), nil }

// BenchmarkScoreHTTP is a whole score over a loopback connection that is kept
// open. The client writes bytes made beforehand and reads the answer into a
// buffer; cpu-us/op is the processor time of client and server together.
func BenchmarkScoreHTTP(b *testing.B) {
	eachBody(b, func(b *testing.B, s *server.Server, body string) {
		ts := httptest.NewServer(s.Handler())
		defer ts.Close()
		client, kind := ts.Client(), contentType(body)
		answer := new(bytes.Buffer)
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		before := cputime.Process()
		for b.Loop() {
			resp, err := client.Post(ts.URL+"/v1/score", kind, strings.NewReader(body))
			must.OK(b, err)
			answer.Reset()
			if _, err := io.Copy(answer, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				b.Fatal(resp.StatusCode, err)
			}
			must.OK(b, resp.Body.Close())
		}
		reportCPU(b, before)
	})
}

// reportCPU reports the CPU time of the process since before.
func reportCPU(b *testing.B, before time.Duration) {
	b.Helper()
	b.ReportMetric(float64((cputime.Process()-before).Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
}
