package event_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/sim/encode"
)

// benchBatches are what steps of a busy engine store, 16 blocks of 16 tokens each: so many
// that nothing learns how wide their tokens are.
func benchBatches(form encode.Form) (all [][]byte) {
	r := rand.New(rand.NewPCG(16, 16))
	for range 1024 {
		all = append(all, benchBatch(form, r))
	}
	return all
}

func benchBatch(form encode.Form, r *rand.Rand) []byte {
	e := event.Event{Kind: event.Stored, BlockSize: 16, Medium: "GPU", Parent: 0xfedcba9876543210, HasParent: true}
	for i := range 16 {
		e.Hashes = append(e.Hashes, event.Hash(0x9e3779b97f4a7c15*uint64(i+1)))
	}
	for range 256 {
		e.Tokens = append(e.Tokens, r.Uint32N(128_000))
	}
	return encode.Append(nil, &event.Batch{Time: 1700000000.25, Events: []event.Event{e}}, form)
}

func BenchmarkDecode(b *testing.B) {
	for _, form := range []encode.Form{encode.VLLM33, encode.VLLM22, encode.SGLang520} {
		b.Run(form.String(), func(b *testing.B) {
			payloads := benchBatches(form)
			var (
				d     event.Decoder
				batch event.Batch
			)
			b.ReportAllocs()
			b.SetBytes(int64(len(payloads[0])))
			for i := 0; b.Loop(); i++ {
				must.OK(b, d.Decode(payloads[i%len(payloads)], &batch))
			}
		})
	}
}

// BenchmarkDecodePeer is the map form with the raw functions of tinylib/msgp, the
// fastest general decoder we know. It reads just the fields, into memory that is
// reused, with none of what tells versions apart. It is there to be compared with.
func BenchmarkDecodePeer(b *testing.B) {
	payloads := benchBatches(encode.VLLM33)
	var p peer
	if err := p.decode(payloads[0]); err != nil || len(p.hashes) != 16 || len(p.tokens) != 256 {
		b.Fatal(err, len(p.hashes), len(p.tokens))
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(payloads[0])))
	for i := 0; b.Loop(); i++ {
		must.OK(b, p.decode(payloads[i%len(payloads)]))
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
	must.OK(b, new(event.Decoder).Decode(benchBatches(encode.VLLM33)[0], &batch))
	body := append(event.AppendJSON([]byte(`{"pod":"10.0.0.1:8000","model":"m","events":[`), &batch.Events[0]), `]}`...)
	var d event.Decoder
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		must.Get(d.JSONPushes(body))(b)
	}
}
