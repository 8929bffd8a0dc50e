package enginetest

import (
	_ "embed"
	"encoding/hex"
	"strconv"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
)

//go:embed script.py
var scriptScript string

// Script is vLLM's own cache, run step by step. Its methods are for one goroutine.
type Script struct{ *process }

// Step is a step of a Script, as script.py has them: new, begin, go, end, fill or reset.
type Step struct {
	Op      string   `json:"op"`
	Name    string   `json:"name,omitempty"`
	Tokens  []uint32 `json:"tokens,omitempty"`
	N       int      `json:"n,omitempty"`
	Report  bool     `json:"report,omitempty"`
	Removed int      `json:"removed,omitempty"`
	More    bool     `json:"more,omitempty"`
}

// StartScript runs a cache until the test ends, with Release, Blocks, BlockSize and Window
// of the options.
func StartScript(tb testing.TB, o CacheOptions) *Script {
	tb.Helper()
	return &Script{startProcess(tb, o.Release.String(), loadScript+cachesScript+scriptScript, []string{
		"--engine", o.Release.Engine, "--module", module(tb, o.Release),
		"--blocks", strconv.Itoa(o.Blocks), "--block-size", strconv.Itoa(o.BlockSize), "--window", strconv.Itoa(o.Window),
	})}
}

// Play empties the cache, does the steps and returns the payloads of the messages that are
// published of them, whose time is 0.
func (s *Script) Play(steps ...Step) (payloads [][]byte) {
	s.tb.Helper()
	for _, step := range append([]Step{{Op: "new"}}, steps...) {
		var r struct{ Payloads []string }
		s.ask(step, time.Minute, &r)
		for _, p := range r.Payloads {
			b := must.Get(hex.DecodeString(p))(s.tb)
			payloads = append(payloads, b)
		}
	}
	return payloads
}

// Find returns how many leading tokens of a prompt the cache has.
func (s *Script) Find(tokens []uint32) int {
	s.tb.Helper()
	var r struct{ Held int }
	s.ask(struct {
		Op     string   `json:"op"`
		Tokens []uint32 `json:"tokens"`
	}{"find", tokens}, time.Minute, &r)
	return r.Held
}
