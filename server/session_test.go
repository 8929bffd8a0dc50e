package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A session is named by a field or by a header, and both servers keep it together.
func TestSessionsOverHTTP(t *testing.T) {
	noting(t, func(r *routing) {
		for _, name := range []string{"a", "b", "c"} {
			r.ok("POST", "/v1/pods", `{"name":"`+name+`","model":"demo"}`)
		}
		say := func(more, header string) (pod, state string) {
			req := httptest.NewRequest(http.MethodPost, "/v1/route", strings.NewReader(`{"model":"demo","tokens":[1,2,3],"policy":"least_requests","reserve":true`+more+`}`))
			if header != "" {
				req.Header.Set("X-Session-Id", header)
			}
			w := httptest.NewRecorder()
			r.h.ServeHTTP(w, req)
			var a struct {
				Pod     string
				Session struct{ State string }
			}
			if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != 200 {
				r.Fatalf("%d %s", w.Code, w.Body)
			}
			return a.Pod, a.Session.State
		}
		first, state := say(`,"session":"chat"`, "")
		if state != "new" {
			r.Errorf("state %q", state)
		}
		for range 4 {
			for _, by := range [][2]string{{`,"session":"chat"`, ""}, {``, "chat"}, {`,"session":"chat"`, "another"}} {
				if pod, state := say(by[0], by[1]); pod != first || state != "kept" {
					r.Errorf("%q: went to %s, %s; want %s", by, pod, state, first)
				}
			}
		}
		for _, body := range []string{`"session":""`, `"session":7`, `"session":"` + strings.Repeat("s", 257) + `"`, `"session":"s","role":"pair"`} {
			if w := r.do("POST", "/v1/route", `{"model":"demo","tokens":[1],`+body+`}`); w.Code != 400 || !strings.Contains(w.Body.String(), `"session"`) {
				r.Errorf("%s: %d %s", body, w.Code, w.Body)
			}
		}
	})
}
