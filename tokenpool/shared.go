package tokenpool

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// Shared keeps the tokens of pieces for a fleet of pools, so that none tokenizes
// what another has. Names are 16 bytes that tell nothing of a text, values are
// sealed: tokens are prompt text. Implementations bound what they keep, and are
// safe for concurrent use. *redis.Pieces is one.
type Shared interface {
	// GetPieces returns the values of names, in their order; nil where there is
	// none.
	GetPieces(ctx context.Context, names []string) ([][]byte, error)
	// PutPieces keeps values.
	PutPieces(ctx context.Context, names []string, values [][]byte) error
}

// MinSharedSecret is the shortest Config.SharedSecret, in bytes.
const MinSharedSecret = 16

const (
	// sharedQueue is how many texts' pieces wait to be given to the fleet; those
	// of further texts are not given.
	sharedQueue = 64
	// sharedNames is how many pieces are asked for in one call, or given.
	sharedNames = 512
	// sharedPause is for how long the fleet is not asked after it did not answer.
	sharedPause = time.Second
)

// fleet gives pieces to a Shared and takes them from it.
type fleet struct {
	shared  Shared
	timeout time.Duration
	names   []byte // key of the names
	seal    cipher.AEAD
	out     chan []sealed
	paused  atomic.Int64 // until when, in Unix nanoseconds

	reused, errors, dropped atomic.Uint64
}

// sealed is a piece on its way.
type sealed struct {
	name  string
	value []byte
}

func newFleet(s Shared, secret []byte, timeout time.Duration) (*fleet, error) {
	names, err := hkdf.Key(sha256.New, secret, nil, "kvatlas: names of pieces", 32)
	if err != nil {
		return nil, fmt.Errorf("tokenpool: config: SharedSecret: %w", err)
	}
	values, err := hkdf.Key(sha256.New, secret, nil, "kvatlas: values of pieces", 32)
	if err != nil {
		return nil, fmt.Errorf("tokenpool: config: SharedSecret: %w", err)
	}
	block, err := aes.NewCipher(values)
	if err != nil {
		return nil, fmt.Errorf("tokenpool: config: SharedSecret: %w", err)
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("tokenpool: config: SharedSecret: %w", err)
	}
	return &fleet{shared: s, timeout: timeout, names: names, seal: seal, out: make(chan []sealed, sharedQueue)}, nil
}

// name names a piece of a tokenizer's texts: without the key no one can tell that a text is there.
func (f *fleet) name(sum uint64, text string) string {
	h := hmac.New(sha256.New, f.names)
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, sum))
	_, _ = h.Write([]byte(text))
	return string(h.Sum(nil)[:16])
}

// encode seals a piece: for each token, how far it ends behind the last one and its
// number, as varints.
func (f *fleet) encode(name string, p *piece) []byte {
	b := make([]byte, 0, 5*len(p.tokens))
	for i, t := range p.tokens {
		b = binary.AppendUvarint(b, uint64(p.steps[i]))
		b = binary.AppendUvarint(b, uint64(t))
	}
	return f.seal.Seal(nil, nil, b, []byte(name))
}

// decode opens what encode has made, of a piece of n bytes.
func (f *fleet) decode(name string, value []byte, n int) (*piece, error) {
	b, err := f.seal.Open(nil, nil, value, []byte(name))
	if err != nil {
		return nil, fmt.Errorf("tokenpool: a shared piece: %w", err)
	}
	p := &piece{}
	for end := uint64(0); len(b) > 0; {
		step, k := binary.Uvarint(b)
		token, l := binary.Uvarint(b[max(k, 0):])
		if end += step; k <= 0 || l <= 0 || step > math.MaxUint16 || token > math.MaxUint32 || end > uint64(n) {
			return nil, errors.New("tokenpool: a shared piece is malformed")
		}
		b = b[k+l:]
		p.tokens, p.steps = append(p.tokens, uint32(token)), append(p.steps, uint16(step))
	}
	return p, nil
}

// fetch fills in the parts of a text that are not known here but to the fleet. What
// goes wrong is counted, and the text is tokenized.
func (f *fleet) fetch(t *tokenizer, text string, parts []part) {
	if time.Now().UnixNano() < f.paused.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	var at []int
	var names []string
	ask := func() bool {
		if len(names) == 0 {
			return true
		}
		values, err := f.shared.GetPieces(ctx, names)
		if err == nil && len(values) != len(names) {
			err = fmt.Errorf("tokenpool: %d shared pieces of %d", len(values), len(names))
		}
		if err != nil {
			f.errors.Add(1)
			f.paused.Store(time.Now().Add(sharedPause).UnixNano())
			return false
		}
		for i, v := range values {
			if v == nil {
				continue
			}
			part := &parts[at[i]]
			p, err := f.decode(names[i], v, part.to-part.from)
			if err != nil {
				f.errors.Add(1)
				continue
			}
			part.piece, part.shared = p, true
			f.reused.Add(uint64(len(p.tokens)))
		}
		at, names = at[:0], names[:0]
		return true
	}
	for i, p := range parts {
		if p.piece != nil || !p.keep {
			continue
		}
		at, names = append(at, i), append(names, f.name(p.sum(t), text[p.from:p.to]))
		if len(names) == sharedNames && !ask() {
			return
		}
	}
	ask()
}

// offer has the parts that were made here given to the fleet, some time.
func (f *fleet) offer(t *tokenizer, text string, parts []part) {
	var out []sealed
	for _, p := range parts {
		if p.keep && p.made && p.piece != nil {
			name := f.name(p.sum(t), text[p.from:p.to])
			out = append(out, sealed{name, f.encode(name, p.piece)})
		}
	}
	if len(out) == 0 {
		return
	}
	select {
	case f.out <- out:
	default:
		f.dropped.Add(1)
	}
}

// count adds what f has counted to st. A nil fleet has counted nothing.
func (f *fleet) count(st *Stats) {
	if f != nil {
		st.FleetReused, st.FleetErrors, st.FleetDropped = f.reused.Load(), f.errors.Load(), f.dropped.Load()
	}
}

// give gives what is offered to the fleet, until done.
func (f *fleet) give(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case out := <-f.out:
			for len(out) > 0 && time.Now().UnixNano() >= f.paused.Load() {
				n := min(len(out), sharedNames)
				names, values := make([]string, n), make([][]byte, n)
				for i, p := range out[:n] {
					names[i], values[i] = p.name, p.value
				}
				out = out[n:]
				ctx, cancel := context.WithTimeout(context.Background(), max(f.timeout, time.Second))
				err := f.shared.PutPieces(ctx, names, values)
				cancel()
				if err != nil {
					f.errors.Add(1)
					f.paused.Store(time.Now().Add(sharedPause).UnixNano())
				}
			}
		}
	}
}
