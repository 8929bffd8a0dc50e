package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/server"
)

// TestHammer sends the requests of 1,000 clients at once over real connections,
// and writes beside them. They are right ones, malformed ones, oversized ones,
// and ones that their client gives up. Every answer must be the right one, and
// every refusal a 4xx that says why.
func TestHammer(t *testing.T) {
	const clients, each = 1000, 6
	s := newServer(t, openIndex(t), func(c *server.Config) {
		c.Limits.MaxBodyBytes = 64 << 10
		c.Limits.MaxInFlight = clients
		c.Limits.RequestTimeout = time.Minute
	})
	ts := httptest.NewUnstartedServer(s.Handler())
	ts.Config.ErrorLog = nil
	ts.Start()
	defer ts.Close()
	transport := &http.Transport{MaxIdleConnsPerHost: clients, DialContext: (&net.Dialer{Timeout: time.Minute}).DialContext}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 2 * time.Minute}

	// What stands at the beginning and is not written again.
	s.post(t, "/v1/blocks", `{"op":"add","model":"m","pod":"a","tokens":[1,2,3,4,5,6,7,8]}`)
	s.post(t, "/v1/blocks", `{"op":"add","model":"m","pod":"b","tokens":[1,2,3,4]}`)
	const whole = `{"scores":{"a":2,"b":1},"best":"a","matched":{"a":{"blocks":2,"tokens":8,"reusable":4,"tiers":{"gpu":2},"ranks":{"0":2}},"b":{"blocks":1,"tokens":4,"reusable":4,"tiers":{"gpu":1},"ranks":{"0":1}}},"blocks":{"total":2,"size":4},"tokens":{"total":8,"source":"tokens","exact":true}}` + "\n"

	type exchange struct {
		path, body string
		status     int
		want       string // the body, or the code of a refusal
		giveUp     bool
	}
	big := `{"model":"m","tokens":[` + strings.Repeat("1,", 50<<10) + `1]}`
	kinds := []func(client, round int) exchange{
		func(int, int) exchange {
			return exchange{"/v1/score", `{"model":"m","tokens":[1,2,3,4,5,6,7,8]}`, 200, whole, false}
		},
		func(int, int) exchange {
			return exchange{"/v1/score", `{"model":"m","tokens_b64":"AQAAAAIAAAADAAAABAAAAAUAAAAGAAAABwAAAAgAAAA="}`, 200, whole, false}
		},
		func(c, r int) exchange { // each client's own pod and chain
			return exchange{"/v1/blocks", fmt.Sprintf(`{"op":"add","model":"own","pod":"p%d","tokens":[%d,%d,1,2,3]}`, c, c, r), 200, "{\"blocks\":1}\n", false}
		},
		func(c, r int) exchange {
			pod := fmt.Sprintf("q%d", c)
			return exchange{"/v1/score", fmt.Sprintf(`{"model":"none","tokens":[%d,%d,3,4,5],"pods":[%q]}`, c, r, pod), 200, `{"scores":{"` + pod + `":0},"best":null,"matched":{},"blocks":{"total":1,"size":4},"tokens":{"total":5,"source":"tokens","exact":true}}` + "\n", false}
		},
		func(c, _ int) exchange {
			text := strings.Repeat("x", c%50)
			return exchange{"/v1/score", `{"model":"text-model","prompt":"` + text + `","mode":"sync"}`, 200, fmt.Sprintf(`{"scores":{},"best":null,"matched":{},"blocks":{"total":%d,"size":4},"tokens":{"total":%d,"source":"tokenizer","exact":true}}`+"\n", (len(text)+1)/4, len(text)+1), false}
		},
		func(int, int) exchange { return exchange{"/v1/score", big, 413, "too_large", false} },
		func(int, int) exchange { return exchange{"/v1/score", big[:1000], 400, "invalid_json", false} },
		func(int, int) exchange {
			return exchange{"/v1/score", `{"model":"m","tokens":[1,-2]}`, 400, "invalid_request", false}
		},
		func(int, int) exchange {
			return exchange{"/v1/score", "{\"model\":\"m\",\"prompt\":\"\xc3\"}", 400, "invalid_json", false}
		},
		func(int, int) exchange {
			return exchange{"/v1/score", `{"model":"text-model","prompt":"\u0000"}`, 400, "invalid_text", false}
		},
		func(int, int) exchange {
			return exchange{"/v1/score", `{"model":"absent","prompt":"x"}`, 404, "unknown_model", false}
		},
		func(int, int) exchange { return exchange{"/v1/scores", `{}`, 404, "not_found", false} },
		func(int, int) exchange { return exchange{"/v1/models", `{}`, 405, "method_not_allowed", false} },
		func(int, int) exchange {
			return exchange{"/v1/score", `{"model":"text-model","prompt":"forever","mode":"sync"}`, 0, "", true}
		},
		func(int, int) exchange { return exchange{"/v1/score", big, 413, "", true} },
	}
	var (
		wg      sync.WaitGroup
		counted [600]atomic.Int64
		start   = make(chan struct{})
	)
	for c := range clients {
		wg.Go(func() {
			<-start
			for r := range each {
				x := kinds[(c+r*7)%len(kinds)](c, r)
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if x.giveUp {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(1+rand.IntN(20))*time.Millisecond)
				}
				var body io.Reader = strings.NewReader(x.body)
				if (c+r)%2 == 0 {
					body = io.MultiReader(body) // chunked
				}
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, ts.URL+x.path, body)
				if err != nil {
					t.Error(err)
				}
				status, answer, err := exchangeOnce(client, req)
				cancel()
				if x.giveUp {
					if err != nil && !errors.Is(err, context.DeadlineExceeded) && !connectionLost(err) {
						t.Errorf("given up: %v", err)
					}
					if err == nil && status != x.status {
						t.Errorf("given up too late: %d %s", status, answer)
					}
					continue
				}
				if err != nil {
					t.Errorf("%.60s: %v", x.body, err)
					continue
				}
				counted[status].Add(1)
				if status != x.status {
					t.Errorf("%.60s: %d %s, want %d", x.body, status, answer, x.status)
					continue
				}
				if status == 200 {
					if string(answer) != x.want {
						t.Errorf("%.60s:\ngot  %s\nwant %s", x.body, answer, x.want)
					}
					continue
				}
				var e refusal
				if err := json.Unmarshal(answer, &e); err != nil || e.Error.Code != x.want || e.Error.Message == "" {
					t.Errorf("%.60s: %s, want %s", x.body, answer, x.want)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	for status := range counted {
		if n := counted[status].Load(); n > 0 {
			t.Logf("%d: %d answers", status, n)
		}
	}
	ts.Close() // waits for the handlers of clients that have gone
	want(t, s, "kvatlas_http_panics_total 0", "kvatlas_http_overloaded_total 0", "kvatlas_http_in_flight 0", "kvatlas_http_in_flight_bytes 0")
	if body := s.post(t, "/v1/score", `{"model":"m","tokens":[1,2,3,4,5,6,7,8]}`); body != whole {
		t.Errorf("afterwards: %s", body)
	}
}

// connectionLost is what a client may see that has given up while it writes.
func connectionLost(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || strings.Contains(err.Error(), "server closed idle connection") || strings.Contains(err.Error(), "http: ")
}

// exchangeOnce sends a request and reads the whole answer.
func exchangeOnce(client *http.Client, req *http.Request) (int, []byte, error) {
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(resp.Body)
	return resp.StatusCode, b.Bytes(), err
}
