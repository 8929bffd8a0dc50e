package enginetest

import (
	_ "embed"
	"encoding/hex"
	"testing"
	"time"
)

//go:embed decoder.py
var decoderScript string

// Decoder decodes messages by the structs of a release. Its methods are for one goroutine.
type Decoder struct{ *process }

// Told is what a message says, in the names of its release.
type Told struct {
	Events []ToldEvent
	Rank   int
}

// ToldEvent is one event of it; what the release does not have is nil.
type ToldEvent struct {
	Type   string
	Hashes []any    `json:"block_hashes"`
	Parent any      `json:"parent_block_hash"`
	Tokens []uint32 `json:"token_ids"`
	Size   int      `json:"block_size"`
	Medium *string
	LoRA   *string `json:"lora_name"`
	Salt   *string `json:"cache_salt"`
	Extra  []any   `json:"extra_keys"`
	Group  *int    `json:"group_idx"`
}

// StartDecoder runs a decoder until the test ends.
func StartDecoder(tb testing.TB, r Release) *Decoder {
	tb.Helper()
	return &Decoder{startProcess(tb, r.String(), loadScript+decoderScript, []string{"--engine", r.Engine, "--module", module(tb, r)})}
}

// Decode decodes the payload of a message.
func (d *Decoder) Decode(payload []byte) Told {
	d.tb.Helper()
	var t Told
	d.ask(map[string]any{"op": "decode", "payload": hex.EncodeToString(payload)}, time.Minute, &t)
	return t
}
