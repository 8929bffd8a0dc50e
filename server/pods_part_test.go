package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// TestPartOf registers a cache worker over HTTP, and what cannot be one.
func TestPartOf(t *testing.T) {
	s := newServer(t, openIndex(t))
	w := s.do("POST", "/v1/pods", strings.NewReader(`{"name":"p/cache/0","model":"m","part_of":{"pod":"p","rank":1,"worker":0,"workers":2},"lease_s":30}`))
	if w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if w = s.do("GET", "/v1/pods/p%2Fcache%2F0", nil); !strings.Contains(w.Body.String(), `"part_of":{"pod":"p","rank":1,"workers":2}`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for body, param := range map[string]string{
		`{"name":"p","model":"m","part_of":{"pod":"a","workers":0}}`:            "part_of",
		`{"name":"p","model":"m","part_of":{"pod":"a","worker":2,"workers":2}}`: "part_of",
		`{"name":"p","model":"m","part_of":{"pod":"a","workers":-1}}`:           "part_of.workers",
		`{"name":"p","model":"m","part_of":{"pods":"a"}}`:                       "part_of.pods",
		`{"name":"p","model":"m","part_of":"a"}`:                                "part_of",
		`{"name":"p","model":"m","part_of":{"pod":"p","workers":1}}`:            "",
	} {
		w := s.do("POST", "/v1/pods", strings.NewReader(body))
		var e refusal
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != 400 {
			t.Fatalf("%s: %d %s", body, w.Code, w.Body)
		}
		got := ""
		if e.Error.Param != nil {
			got = *e.Error.Param
		}
		if got != param {
			t.Errorf("%s: param %q, want %q: %s", body, got, param, e.Error.Message)
		}
	}
	if w = s.do("POST", "/v1/pods", strings.NewReader(`{"name":"q","model":"m","part_of":{"pod":"p","workers":1}}`)); w.Code != http.StatusCreated {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	// A worker is no pod of the metrics.
	if w = s.do("POST", "/v1/pods", strings.NewReader(`{"name":"p","model":"m"}`)); w.Code != http.StatusCreated {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	s.do("GET", "/v1/pods", nil) // which loads the registry
	want(t, s, `kvatlas_index_pods 1`)
}
