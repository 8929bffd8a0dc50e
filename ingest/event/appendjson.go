package event

import (
	"encoding/json"
	"strconv"
)

// AppendJSON appends an event as a JSON object with the names that vLLM and SGLang
// use on the wire. Decoder.JSONPushes reads it back as it was. Hashes and tokens
// are numbers, of 64 bits where they are; empty fields are left out.
func AppendJSON(dst []byte, e *Event) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, e.Kind.String()...)
	dst = append(dst, '"')
	if e.Kind != Cleared {
		dst = append(dst, `,"block_hashes":[`...)
		for i, h := range e.Hashes {
			dst = comma(dst, i)
			dst = strconv.AppendUint(dst, uint64(h), 10)
		}
		dst = append(dst, ']')
	}
	if e.Kind == Stored {
		dst = appendJSONStored(dst, e)
	}
	dst = jsonText(dst, "medium", e.Medium)
	dst = jsonText(dst, "locality", e.Locality)
	dst = jsonInt(dst, "group_idx", e.Group)
	dst = jsonText(dst, "kv_cache_spec_kind", e.Spec)
	dst = jsonInt(dst, "kv_cache_spec_sliding_window", e.SlidingWindow)
	return append(dst, '}')
}

func appendJSONStored(dst []byte, e *Event) []byte {
	dst = append(dst, `,"parent_block_hash":`...)
	if e.HasParent {
		dst = strconv.AppendUint(dst, uint64(e.Parent), 10)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"token_ids":[`...)
	if e.Bigram && len(e.Tokens) > 0 {
		for i, t := range e.Tokens[:len(e.Tokens)-1] {
			dst = append(comma(dst, i), '[')
			dst = strconv.AppendUint(dst, uint64(t), 10)
			dst = strconv.AppendUint(append(dst, ','), uint64(e.Tokens[i+1]), 10)
			dst = append(dst, ']')
		}
	} else {
		dst = jsonTokens(dst, e.Tokens)
	}
	dst = append(dst, ']')
	dst = append(dst, `,"block_size":`...)
	dst = strconv.AppendInt(dst, int64(e.BlockSize), 10)
	if e.LoRAID != 0 {
		dst = append(dst, `,"lora_id":`...)
		dst = strconv.AppendInt(dst, e.LoRAID, 10)
	}
	dst = jsonText(dst, "lora_name", e.LoRA)
	dst = jsonText(dst, "cache_salt", e.Salt)
	if e.Extra != nil {
		dst = jsonObjects(dst, e)
	}
	if n := len(e.Hashes); n > 0 && len(e.Lookahead) > 0 {
		width := len(e.Lookahead) / n
		dst = append(dst, `,"lookahead_token_ids":[`...)
		for i := range n {
			dst = append(comma(dst, i), '[')
			dst = append(jsonTokens(dst, e.Lookahead[i*width:][:width]), ']')
		}
		dst = append(dst, ']')
	}
	return dst
}

// jsonObjects writes objects that have identifiers as vLLM's extra keys do. It
// writes all others by their hashes as Dynamo's publisher does; of a mixture,
// hashes alone.
func jsonObjects(dst []byte, e *Event) []byte {
	named := true
	for _, x := range e.Extra {
		for _, o := range x.Objects {
			named = named && o.ID != ""
		}
	}
	if named {
		dst = append(dst, `,"extra_keys":[`...)
	} else {
		dst = append(dst, `,"block_mm_infos":[`...)
	}
	for i, x := range e.Extra {
		dst = comma(dst, i)
		switch {
		case len(x.Objects) == 0:
			dst = append(dst, "null"...)
			continue
		case named:
			dst = append(dst, '[')
		default:
			dst = append(dst, `{"mm_objects":[`...)
		}
		for j, o := range x.Objects {
			dst = comma(dst, j)
			if named {
				dst = jsonString(append(dst, '['), o.ID)
				dst = strconv.AppendInt(append(dst, ','), int64(o.Offset), 10)
				dst = append(dst, ']')
				continue
			}
			dst = append(dst, `{"mm_hash":`...)
			dst = strconv.AppendUint(dst, o.Hash, 10)
			dst = append(dst, `,"offsets":[[`...)
			dst = strconv.AppendInt(dst, int64(o.Offset), 10)
			dst = append(dst, `]]}`...)
		}
		if named {
			dst = append(dst, ']')
		} else {
			dst = append(dst, `]}`...)
		}
	}
	return append(dst, ']')
}

func jsonTokens(dst []byte, tokens []uint32) []byte {
	for i, t := range tokens {
		dst = strconv.AppendUint(comma(dst, i), uint64(t), 10)
	}
	return dst
}

func comma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}

func jsonText(dst []byte, name, s string) []byte {
	if s == "" {
		return dst
	}
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	return jsonString(dst, s)
}

func jsonString(dst []byte, s string) []byte {
	b, err := json.Marshal(s)
	if err != nil { // a string always has a JSON form
		return append(dst, `""`...)
	}
	return append(dst, b...)
}

func jsonInt(dst []byte, name string, v int) []byte {
	if v == 0 {
		return dst
	}
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	return strconv.AppendInt(dst, int64(v), 10)
}
