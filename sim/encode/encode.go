// Package encode writes the messages of engines, byte for byte as their releases do: what
// [event.Decoder] reads. It is for simulated engines and for tests.
package encode

import (
	"encoding/binary"
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvatlas/kvatlas/ingest/event"
)

// Form is how a range of engine versions writes its events.
type Form uint8

// The forms, by the first version that has them.
const (
	// VLLM33 is vLLM 0.33: maps in which what has its default is left out.
	VLLM33 Form = iota
	// VLLM24 is vLLM 0.24 to 0.32: the same without the tokens of a lookahead.
	VLLM24
	// VLLM22 is vLLM 0.22 and 0.23: arrays with the kind of cache.
	VLLM22
	// VLLM20 is vLLM 0.20 and 0.21: arrays with the group.
	VLLM20
	// VLLM17 is vLLM 0.17 to 0.19: arrays with extra keys.
	VLLM17
	// VLLM14 is vLLM 0.14 to 0.16: arrays with the name of the adapter.
	VLLM14
	// VLLM10 is vLLM 0.10.2 to 0.13: arrays with the medium.
	VLLM10
	// VLLM9 is vLLM 0.9 to 0.10.1.
	VLLM9
	// SGLang520 is SGLang 0.5.20 to 0.5.23: maps.
	SGLang520
	// SGLang517 is SGLang 0.5.17 to 0.5.19: arrays, with the salt in a map at the end.
	SGLang517
	// SGLang59 is SGLang 0.5.9 to 0.5.16: arrays with the medium.
	SGLang59
	// SGLang4 is SGLang 0.4.6 to 0.5.8.
	SGLang4
	// TRTLLM is TensorRT-LLM's own stream: maps with vLLM's names, without groups.
	TRTLLM

	// NumForms is how many forms there are.
	NumForms
)

var formNames = [NumForms]string{"vllm-0.33", "vllm-0.24", "vllm-0.22", "vllm-0.20", "vllm-0.17", "vllm-0.14", "vllm-0.10.2", "vllm-0.9",
	"sglang-0.5.20", "sglang-0.5.17", "sglang-0.5.9", "sglang-0.4.6", "trtllm"}

// String returns the engine and the first version of the form, as in "vllm-0.33".
func (f Form) String() string {
	if f < NumForms {
		return formNames[f]
	}
	return fmt.Sprintf("form(%d)", uint8(f))
}

func (f Form) sglang() bool { return f >= SGLang520 && f <= SGLang4 }
func (f Form) maps() bool   { return f <= VLLM24 || f == SGLang520 || f == TRTLLM }

// The places of a Stored event's fields in an array, as in vLLM 0.22.
const (
	atHashes = iota + 1
	atParent
	atTokens
	atBlockSize
	atLoRAID
	atMedium
	atLoRA
	atExtraKeys
	atGroup
	atSpec
	atWindow
	numStored
)

// stored is how many values an array has for a Stored event.
func (f Form) stored() int {
	switch f {
	case VLLM22:
		return numStored
	case VLLM20:
		return atGroup + 1
	case VLLM17:
		return atExtraKeys + 1
	case VLLM14:
		return atLoRA + 1
	case VLLM10, SGLang59, SGLang517:
		return atMedium + 1
	default:
		return atLoRAID + 1
	}
}

// Append appends the payload of a message as an engine of the form writes it. It
// has the time, the events, and the rank (0 when there is none). What the form
// has no field for is left out, so that an old form can lose the medium, the
// adapter's name or the salt. Objects that have but a hash have no place in
// vLLM's and SGLang's forms.
func Append(dst []byte, b *event.Batch, form Form) []byte {
	dst = msgp.AppendArrayHeader(dst, 3)
	dst = msgp.AppendFloat64(dst, b.Time)
	dst = msgp.AppendArrayHeader(dst, uint32(len(b.Events)))
	for i := range b.Events {
		dst = appendEvent(dst, &b.Events[i], form)
	}
	return msgp.AppendUint64(dst, uint64(b.Rank))
}

func appendEvent(dst []byte, e *event.Event, form Form) []byte {
	if form.maps() {
		return appendEventMap(dst, e, form)
	}
	return appendEventArray(dst, e, form)
}

// mapHead is a map whose size is known when it is full. A wide one has two bytes for
// that, as msgspec has for a struct of 16 fields or more of which it leaves some out.
type mapHead struct {
	at, n int
	wide  bool
}

func openMap(dst []byte, wide bool) ([]byte, mapHead) {
	h := mapHead{at: len(dst), wide: wide}
	if wide {
		return append(dst, 0xde, 0, 0), h
	}
	return append(dst, 0x80), h
}

func (h *mapHead) key(dst []byte, name string) []byte {
	h.n++
	return msgp.AppendString(dst, name)
}

// close writes the size. A narrow map has less than 16 fields.
func (h *mapHead) close(dst []byte) []byte {
	if h.wide {
		binary.BigEndian.PutUint16(dst[h.at+1:], uint16(h.n))
	} else {
		dst[h.at] = 0x80 | byte(h.n)
	}
	return dst
}

func appendEventMap(dst []byte, e *event.Event, form Form) []byte {
	dst, h := openMap(dst, form == VLLM33 && e.Kind == event.Stored)
	dst = msgp.AppendString(h.key(dst, "type"), e.Kind.String())
	if e.Kind == event.Cleared {
		return h.close(dst)
	}
	dst = appendHashes(h.key(dst, "block_hashes"), e.Hashes, form)
	vllm := !form.sglang() && form != TRTLLM
	if e.Kind == event.Stored {
		dst = appendParent(h.key(dst, "parent_block_hash"), e, form)
		dst = appendTokens(h.key(dst, "token_ids"), e)
		dst = msgp.AppendUint64(h.key(dst, "block_size"), uint64(e.BlockSize))
		dst = appendLoRAID(h.key(dst, "lora_id"), e)
	}
	dst = appendName(h.key(dst, "medium"), e.Medium)
	if form == TRTLLM {
		if e.Kind == event.Stored {
			dst = appendName(h.key(dst, "lora_name"), e.LoRA)
		}
		return h.close(dst)
	}
	if e.Kind == event.Stored && vllm {
		dst = appendName(h.key(dst, "lora_name"), e.LoRA)
		if hasExtraKeys(e) {
			dst = appendExtraKeys(h.key(dst, "extra_keys"), e)
		}
	}
	if vllm {
		dst = msgp.AppendUint64(h.key(dst, "group_idx"), uint64(e.Group))
		if e.Spec != "" && e.Kind == event.Stored {
			dst = msgp.AppendString(h.key(dst, "kv_cache_spec_kind"), e.Spec)
		}
		if e.SlidingWindow != 0 && e.Kind == event.Stored {
			dst = msgp.AppendUint64(h.key(dst, "kv_cache_spec_sliding_window"), uint64(e.SlidingWindow))
		}
		if e.Locality != "" {
			dst = msgp.AppendString(h.key(dst, "locality"), e.Locality)
		}
		if form == VLLM33 && len(e.Lookahead) > 0 && len(e.Hashes) > 0 {
			dst = appendLookahead(h.key(dst, "lookahead_token_ids"), e)
		}
	} else if e.Kind == event.Stored {
		if e.Salt != "" {
			dst = msgp.AppendString(h.key(dst, "cache_salt"), e.Salt)
		}
		if e.LoRA != "" {
			dst = msgp.AppendString(h.key(dst, "lora_name"), e.LoRA)
		}
	}
	return h.close(dst)
}

func appendEventArray(dst []byte, e *event.Event, form Form) []byte {
	switch e.Kind {
	case event.Stored:
		n := form.stored()
		salted := form == SGLang517 && e.Salt != ""
		if salted {
			n++
		}
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, uint32(n)), e.Kind.String())
		for at := 1; at < n; at++ {
			if at == atLoRA && salted {
				dst = msgp.AppendString(msgp.AppendString(msgp.AppendMapHeader(dst, 1), "cache_salt"), e.Salt)
			} else {
				dst = appendStoredField(dst, e, at, form)
			}
		}
	case event.Removed:
		n := 4
		if form >= VLLM17 {
			n = 3
		}
		if form == VLLM9 || form == SGLang4 {
			n = 2
		}
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, uint32(n)), e.Kind.String())
		dst = appendHashes(dst, e.Hashes, form)
		if n > 2 {
			dst = appendName(dst, e.Medium)
		}
		if n > 3 {
			dst = msgp.AppendUint64(dst, uint64(e.Group))
		}
	default:
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, 1), e.Kind.String())
	}
	return dst
}

func appendStoredField(dst []byte, e *event.Event, at int, form Form) []byte {
	switch at {
	case atHashes:
		return appendHashes(dst, e.Hashes, form)
	case atParent:
		return appendParent(dst, e, form)
	case atTokens:
		return appendTokens(dst, e)
	case atBlockSize:
		return msgp.AppendUint64(dst, uint64(e.BlockSize))
	case atLoRAID:
		return appendLoRAID(dst, e)
	case atMedium:
		return appendName(dst, e.Medium)
	case atLoRA:
		return appendName(dst, e.LoRA)
	case atExtraKeys:
		return appendExtraKeys(dst, e)
	case atGroup:
		return msgp.AppendUint64(dst, uint64(e.Group))
	case atSpec:
		return appendName(dst, e.Spec)
	}
	if e.SlidingWindow == 0 {
		return append(dst, 0xc0)
	}
	return msgp.AppendUint64(dst, uint64(e.SlidingWindow))
}

// appendInt writes what is not negative as unsigned, as msgspec does.
func appendInt(dst []byte, v int64) []byte {
	if v >= 0 {
		return msgp.AppendUint64(dst, uint64(v))
	}
	return msgp.AppendInt64(dst, v)
}

func appendHash(dst []byte, h event.Hash, form Form) []byte {
	if form.sglang() {
		return appendInt(dst, int64(h))
	}
	return msgp.AppendUint64(dst, uint64(h))
}

func appendHashes(dst []byte, hashes []event.Hash, form Form) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(hashes)))
	for _, h := range hashes {
		dst = appendHash(dst, h, form)
	}
	return dst
}

func appendParent(dst []byte, e *event.Event, form Form) []byte {
	if !e.HasParent {
		return append(dst, 0xc0)
	}
	return appendHash(dst, e.Parent, form)
}

func appendTokens(dst []byte, e *event.Event) []byte {
	if e.Bigram && len(e.Tokens) > 0 {
		dst = msgp.AppendArrayHeader(dst, uint32(len(e.Tokens)-1))
		for i, t := range e.Tokens[:len(e.Tokens)-1] {
			dst = msgp.AppendUint64(msgp.AppendUint64(msgp.AppendArrayHeader(dst, 2), uint64(t)), uint64(e.Tokens[i+1]))
		}
		return dst
	}
	dst = msgp.AppendArrayHeader(dst, uint32(len(e.Tokens)))
	for _, t := range e.Tokens {
		dst = msgp.AppendUint64(dst, uint64(t))
	}
	return dst
}

func appendLookahead(dst []byte, e *event.Event) []byte {
	width := len(e.Lookahead) / len(e.Hashes)
	dst = msgp.AppendArrayHeader(dst, uint32(len(e.Hashes)))
	for i := range e.Hashes {
		dst = msgp.AppendArrayHeader(dst, uint32(width))
		for _, t := range e.Lookahead[i*width:][:width] {
			dst = msgp.AppendUint64(dst, uint64(t))
		}
	}
	return dst
}

func appendLoRAID(dst []byte, e *event.Event) []byte {
	if e.LoRAID == 0 {
		return append(dst, 0xc0)
	}
	return appendInt(dst, e.LoRAID)
}

func appendName(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, 0xc0)
	}
	return msgp.AppendString(dst, s)
}

// hasExtraKeys reports whether an event of vLLM has extra keys: those of full blocks
// with their tokens, nil ones included.
func hasExtraKeys(e *event.Event) bool {
	return e.Medium == "GPU" && len(e.Tokens) > 0 || e.Extra != nil || e.Salt != "" && !e.HasParent
}

// appendExtraKeys writes what went into each block's hash as vLLM 0.19 to 0.33 do.
func appendExtraKeys(dst []byte, e *event.Event) []byte {
	if !hasExtraKeys(e) {
		return append(dst, 0xc0)
	}
	dst = msgp.AppendArrayHeader(dst, uint32(len(e.Hashes)))
	for i := range e.Hashes {
		var objects []event.Object
		if i < len(e.Extra) {
			objects = e.Extra[i].Objects
		}
		n := 0
		for _, o := range objects {
			if o.ID != "" {
				n++
			}
		}
		if e.LoRA != "" {
			n++
		}
		salted := e.Salt != "" && i == 0 && !e.HasParent
		if salted {
			n++
		}
		if n == 0 {
			dst = append(dst, 0xc0)
			continue
		}
		dst = msgp.AppendArrayHeader(dst, uint32(n))
		if e.LoRA != "" {
			dst = msgp.AppendString(dst, e.LoRA)
		}
		for _, o := range objects {
			if o.ID != "" {
				dst = appendInt(msgp.AppendString(msgp.AppendArrayHeader(dst, 2), o.ID), int64(o.Offset))
			}
		}
		if salted {
			dst = msgp.AppendString(dst, e.Salt)
		}
	}
	return dst
}
