package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"
)

// DumpRequest says what to dump. The zero value is all.
type DumpRequest struct {
	// Model limits the dump to the pods that are registered for a model, Pod to
	// one pod.
	Model, Pod string
	// Cursor goes on behind the page that has it as next.
	Cursor string
	// Pages is how many pages at most; 0 is all.
	Pages int
}

// Dump returns the lines of a dump, as docs/snapshots.md has them, to be closed.
// Config.Timeout bounds the wait for each part of them, not for the whole, and
// Config.MaxResponseBytes does not count. A dump is whole only when its last
// line is the one with {"kvatlas":"end"}. What goes wrong on the way is in the
// last line, or in an error of Read.
func (c *Client) Dump(ctx context.Context, r DumpRequest) (io.ReadCloser, error) {
	q := url.Values{}
	for name, v := range map[string]string{"model": r.Model, "pod": r.Pod, "cursor": r.Cursor} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if r.Pages > 0 {
		q.Set("limit", strconv.Itoa(r.Pages))
	}
	s := c.stream(ctx)
	resp, err := s.do(http.MethodGet, withQuery("/v1/dump", q), "", nil) //nolint:bodyclose // dumpBody closes it
	if err != nil {
		s.end()
		return nil, err
	}
	return &dumpBody{s, resp.Body}, nil
}

// The modes of Restore.
const (
	// RestoreMerge adds to what the index has.
	RestoreMerge = "merge"
	// RestoreReplace resets the index first.
	RestoreReplace = "replace"
)

// RestoreReport is what a restore has done.
type RestoreReport struct {
	// Lines is how many lines were read, Models how many models have the settings
	// of the dump, Pods how many pods were registered.
	Lines  int `json:"lines"`
	Models int `json:"models"`
	Pods   int `json:"pods"`
	// Blocks is how many blocks were loaded, and Credits how many pairs of block
	// and holder. Skipped is how many pairs were not since their pod ended
	// meanwhile.
	Blocks  int64 `json:"blocks"`
	Credits int64 `json:"credits"`
	Skipped int64 `json:"skipped"`
	// TrueAt is the moment that the dump is true at.
	TrueAt struct {
		Time  time.Time         `json:"time"`
		Epoch uint64            `json:"epoch"`
		Logs  map[string]string `json:"logs"`
	} `json:"true_at"`
}

// Restore loads a dump, which is not compressed; mode is RestoreMerge,
// RestoreReplace or empty for the first. Config.Timeout bounds the wait for the
// server to take each part, and then for its answer, not the whole. What was
// loaded before an error stays.
func (c *Client) Restore(ctx context.Context, dump io.Reader, mode string) (*RestoreReport, error) {
	path := "/v1/restore"
	if mode != "" {
		path += "?mode=" + url.QueryEscape(mode)
	}
	s := c.stream(ctx)
	defer s.end()
	resp, err := s.do(http.MethodPost, path, "application/x-ndjson", &restoreBody{s, dump})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := c.read(resp)
	if err != nil {
		return nil, fmt.Errorf("client: POST %s: %w", path, s.reason(err))
	}
	out := new(RestoreReport)
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("%w: POST %s: %w", ErrBadResponse, path, err)
	}
	return out, nil
}

// ResetRequest says what to forget: one of its fields is set.
type ResetRequest struct {
	// Model clears the pods that are registered for a model, and forgets its
	// settings.
	Model string `json:"model,omitempty"`
	// Pod removes a pod.
	Pod string `json:"pod,omitempty"`
	// All removes all pods and forgets all models.
	All bool `json:"all,omitempty"`
}

// ResetReport is how many pods were cleared or removed, and how many models
// forgotten.
type ResetReport struct {
	Pods   int `json:"pods"`
	Models int `json:"models"`
}

// Reset makes the index forget. What is not known is an *Error with status 404.
func (c *Client) Reset(ctx context.Context, r ResetRequest) (*ResetReport, error) {
	if err := checkTexts("model", r.Model, "pod", r.Pod); err != nil {
		return nil, err
	}
	return ask[ResetReport](ctx, c, http.MethodPost, "/v1/reset", r)
}

// stream is a call that may take as long as it goes on.
type stream struct {
	c      *Client
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer // ends it
	done   atomic.Bool
}

func (c *Client) stream(ctx context.Context) *stream {
	s := &stream{c: c}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	if c.cfg.Timeout > 0 {
		s.timer = time.AfterFunc(c.cfg.Timeout, func() {
			s.cancel(fmt.Errorf("client: nothing moved for %v: %w", c.cfg.Timeout, context.DeadlineExceeded))
		})
	}
	return s
}

// moved gives the stream its time anew.
func (s *stream) moved() {
	if s.timer != nil && !s.done.Load() {
		s.timer.Reset(s.c.cfg.Timeout)
	}
}

func (s *stream) end() {
	s.done.Store(true)
	if s.timer != nil {
		s.timer.Stop()
	}
	s.cancel(nil)
}

// reason puts why the stream was ended in the place of its bare end.
func (s *stream) reason(err error) error {
	if cause := context.Cause(s.ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

// do sends the request. An answer that is not 200 is an error.
func (s *stream) do(method, path, contentType string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(s.ctx, method, s.c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	s.c.sign(req)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := s.c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("client: %w", s.reason(err))
	}
	s.moved()
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := s.c.read(resp)
	if err != nil {
		return nil, fmt.Errorf("client: %s %s: %w", method, path, s.reason(err))
	}
	return nil, errorOf(resp, text)
}

// dumpBody is what the server sends.
type dumpBody struct {
	s    *stream
	body io.ReadCloser
}

// Read implements io.Reader.
func (b *dumpBody) Read(p []byte) (int, error) {
	b.s.moved()
	n, err := b.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("client: %w", b.s.reason(err))
	}
	return n, err
}

// Close implements io.Closer.
func (b *dumpBody) Close() error {
	b.s.end()
	return b.body.Close()
}

// restoreBody is what is sent.
type restoreBody struct {
	s *stream
	r io.Reader
}

// Read implements io.Reader.
func (b *restoreBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.s.moved()
	return n, err
}
