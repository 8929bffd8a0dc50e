package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/must"
)

func TestDumpAndRestore(t *testing.T) {
	ctx := t.Context()
	c := dial(t)
	for _, pod := range []string{"a", "b"} {
		must.Get(c.Blocks(ctx, client.BlocksRequest{Op: client.OpAdd, Model: "letters", Pod: pod, Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}}))(t)
	}
	dump := func(r client.DumpRequest) string {
		t.Helper()
		body := must.Get(c.Dump(ctx, r))(t)
		text, err := io.ReadAll(body)
		must.OK(t, errors.Join(err, body.Close()))
		return string(text)
	}
	whole := dump(client.DumpRequest{})
	if !strings.Contains(whole, `"kvatlas":"end"`) || strings.Count(whole, `{"pod":`) != 2 {
		t.Errorf("got %s", whole)
	}
	if part := dump(client.DumpRequest{Model: "letters", Pod: "b", Pages: 1}); strings.Count(part, `{"pod":`) != 1 {
		t.Errorf("got %s", part)
	}
	var e *client.Error
	for _, r := range []client.DumpRequest{{Pod: "c&d"}, {Model: "x"}, {Cursor: "x"}} {
		if _, err := c.Dump(ctx, r); !errors.As(err, &e) || e.Status < 400 || e.Code == "" {
			t.Errorf("%+v: %v", r, err)
		}
	}

	if r, err := c.Reset(ctx, client.ResetRequest{Pod: "a"}); err != nil || *r != (client.ResetReport{Pods: 1}) {
		t.Errorf("got %+v, %v", r, err)
	}
	if r, err := c.Reset(ctx, client.ResetRequest{All: true}); err != nil || *r != (client.ResetReport{Pods: 1, Models: 1}) {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := c.Reset(ctx, client.ResetRequest{Model: "letters"}); !errors.As(err, &e) || e.Status != 404 {
		t.Errorf("got %v", err)
	}
	if _, err := c.Reset(ctx, client.ResetRequest{Pod: "\xff"}); !errors.Is(err, client.ErrNotUTF8) {
		t.Errorf("got %v", err)
	}
	for _, mode := range []string{"", client.RestoreMerge, client.RestoreReplace} {
		r, err := c.Restore(ctx, strings.NewReader(whole), mode)
		if err != nil || r.Blocks != 2 || r.Credits != 4 || r.Models != 1 || r.TrueAt.Time.IsZero() {
			t.Errorf("got %+v, %v", r, err)
		}
	}
	if again := dump(client.DumpRequest{}); strings.Count(again, `{"pod":`) != 2 {
		t.Errorf("got %s", again)
	}
	if _, err := c.Restore(ctx, strings.NewReader(whole[:len(whole)-30]), ""); !errors.As(err, &e) || e.Code != "invalid_dump" {
		t.Errorf("got %v", err)
	}
}

// A stream may be long, but must move.
func TestStreamsTimeOut(t *testing.T) {
	synctest.Test(t, testStreamsTimeOut)
}

// roundTripper is a http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// testStreamsTimeOut has a server that sends five lines of a dump, and answers nothing else.
func testStreamsTimeOut(t *testing.T) {
	send := func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		out, in := io.Pipe()
		go func() {
			for range 5 {
				_, _ = io.WriteString(in, "line\n")
				time.Sleep(300 * time.Millisecond) // of the bubble's clock
			}
			<-r.Context().Done()
			_ = in.CloseWithError(r.Context().Err())
		}()
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/x-ndjson"}}, Body: out, Request: r}, nil
	}
	c := must.Get(client.New(client.Config{URL: "http://server", Timeout: time.Second, HTTP: &http.Client{Transport: roundTripper(send)}}))(t)
	body := must.Get(c.Dump(t.Context(), client.DumpRequest{}))(t)
	text, err := io.ReadAll(body)
	if string(text) != strings.Repeat("line\n", 5) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "nothing moved for 1s") {
		t.Errorf("got %q, %v", text, err)
	}
	_ = body.Close()
	if _, err := c.Restore(t.Context(), strings.NewReader("x"), ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Dump(ctx, client.DumpRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
