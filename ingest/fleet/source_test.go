package fleet

import (
	"errors"
	"strings"
	"testing"

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
	} {
		list, err := Sources(c.pod)
		var got []string
		for i, s := range list {
			if s.Pod != c.pod.Name || s.Rank != i || s.Model != "m" || s.Engine != "vllm" {
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
