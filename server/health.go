package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/kvatlas/kvatlas/server/appendjson"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/store"
)

// healthz is 200 as long as the process serves.
func (c *call) healthz() error {
	b := c.out[:0]
	b = append(b, `{"status":"ok","version":`...)
	b = appendjson.String(b, c.s.cfg.Version)
	b = append(b, `,"backend":`...)
	b = appendjson.String(b, c.s.cfg.Backend)
	return c.replyOK(append(b, "}\n"...))
}

// readyProbe is how long a strict /readyz waits for the index.
const readyProbe = time.Second

// readyz is 200 when load balancers should send requests here.
func (c *call) readyz() error {
	if err := c.s.ready(c.ctx); err != "" {
		return &refusal.Error{Status: http.StatusServiceUnavailable, Code: "not_ready", Message: err}
	}
	return c.replyOK(append(c.out[:0], `{"status":"ready"}`+"\n"...))
}

// ready says why the server is not ready, or nothing.
func (s *Server) ready(ctx context.Context) string {
	if s.draining.Load() {
		return "draining"
	}
	if reason := s.notReady.Load(); reason != nil {
		return (*reason).Error()
	}
	if s.cfg.Ready != nil {
		if err := s.cfg.Ready(); err != nil {
			return err.Error()
		}
	}
	if s.cfg.StrictReady {
		ctx, cancel := context.WithTimeout(ctx, readyProbe)
		defer cancel()
		switch _, err := s.cfg.Index.Registry(ctx); {
		case errors.Is(err, store.ErrRefused):
			return "the index refuses this process: " + err.Error()
		case err != nil:
			return "the index cannot be reached"
		}
	}
	return ""
}

// metrics serves Prometheus.
func (c *call) metrics() error {
	c.w.Header().Set("X-Request-Id", c.id)
	c.s.metrics.Handler().ServeHTTP((*counted)(c), c.r)
	return nil
}

// counted is a call as a http.ResponseWriter that counts for its log line.
type counted call

// Header implements http.ResponseWriter.
func (c *counted) Header() http.Header { return c.w.Header() }

// WriteHeader implements http.ResponseWriter.
func (c *counted) WriteHeader(status int) {
	c.status = cmp.Or(c.status, status)
	c.w.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (c *counted) Write(b []byte) (int, error) {
	c.status = cmp.Or(c.status, http.StatusOK)
	n, err := c.w.Write(b)
	c.sent += n
	return n, err
}

func notFound(*call) error {
	return &refusal.Error{Status: http.StatusNotFound, Code: "not_found", Message: "there is no such path; GET /openapi.json lists them"}
}

// methodNotAllowed is a 405 with the methods that the path has.
func methodNotAllowed(c *call, r chi.Routes) error {
	path := c.r.URL.Path
	if c.r.URL.RawPath != "" {
		path = c.r.URL.RawPath
	}
	var allow []string
	for _, m := range []string{http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut} {
		if r.Match(chi.NewRouteContext(), m, path) {
			allow = append(allow, m)
		}
	}
	if len(allow) == 0 {
		return notFound(c)
	}
	slices.Sort(allow)
	list := strings.Join(allow, ", ")
	c.w.Header().Set("Allow", list)
	return &refusal.Error{Status: http.StatusMethodNotAllowed, Code: "method_not_allowed", Message: "this path takes " + list}
}
