package event_test

import (
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/sim/encode"
)

// benchBatch is what one step of a busy engine stores: 16 blocks of 16 tokens.
func benchBatch(form encode.Form) []byte {
	e := event.Event{Kind: event.Stored, BlockSize: 16, Medium: "GPU", Parent: 0xfedcba9876543210, HasParent: true}
	for i := range 16 {
		e.Hashes = append(e.Hashes, event.Hash(0x9e3779b97f4a7c15*uint64(i+1)))
	}
	for i := range 256 {
		e.Tokens = append(e.Tokens, uint32(i*997)%128000)
	}
	return encode.Append(nil, &event.Batch{Time: 1700000000.25, Events: []event.Event{e}}, form)
}

func BenchmarkDecode(b *testing.B) {
	for _, form := range []encode.Form{encode.VLLM33, encode.VLLM22, encode.SGLang520} {
		b.Run(form.String(), func(b *testing.B) {
			payload := benchBatch(form)
			var (
				d     event.Decoder
				batch event.Batch
			)
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			for b.Loop() {
				if err := d.Decode(payload, &batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDecodePeer is the map form with the raw functions of tinylib/msgp, the
// fastest general decoder we know: just the fields, into memory that is reused,
// with none of what tells versions apart. It is there to be compared with.
func BenchmarkDecodePeer(b *testing.B) {
	payload := benchBatch(encode.VLLM33)
	var p peer
	if err := p.decode(payload); err != nil || len(p.hashes) != 16 || len(p.tokens) != 256 {
		b.Fatal(err, len(p.hashes), len(p.tokens))
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	for b.Loop() {
		if err := p.decode(payload); err != nil {
			b.Fatal(err)
		}
	}
}

type peer struct {
	hashes    []uint64
	tokens    []uint32
	parent    uint64
	blockSize int
	medium    []byte
}

func (p *peer) decode(b []byte) error {
	p.hashes, p.tokens = p.hashes[:0], p.tokens[:0]
	_, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return err
	}
	if _, b, err = msgp.ReadFloat64Bytes(b); err != nil {
		return err
	}
	events, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return err
	}
	for range events {
		fields, rest, err := msgp.ReadMapHeaderBytes(b)
		if err != nil {
			return err
		}
		b = rest
		for range fields {
			var key []byte
			if key, b, err = msgp.ReadMapKeyZC(b); err != nil {
				return err
			}
			if b, err = p.field(string(key), b); err != nil {
				return err
			}
		}
	}
	_, err = msgp.Skip(b)
	return err
}

func (p *peer) field(key string, b []byte) (_ []byte, err error) {
	var n uint32
	switch key {
	case "block_hashes":
		if n, b, err = msgp.ReadArrayHeaderBytes(b); err != nil {
			return b, err
		}
		for range n {
			var v uint64
			if v, b, err = msgp.ReadUint64Bytes(b); err != nil {
				return b, err
			}
			p.hashes = append(p.hashes, v)
		}
		return b, nil
	case "token_ids":
		if n, b, err = msgp.ReadArrayHeaderBytes(b); err != nil {
			return b, err
		}
		for range n {
			var v uint32
			if v, b, err = msgp.ReadUint32Bytes(b); err != nil {
				return b, err
			}
			p.tokens = append(p.tokens, v)
		}
		return b, nil
	case "parent_block_hash":
		p.parent, b, err = msgp.ReadUint64Bytes(b)
		return b, err
	case "block_size":
		p.blockSize, b, err = msgp.ReadIntBytes(b)
		return b, err
	case "medium":
		p.medium, b, err = msgp.ReadStringZC(b)
		return b, err
	}
	return msgp.Skip(b)
}

func BenchmarkJSONPushes(b *testing.B) {
	var batch event.Batch
	if err := new(event.Decoder).Decode(benchBatch(encode.VLLM33), &batch); err != nil {
		b.Fatal(err)
	}
	body := append(event.AppendJSON([]byte(`{"pod":"10.0.0.1:8000","model":"m","events":[`), &batch.Events[0]), `]}`...)
	var d event.Decoder
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := d.JSONPushes(body); err != nil {
			b.Fatal(err)
		}
	}
}
