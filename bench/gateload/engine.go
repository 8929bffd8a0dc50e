package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"time"
)

// serveEngine is an engine that answers at once.
func serveEngine(address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","owned_by":"none"}]}`)
	})
	mux.HandleFunc("POST /v1/completions", complete)
	s := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	return s.ListenAndServe()
}

func complete(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	var q struct {
		MaxTokens int  `json:"max_tokens"`
		Stream    bool `json:"stream"`
		Options   struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err != nil || json.Unmarshal(b, &q) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	const usage = `"usage":{"prompt_tokens":512,"completion_tokens":64,"total_tokens":576,"prompt_tokens_details":{"cached_tokens":0}}`
	if !q.Stream {
		body := `{"id":"cmpl-1","object":"text_completion","created":1764300000,"model":"m","choices":[{"index":0,"text":"an answer of a sentence or so, as they are","finish_reason":"stop"}],` + usage + `}`
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = io.WriteString(w, body)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	pause, _ := time.ParseDuration(r.Header.Get("X-Pause")) // none without it
	for i := range q.MaxTokens {
		if i > 0 {
			time.Sleep(pause)
		}
		fmt.Fprintf(w, "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1764300000,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" word\",\"finish_reason\":null}],\"sent\":%d}\n\n", time.Now().UnixNano())
		if control.Flush() != nil {
			return
		}
	}
	if q.Options.Usage {
		_, _ = io.WriteString(w, `data: {"id":"cmpl-1","choices":[],`+usage+"}\n\n")
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// sized is a body that is not read beyond its length. A http.Transport reads on there to
// find the end. That is an error once the server has closed the body, as it does with the
// first byte of the answer. The transport then cuts that answer: of an engine that is
// quick, on a machine that is busy, one in some hundred.
type sized struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (s *sized) Read(p []byte) (int, error) {
	if s.left <= 0 {
		return 0, io.EOF
	}
	n, err := s.ReadCloser.Read(p)
	s.left -= int64(n)
	return n, err
}

// serveBare is a ReverseProxy with nothing around it but idle connections enough for the load.
func serveBare(address, engine string) error {
	to, err := url.Parse("http://" + engine)
	if err != nil {
		return err
	}
	p := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.SetXForwarded()
			r.Out.Body = &sized{r.Out.Body, r.Out.ContentLength}
		},
		FlushInterval: -1,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
	}
	s := &http.Server{Addr: address, Handler: p, ReadHeaderTimeout: 10 * time.Second}
	return s.ListenAndServe()
}
