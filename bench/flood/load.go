package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
)

// flood is one kind of attack.
type flood struct {
	name, title string
	send        func(ctx context.Context, s *proc.Process, t *tally)
}

// hostile is a template of some 2^60 calls: it ends where its fuel does.
const hostile = `{% macro a(n) %}{% if n>0 %}{{ a(n-1) }}{{ a(n-1) }}{% endif %}{% endmacro %}{{ a(60) }}`

func floods(model string) []flood {
	chat := func(messages, rest string) []byte {
		return []byte(`{"model":` + strconv.Quote(model) + `,"messages":[` + messages + `]` + rest + `}`)
	}
	hi := `{"role":"user","content":"hi"}`
	template := `,"chat_template":` + strconv.Quote(hostile)
	many := strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"a1"},`, 30_000), ",")
	const async, sync = `,"mode":"async"`, `,"mode":"sync"`
	return []flood{
		{"template", "200 chats with a template of their own, 189 bytes", same(200, chat(hi, template))},
		{"template-async", "the same, `async`", same(200, chat(hi, template+async))},
		{"template-sync", "the same, `sync`", same(200, chat(hi, template+sync))},
		{"messages", "40 chats of 30,000 messages, the model's template", same(40, chat(many, ""))},
		{"messages-async", "the same, `async`", same(40, chat(many, async))},
		{"messages-sync", "the same, `sync`", same(40, chat(many, sync))},
		{"text", "100 texts of 600 kB", same(100, textBody(model, 600_000))},
		{"tokens", "40 x 1,048,576 tokens", same(40, tokensBody("demo", 1<<20, ""))},
		{"tokens-explain", "the same with `explain`", same(40, tokensBody("demo", 1<<20, `,"explain":true`))},
		{"keys-explain", "40 x 131,072 block keys with `explain`", same(40, keysBody(1<<17))},
		{"digits", "40 x 1 MiB of digits, `sync`", same(40, digitsBody(model, 1<<20))},
		{"slow", "1,024 bodies of which 9 bytes come", slowBodies(1024)},
	}
}

// same sends n equal requests at once.
func same(n int, body []byte) func(context.Context, *proc.Process, *tally) {
	return func(ctx context.Context, s *proc.Process, t *tally) {
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
		defer client.CloseIdleConnections()
		var all sync.WaitGroup
		for range n {
			all.Go(func() { post(ctx, client, s.URL, body, t) })
		}
		all.Wait()
	}
}

// post asks for one score and notes what came of it.
func post(ctx context.Context, client *http.Client, url string, body []byte, t *tally) {
	start := time.Now()
	what := "closed without an answer"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/score", bytes.NewReader(body))
	if err == nil {
		if resp, rerr := client.Do(req); rerr == nil {
			raw, berr := io.ReadAll(resp.Body)
			_ = resp.Body.Close() // all of it was read, or the error below says otherwise
			if what = outcome(resp.StatusCode, raw); berr != nil {
				what = "cut off"
			}
		}
	}
	t.note(what, time.Since(start))
}

// outcome is a status with the reason that the answer gives.
func outcome(status int, body []byte) string {
	var a struct {
		Degraded struct{ Reason string }
		Error    struct{ Code string }
	}
	_ = json.Unmarshal(body, &a) // an answer in another form has no reason
	if why := a.Degraded.Reason + a.Error.Code; why != "" {
		return strconv.Itoa(status) + " `" + why + "`"
	}
	return strconv.Itoa(status)
}

// slowBodies opens n connections that send 9 bytes of a body and no more, until the
// server ends them or 3 s are over.
func slowBodies(n int) func(context.Context, *proc.Process, *tally) {
	return func(ctx context.Context, s *proc.Process, t *tally) {
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				start := time.Now()
				var d net.Dialer
				conn, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(s.URL, "http://"))
				if err != nil {
					t.note("not connected", time.Since(start))
					return
				}
				defer func() { _ = conn.Close() }() // nothing is to be lost
				_, _ = io.WriteString(conn, "POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{\"model\":")
				_ = conn.SetReadDeadline(start.Add(3 * time.Second))
				head := make([]byte, 12)
				if _, err := io.ReadFull(conn, head); err != nil {
					t.note("held for 3 s", time.Since(start))
					return
				}
				t.note(string(head[9:]), time.Since(start))
			})
		}
		all.Wait()
	}
}

func tokensBody(model string, n int, rest string) []byte {
	b := append([]byte(`{"model":`), strconv.Quote(model)...)
	b = append(b, `,"tokens":[`...)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(i%90_000), 10)
	}
	return append(append(append(b, ']'), rest...), '}')
}

func keysBody(n int) []byte {
	b := []byte(`{"model":"demo","explain":true,"block_keys":[`)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `"%016x"`, i)
	}
	return append(b, "]}"...)
}

func textBody(model string, n int) []byte {
	words := strings.Repeat("the quick brown fox jumps over the lazy dog and then 17 more ", n/60+1)
	return []byte(`{"model":` + strconv.Quote(model) + `,"prompt":"` + words[:n] + `"}`)
}

func digitsBody(model string, n int) []byte {
	return []byte(`{"model":` + strconv.Quote(model) + `,"mode":"sync","prompt":"` + strings.Repeat("7", n) + `"}`)
}
