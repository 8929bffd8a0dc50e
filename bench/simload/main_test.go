package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
)

// Messages are counted however the bytes of a stream come.
func TestScanner(t *testing.T) {
	const stream = "data: {\"a\":1}\n\ndata: {}\n\ndata: [DONE]\n\n"
	for size := 1; size <= len(stream); size++ {
		var s scanner
		for b := []byte(stream); len(b) > 0; b = b[min(size, len(b)):] {
			s.scan(b[:min(size, len(b))])
		}
		if s.messages != 3 {
			t.Errorf("in pieces of %d bytes: %d messages", size, s.messages)
		}
	}
}

// A load asks what it is told to, and tells an answer that is too short from a whole one.
func TestLoad(t *testing.T) {
	most := 5
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b struct {
			Prompt    []uint32
			MaxTokens int `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil || len(b.Prompt) != 600 {
			http.Error(w, fmt.Sprint(err, len(b.Prompt)), http.StatusBadRequest)
			return
		}
		for range min(b.MaxTokens, most) {
			_, _ = io.WriteString(w, "data: {}\n\n")
		}
		_, _ = io.WriteString(w, "data: {\"usage\":{}}\n\ndata: [DONE]\n\n")
	}))
	defer s.Close()
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	must.OK(t, err)
	n := must.Get(strconv.Atoi(port))(t)
	for answer, failed := range map[int]int{5: 0, 6: 20} {
		l := newLoad(&options{port: n, pods: 1, prompt: 600, answer: answer, rate: 1e4, length: 2 * time.Millisecond})
		l.send(t.Context())
		if l.tally.sent != 20 || l.tally.failed != failed || l.tally.chunks != answer*(20-failed) {
			t.Errorf("answers of %d tokens: %+v", answer, l.tally)
		}
	}
}
