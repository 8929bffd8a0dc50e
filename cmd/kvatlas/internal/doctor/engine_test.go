package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/sim/encode"
)

// engine publishes what an engine would.
func engine(t *testing.T, replay string) (*zmq.Publisher, string) {
	t.Helper()
	endpoint := redistest.FreeEndpoint(t, 1)
	p := must.Get(zmq.NewPublisher(zmq.PublisherConfig{Endpoint: endpoint, Replay: replay}))(t)
	must.End(t, p.Close)
	return p, endpoint
}

// steps are the messages of an engine with the seed 7.
func steps() []zmq.Message {
	stored := event.Event{Kind: event.Stored, BlockSize: 4, Medium: "GPU", Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}}
	c := blockkey.NewVLLMChain(blockkey.VLLMSHA256, "7", 4)
	for _, d := range c.Append(nil, stored.Tokens) {
		stored.Hashes = append(stored.Hashes, event.Hash(d.VLLMWire()))
	}
	child := event.Event{Kind: event.Stored, BlockSize: 4, Medium: "CPU", Tokens: []uint32{9, 10, 11, 12}, Hashes: []event.Hash{77}, Parent: stored.Hashes[1], HasParent: true}
	var out []zmq.Message
	for i, events := range [][]event.Event{
		{stored},
		{child, {Kind: event.Removed, Hashes: stored.Hashes[:1], Medium: "GPU"}},
		{{Kind: event.Cleared}},
	} {
		out = append(out, zmq.Message{Seq: uint64(i), Payload: encode.Append(nil, &event.Batch{Events: events}, encode.VLLM33)})
	}
	return out
}

func TestEngine(t *testing.T) {
	replay := redistest.FreeEndpoint(t, 1)
	p, endpoint := engine(t, replay)
	for _, m := range steps() {
		p.Publish(m)
	}
	worst, sections := look(t, Config{Engine: Engine{Endpoint: endpoint, Replay: replay}})
	if worst != check.OK {
		t.Errorf("the worst is %v: %+v", worst, sections)
	}
	for what, want := range map[string]string{
		"engine connection": "connected", "events": "4 in 3 messages", "blocks": "of [4] tokens",
		"hash seed": `vLLM's sha256 with the seed "7"`,
	} {
		if f := has(t, sections["engine"], what, ""); f.Found != want {
			t.Errorf("%s: %+v, want %s", what, f, want)
		}
	}
	if f := has(t, sections["engine"], "replay", replay); f.Found != "3 messages from 0 on" {
		t.Errorf("%+v", f)
	}
	worst, sections = look(t, Config{Engine: Engine{Endpoint: endpoint, Replay: replay, Seeds: []string{"0"}}})
	if f := has(t, sections["engine"], "hash seed", ""); worst != check.Warn || !strings.HasSuffix(f.Found, "your seed differs") || f.Do == "" {
		t.Errorf("the worst is %v, %+v", worst, f)
	}

	// With what cannot be used, of unknown media, with a hole and a random
	// seed.
	odd := event.Batch{Events: []event.Event{
		{Kind: event.Stored, Hashes: []event.Hash{1}, Tokens: []uint32{1, 2}, BlockSize: 2, Medium: "TAPE"},
		{Kind: event.Stored, Hashes: []event.Hash{1}, Tokens: []uint32{1, 2}, BlockSize: 2, Group: 1, Medium: "GPU"},
		{Kind: 9},
	}}
	replay = redistest.FreeEndpoint(t, 1)
	p, endpoint = engine(t, replay)
	p.Publish(zmq.Message{Seq: 5, Payload: encode.Append(nil, &odd, encode.VLLM33)})
	p.Publish(zmq.Message{Seq: 9, Payload: []byte("\xc1")})
	worst, sections = look(t, Config{Engine: Engine{Endpoint: endpoint, Replay: replay, Seeds: []string{"0"}}, Timeout: 3 * time.Second})
	for what, want := range map[string]string{
		"events": "2 in 2 messages, and 1 messages and 1 events that cannot be used, the first for unknown_kind of type", "media": `["TAPE"]`,
		"blocks": "of [2] tokens, in 2 cache groups", "hash seed": "none of the schemes and seeds that were tried gives the hashes: your seed differs, or it is random",
	} {
		if f := has(t, sections["engine"], what, ""); f.Found != want {
			t.Errorf("%s: %+v, want %s", what, f, want)
		}
	}
	if f := has(t, sections["engine"], "replay", replay); worst != check.Warn || !strings.Contains(f.Found, "with 1 holes") {
		t.Errorf("the worst is %v, %+v", worst, f)
	}
}

func TestSilentEngine(t *testing.T) {
	_, endpoint := engine(t, "")
	nobody := redistest.FreeEndpoint(t, 1)
	worst, sections := look(t, Config{Engine: Engine{Endpoint: endpoint, Replay: nobody}, Timeout: 2 * time.Second})
	if f := has(t, sections["engine"], "events", ""); worst != check.Warn || f.Level != check.Warn || f.Found != "none came" {
		t.Errorf("the worst is %v, %+v", worst, f)
	}
	if f := has(t, sections["engine"], "replay", nobody); f.Level != check.Warn {
		t.Errorf("%+v", f)
	}
	worst, sections = look(t, Config{Engine: Engine{Endpoint: nobody}, Timeout: time.Second})
	if f := has(t, sections["engine"], "engine connection", ""); worst != check.Fail || f.Level != check.Fail {
		t.Errorf("the worst is %v, %+v", worst, f)
	}
	worst, sections = look(t, Config{Engine: Engine{Endpoint: "http://x"}})
	if f := has(t, sections["engine"], "engine connection", ""); worst != check.Fail || f.Level != check.Fail {
		t.Errorf("the worst is %v, %+v", worst, f)
	}
}
