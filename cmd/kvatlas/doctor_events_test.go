package main

import (
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/sim/encode"
)

func TestDoctorOfEngine(t *testing.T) {
	replay := freeEndpoint(t)
	p, endpoint := engine(t, replay)
	for _, m := range steps() {
		p.Publish(m)
	}
	status, worst, sections := doctorReport(t, "--engine-events="+endpoint, "--engine-replay="+replay)
	if status != exitOK || worst != check.OK {
		t.Errorf("ends with %d, %v: %+v", status, worst, sections)
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
	status, worst, sections = doctorReport(t, "--engine-events="+endpoint, "--engine-replay="+replay, "--engine-seed=0")
	if f := has(t, sections["engine"], "hash seed", ""); status != exitOK || worst != check.Warn || !strings.HasSuffix(f.Found, "your seed differs") || f.Do == "" {
		t.Errorf("ends with %d, %v, %+v", status, worst, f)
	}

	// With what cannot be used, of media that nobody knows, with a hole and a random
	// seed.
	odd := event.Batch{Events: []event.Event{
		{Kind: event.Stored, Hashes: []event.Hash{1}, Tokens: []uint32{1, 2}, BlockSize: 2, Medium: "TAPE"},
		{Kind: event.Stored, Hashes: []event.Hash{1}, Tokens: []uint32{1, 2}, BlockSize: 2, Group: 1, Medium: "GPU"},
		{Kind: 9},
	}}
	replay = freeEndpoint(t)
	p, endpoint = engine(t, replay)
	p.Publish(zmq.Message{Seq: 5, Payload: encode.Append(nil, &odd, encode.VLLM33)})
	p.Publish(zmq.Message{Seq: 9, Payload: []byte("\xc1")})
	status, worst, sections = doctorReport(t, "--engine-events="+endpoint, "--engine-replay="+replay, "--engine-seed=0", "--timeout=3s")
	for what, want := range map[string]string{
		"events": "2 in 2 messages, and 1 messages and 1 events that cannot be used, the first for unknown_kind of type", "media": `["TAPE"]`,
		"blocks": "of [2] tokens, in 2 cache groups", "hash seed": "none of the schemes and seeds that were tried gives the hashes: your seed differs, or it is random",
	} {
		if f := has(t, sections["engine"], what, ""); f.Found != want {
			t.Errorf("%s: %+v, want %s", what, f, want)
		}
	}
	if f := has(t, sections["engine"], "replay", replay); status != exitOK || worst != check.Warn || !strings.Contains(f.Found, "with 1 holes") {
		t.Errorf("ends with %d, %v, %+v", status, worst, f)
	}
}

func TestDoctorOfSilentEngine(t *testing.T) {
	_, endpoint := engine(t, "")
	nobody := freeEndpoint(t)
	status, worst, sections := doctorReport(t, "--engine-events="+endpoint, "--engine-replay="+nobody, "--timeout=2s")
	if f := has(t, sections["engine"], "events", ""); status != exitOK || worst != check.Warn || f.Level != check.Warn || f.Found != "none came" {
		t.Errorf("ends with %d, %v, %+v", status, worst, f)
	}
	if f := has(t, sections["engine"], "replay", nobody); f.Level != check.Warn {
		t.Errorf("%+v", f)
	}
	status, _, sections = doctorReport(t, "--engine-events="+nobody, "--timeout=1s")
	if f := has(t, sections["engine"], "engine connection", ""); status != exitFailed || f.Level != check.Fail {
		t.Errorf("ends with %d, %+v", status, f)
	}
	status, _, sections = doctorReport(t, "--engine-events=http://x")
	if f := has(t, sections["engine"], "engine connection", ""); status != exitFailed || f.Level != check.Fail {
		t.Errorf("ends with %d, %+v", status, f)
	}
	if status, _, stderr := call(t, "", "doctor", "--engine-seed=0"); status != exitUsage || !strings.Contains(stderr, "are for --engine-events") {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
}
