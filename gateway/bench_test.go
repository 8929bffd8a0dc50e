package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/gateway"
	"github.com/kvatlas/kvatlas/internal/must"
)

// BenchmarkRequest is a request and its answer through the gateway, and through a bare
// ReverseProxy. Client and engine are of the same process and count.
func BenchmarkRequest(b *testing.B) {
	const usage = `"usage":{"prompt_tokens":512,"prompt_tokens_details":{"cached_tokens":0}}`
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[{"text":"an answer"}],`+usage+`}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 64 {
			_, _ = io.WriteString(w, "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1764300000,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" word\"}]}\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	defer engine.Close()
	to := must.Get(url.Parse(engine.URL))(b)
	bare := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded() }, FlushInterval: -1,
		Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
	})
	defer bare.Close()
	f := newFleet(b, gateway.Config{}, to.Host)
	for _, x := range []struct{ name, url string }{{"bare", bare.URL}, {"gateway", f.url}} {
		for _, stream := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/stream=%v", x.name, stream), func(b *testing.B) {
				b.ReportAllocs()
				for n := range b.N {
					body := fmt.Sprintf(`{"model":%q,"stream":%v,"prompt":[%d%s]}`, model, stream, n, strings.Repeat(",1234", 511))
					resp, err := http.Post(x.url+"/v1/completions", "application/json", strings.NewReader(body))
					must.OK(b, err)
					must.Get(io.Copy(io.Discard, resp.Body))(b)
					resp.Body.Close()
				}
			})
		}
	}
}
