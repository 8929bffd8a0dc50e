package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// TestPodsEvents registers pods whose events a server can read, and refuses the others.
func TestPodsEvents(t *testing.T) {
	s := newServer(t, openIndex(t))
	for body, want := range map[string][2]string{ // the field to blame, a part of the message
		`"events":"127.0.0.1:5557"`:                                    {"events", `"127.0.0.1:5557": it is not of the form tcp://host:port or ipc://path`},
		`"events":"tcp://127.0.0.1"`:                                   {"events", "missing port in address"},
		`"events":"http://127.0.0.1:5557"`:                             {"events", `transport "http" is not one of tcp and ipc`},
		`"events":"tcp://*:5557"`:                                      {"events", "names no host, and neither does the pod's address or name"},
		`"events":"tcp://h:65535","ranks":2`:                           {"events", "rank 1 would have port 65535+1"},
		`"events":"bind+tcp://h:5557"`:                                 {"events", "write *"},
		`"events":"tcp://h:5557","replay":"h:5558"`:                    {"replay", `"h:5558": it is not of the form`},
		`"events":"tcp://h:5557","replay":"tcp://h:5557"`:              {"replay", "where the events of rank 0 are"},
		`"events":"tcp://h:5557,tcp://g:5557","ranks":3`:               {"events", "2 endpoints for 3 ranks"},
		`"replay":"tcp://h"`:                                           {"replay", "missing port in address"},
		`"replay":"h:5558"`:                                            {"replay", `"h:5558": it is not of the form`},
		`"events":"tcp://h:5557","replay":"tcp://h:6000"`:              {},
		`"events":"tcp://*:5557","address":"h:8000","ranks":2`:         {},
		`"events":"ipc:///run/e.sock","replay":"ipc:///run/r.sock"`:    {},
		`"events":"bind+tcp://*:5557","replay":"tcp://h:5558"`:         {}, // one that may bind could read them
		`"events":"bind+tcp://10.0.0.9:5557,bind+tcp://*:1","ranks":2`: {},
	} {
		w := s.do("POST", "/v1/pods", strings.NewReader(`{"name":"p","model":"m",`+body+`}`))
		if want[0] == "" {
			if w.Code >= 300 {
				t.Errorf("%s: %d %s", body, w.Code, w.Body)
			}
			continue
		}
		var e refusal
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != http.StatusBadRequest || e.Error.Code != "invalid_request" || e.Error.Param == nil {
			t.Fatalf("%s: %d %s", body, w.Code, w.Body)
		}
		if m := e.Error.Message; *e.Error.Param != want[0] || !strings.Contains(m, want[1]) || strings.Contains(m, "zmq: ") || strings.Contains(m, "fleet: ") {
			t.Errorf("%s: param %q and %q, want %q and %q", body, *e.Error.Param, m, want[0], want[1])
		}
	}
}
