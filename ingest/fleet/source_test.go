package fleet

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/store"
)

func TestSources(t *testing.T) {
	pod := func(name, address, events, replay string, ranks int) *store.Pod {
		return &store.Pod{Name: name, Address: address, Model: "m", Engine: "vllm", Events: events, Replay: replay, Ranks: ranks}
	}
	for _, c := range []struct {
		pod  *store.Pod
		want string // events and replay of each rank
		err  string
	}{
		{pod("a:1", "", "", "", 3), "", ""},
		{pod("a:1", "", "tcp://h:5557", "", 0), "tcp://h:5557 ", ""},
		{pod("a:1", "", "tcp://h:5557", "tcp://h:5657", 2), "tcp://h:5557 tcp://h:5657, tcp://h:5558 tcp://h:5658", ""},
		{pod("a:1", "", "tcp://h:5557,tcp://h:9000", "tcp://h:1", 2), "tcp://h:5557 tcp://h:1, tcp://h:9000 tcp://h:2", ""},
		{pod("a:1", "", "tcp://*:5557", "tcp://0.0.0.0:1", 1), "tcp://a:5557 tcp://a:1", ""},
		{pod("pod-7", "http://[fd00::1]:80/v1", "tcp://[::]:5557", "", 2), "tcp://[fd00::1]:5557 , tcp://[fd00::1]:5558 ", ""},
		{pod("a:1", "b:2", "tcp://*:5557", "", 1), "tcp://b:5557 ", ""},
		{pod("a:1", "", "ipc:///run/e.sock", "", 1), "ipc:///run/e.sock ", ""},
		{pod("a:1", "", "ipc:///run/e.sock", "", 2), "", "one endpoint for each rank"},
		{pod("a:1", "", "tcp://h:1,tcp://h:2", "", 3), "", "2 endpoints for 3 ranks"},
		{pod("pod-7", "", "tcp://*:5557", "", 1), "", "names no host"},
		{pod("a:1", "", "tcp://h:65535", "", 2), "", "65535+1"},
		{pod("a:1", "", "tcp://h", "", 1), "", "missing port"},
		{pod("a:1", "", "h:1", "", 1), "", "not of the form"},
		{pod("a:1", "", "tcp://h:1", "udp://h:1", 1), "", "udp"},
		{pod("a:1", "", "tcp://h:5557", "tcp://h:5557", 1), "", `replay of a:1/0: "tcp://h:5557" is where the events of rank 0 are; the replay socket has an endpoint of its own`},
		{pod("a:1", "", "tcp://*:5557", "tcp://a:5557", 1), "", `"tcp://a:5557" is where the events of rank 0 are`},
		{pod("a:1", "", "tcp://h:5557", "tcp://h:5558", 2), "", `replay of a:1/0: "tcp://h:5558" is where the events of rank 1 are`},
		{pod("a:1", "", "tcp://h:5558", "tcp://h:5557", 2), "", `replay of a:1/1: "tcp://h:5558" is where the events of rank 0 are`},
		{pod("a:1", "", "tcp://h:5557", "tcp://h:5559", 2), "tcp://h:5557 tcp://h:5559, tcp://h:5558 tcp://h:5560", ""},
		{pod("a:1", "", "tcp://g:1,tcp://h:1", "tcp://g:2,tcp://h:2", 2), "tcp://g:1 tcp://g:2, tcp://h:1 tcp://h:2", ""},
		{pod("a:1", "", "ipc:///run/e", "ipc:///run/e", 1), "", "an endpoint of its own"},
	} {
		list, err := (&Wiring{}).Sources(c.pod)
		var got []string
		for i, s := range list {
			if s.Bind || s.Topic != "" || s.Pod != c.pod.Name || s.Rank != i || s.Model != "m" || s.Engine != "vllm" {
				t.Errorf("%+v: got %+v", c.pod, s)
			}
			got = append(got, s.Events+" "+s.Replay)
		}
		if strings.Join(got, ", ") != c.want || (err != nil) != (c.err != "") {
			t.Errorf("%+v: got %q, %v", c.pod, got, err)
		}
		if c.err != "" && (!errors.Is(err, ErrEndpoints) || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%+v: got %v, want %s", c.pod, err, c.err)
		}
	}
}

// TestWiring is what the settings of a replica add.
func TestWiring(t *testing.T) {
	pod := func(events, replay string, ranks int) *store.Pod {
		return &store.Pod{Name: "pod", Address: "10.0.0.1:8000", Model: "org/m", Events: events, Replay: replay, Ranks: ranks}
	}
	for _, c := range []struct {
		w    Wiring
		pod  *store.Pod
		want string // of each rank: events, bind, replay, topic
		err  string
	}{
		{Wiring{Bind: "*"}, pod("bind+tcp://*:5557", "tcp://*:6000", 2), "tcp://*:5557 true tcp://10.0.0.1:6000 , tcp://*:5558 true tcp://10.0.0.1:6001 ", ""},
		{Wiring{Bind: "127.0.0.1"}, pod("bind+tcp://*:5557", "", 1), "tcp://127.0.0.1:5557 true  ", ""},
		{Wiring{Bind: "::1"}, pod("bind+tcp://*:1,bind+tcp://[::1]:9", "", 2), "tcp://[::1]:1 true  , tcp://[::1]:9 true  ", ""},
		{Wiring{Bind: "127.0.0.1"}, pod("bind+tcp://0.0.0.0:5557", "", 1), "", "engines can connect to 127.0.0.1"},
		{Wiring{Bind: "*"}, pod("bind+tcp://*", "", 1), "", "missing port"},
		{Wiring{Bind: "*"}, pod("bind+ipc:///run/x", "", 1), "", "only bind+tcp://*:PORT"},
		{Wiring{Bind: "*"}, pod("bind+tcp://*:1,tcp://h:2", "", 2), "", "only bind+tcp://*:PORT"},
		{Wiring{Bind: "*"}, pod("bind+tcp://*:1", "bind+tcp://*:2", 1), "", "not one of tcp and ipc"},
		{Wiring{}, pod("bind+tcp://*:5557", "", 1), "", "lets no engine connect"},
		{Wiring{Bind: "*", Curve: &zmq.Curve{}}, pod("bind+tcp://*:5557", "", 1), "", "CURVE works towards a publisher that listens"},
		{Wiring{Topic: "kv@{host}@{model}/{rank}{pod}"}, pod("tcp://h:1", "", 2), "tcp://h:1 false  kv@10.0.0.1@org/m/0pod, tcp://h:2 false  kv@10.0.0.1@org/m/1pod", ""},
		{Wiring{Topic: strings.Repeat("x", 252) + "{model}"}, pod("tcp://h:1", "", 1), "", "topic has 257 bytes"},
	} {
		if err := c.w.Validate(); err != nil {
			t.Errorf("%+v: %v", c.w, err)
		}
		list, err := c.w.Sources(c.pod)
		var got []string
		for _, s := range list {
			got = append(got, fmt.Sprint(s.Events, " ", s.Bind, " ", s.Replay, " ", s.Topic))
			if s.Curve != c.w.Curve {
				t.Errorf("%+v: other keys", c.w)
			}
		}
		if strings.Join(got, ", ") != c.want || (err != nil) != (c.err != "") {
			t.Errorf("%+v, %+v: got %q, %v", c.w, c.pod, got, err)
		}
		if c.err != "" && (!errors.Is(err, ErrEndpoints) || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%+v: got %v, want %s", c.pod, err, c.err)
		}
	}
	for want, w := range map[string]Wiring{"has {Pod}": {Topic: "{pod}{Pod}"}, "has {rank": {Topic: "{rank"}, "no address": {Bind: "localhost"}} {
		if err := w.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v", w, err)
		}
	}
}
