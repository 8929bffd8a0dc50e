package event

import (
	"errors"
	"fmt"
	"iter"
	"math"

	"github.com/kvatlas/kvatlas/blockkey"
)

// ErrMalformed is wrapped by the errors about messages of which nothing can be
// used.
var ErrMalformed = errors.New("event: not a message of events")

// Limits are what a message may have. A field that is 0 has its default, one below
// 0 allows nothing.
type Limits struct {
	// Payload is the length of a message in bytes, 64 MiB by default.
	Payload int
	// Events are the events of a message, 65,536 by default. Those beyond are
	// skipped.
	Events int
	// Hashes and Tokens are those of one event, 2,097,152 by default: a prompt of
	// two million tokens in pages of one token.
	Hashes, Tokens int
	// Text is the length in bytes of a name: of an adapter, a salt, an object.
	// 4,096 by default.
	Text int
}

func (l Limits) filled() Limits {
	or := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	or(&l.Payload, 64<<20)
	or(&l.Events, 1<<16)
	or(&l.Hashes, 1<<21)
	or(&l.Tokens, 1<<21)
	or(&l.Text, 4096)
	return l
}

// maxRank is the highest rank that is believed.
const maxRank = 1<<16 - 1

// maxSkips is how many skipped events of a message are told one by one.
const maxSkips = 64

// Decoder decodes messages. The zero value is ready. It remembers names it has
// seen, a thousand at most, so that they are not allocated again, and belongs
// to one goroutine.
type Decoder struct {
	// Limits are those of the next message.
	Limits Limits

	cursor
	limits Limits
	batch  *Batch
	words  words
	fields fields // of the event that is being read
	fault  fault  // of the same

	// Of Pushes: what is being read, and the rank of each of its events, -1 for none.
	push    *Push
	ranks   []int
	created int // the rank of the "created" of TensorRT-LLM that the event before was, or none
}

// Decode decodes the payload of a message, [time, [event...], rank], into a Batch
// whose content it replaces and whose memory it uses. The Batch does not refer to
// payload afterwards. An error wraps ErrMalformed and leaves the Batch empty.
func (d *Decoder) Decode(payload []byte, into *Batch) error {
	into.Reset()
	d.limits = d.Limits.filled()
	if len(payload) > d.limits.Payload {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrMalformed, len(payload), d.limits.Payload)
	}
	d.cursor = cursor{b: payload}
	d.batch = into
	err := d.message()
	d.cursor, d.batch, d.fields = cursor{}, nil, fields{}
	if err != nil {
		into.Reset()
	}
	return err
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	clear(b.Events)
	arena := b.arena
	arena.reset()
	*b = Batch{Events: b.Events[:0], Skips: b.Skips[:0], arena: arena}
}

// message reads a payload.
func (d *Decoder) message() error {
	if isMap(d.peek()) {
		return d.messageMap()
	}
	n, ok := d.array()
	if !ok {
		return d.malformed("neither an array nor a map")
	}
	if n < 2 {
		return d.malformed("less than a time and events")
	}
	if err := d.time(); err != nil {
		return err
	}
	if err := d.events(); err != nil {
		return err
	}
	for i := 2; i < n; i++ {
		if i > 2 {
			d.skip()
		} else if err := d.rank(); err != nil {
			return err
		}
	}
	return d.end()
}

// messageMap reads a payload with the names of what it has.
func (d *Decoder) messageMap() error {
	n, _ := d.mapping()
	seen := false
	for range n {
		key, ok := d.text()
		if !ok {
			return d.malformed("a map with keys that are no names")
		}
		var err error
		switch string(key) {
		case "ts", "timestamp":
			err = d.time()
		case "events":
			seen = true
			err = d.events()
		case "data_parallel_rank", "attn_dp_rank", "dp_rank":
			err = d.rank()
		default:
			d.skip()
		}
		if err != nil {
			return err
		}
	}
	if !seen && !d.broken {
		return d.malformed("a map without events")
	}
	return d.end()
}

// time reads the time of a message: seconds in all engines, milliseconds in
// Mooncake. No engine of today sends seconds above 10^11, the year 5138.
func (d *Decoder) time() error {
	if d.null() {
		return nil
	}
	t, ok := d.number()
	if !ok || math.IsNaN(t) || math.IsInf(t, 0) {
		return d.malformed("a time that is no number")
	}
	if t > 1e11 {
		t /= 1000
	}
	d.batch.Time = t
	return nil
}

func (d *Decoder) rank() error {
	if d.null() {
		return nil
	}
	rank, ok := d.natural(maxRank)
	if !ok {
		return d.malformed("a rank that is none")
	}
	d.batch.Rank, d.batch.HasRank = rank, true
	return nil
}

// end is behind the last value of a message.
func (d *Decoder) end() error {
	switch {
	case d.broken:
		return fmt.Errorf("%w: it ends within a value, or has a byte that begins none", ErrMalformed)
	case d.left() > 0:
		return d.malformed("more behind its end")
	}
	return nil
}

func (d *Decoder) malformed(what string) error {
	if d.broken {
		return d.end()
	}
	return fmt.Errorf("%w: %s at byte %d", ErrMalformed, what, d.i)
}

// events reads the events of a message.
func (d *Decoder) events() error {
	n, ok := d.array()
	if !ok {
		return d.malformed("events that are no array")
	}
	for i := range n {
		start := d.i
		if i >= d.limits.Events {
			d.skip()
			d.skipped(i, fault{OverLimit, "events"})
		} else if d.one(); d.fault.reason != 0 && !d.broken {
			d.i = start
			d.skip()
			d.skipped(i, d.fault)
		}
		if d.broken {
			return d.end()
		}
	}
	return nil
}

// skipped records that an event is left out.
func (d *Decoder) skipped(i int, f fault) {
	b := d.batch
	b.Skipped++
	if len(b.Skips) < maxSkips {
		b.Skips = append(b.Skips, Skip{Index: i, Reason: f.reason, Field: f.field})
	}
}

// fault is why an event is left out; the zero value means no fault.
type fault struct {
	reason Reason
	field  string
}

// refuse notes a fault of the event that is being read; the first counts. As with a broken
// cursor a method goes on or not, and who has read the event looks once.
func (d *Decoder) refuse(reason Reason, field string) {
	if d.fault.reason == 0 {
		d.fault = fault{reason, field}
	}
}

// refused reports whether the event is left out, whatever follows.
func (d *Decoder) refused() bool { return d.fault.reason != 0 || d.broken }

// one reads one event. With a fault the cursor is anywhere and the batch as before.
func (d *Decoder) one() {
	b := d.batch
	marks := b.arena.mark()
	events := len(b.Events)
	d.fault = fault{}
	d.event()
	if d.refused() {
		b.arena.release(marks)
		clear(b.Events[events:])
		b.Events = b.Events[:events]
	}
}

// add appends an event to the batch.
func (d *Decoder) add() *Event {
	d.batch.Events = append(d.batch.Events, Event{})
	return &d.batch.Events[len(d.batch.Events)-1]
}

// names reads a map and gives its names, behind each of which the cursor is at the value.
func (d *Decoder) names(field string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		n, ok := d.mapping()
		for ; ok && n > 0; n-- {
			var key []byte
			if key, ok = d.text(); ok && (!yield(key) || d.refused()) {
				return
			}
		}
		if !ok {
			d.refuse(BadField, field)
		}
	}
}

// list reads the head of an array of at most so many values.
func (d *Decoder) list(field string, most int) (n int) {
	switch n, ok := d.array(); {
	case !ok:
		d.refuse(BadField, field)
	case n > most:
		d.refuse(OverLimit, field)
	default:
		return n
	}
	return 0
}

// name reads a text, or nil as "".
func (d *Decoder) name(field string) string {
	s, reason := d.word()
	if reason != 0 {
		d.refuse(reason, field)
	}
	return s
}

// word is name without a field, which returns what is wrong.
func (d *Decoder) word() (string, Reason) {
	if d.null() {
		return "", 0
	}
	switch s, ok := d.text(); {
	case !ok:
		return "", BadField
	case len(s) > d.limits.Text:
		return "", OverLimit
	default:
		return d.words.get(s), 0
	}
}

// whole reads an integer from 0 to most, unless there is nil.
func (d *Decoder) whole(field string, most uint64, to *int) (told bool) {
	if d.null() {
		return false
	}
	v, ok := d.natural(most)
	if !ok {
		d.refuse(BadField, field)
		return false
	}
	*to = v
	return true
}

// hash reads a hash: an integer, the bytes of a digest, or its hex digits.
func (d *Decoder) hash() (Hash, bool) {
	t := d.peek()
	if t == 0xcf && d.left() >= 9 { // what nearly all are
		v, _ := d.size(8)
		return Hash(v), true
	}
	switch {
	case isBytes(t):
		s, ok := d.bytes()
		if !ok || len(s) == 0 || len(s) > maxDigest {
			return 0, false
		}
		var v uint64
		for _, c := range s[max(0, len(s)-8):] {
			v = v<<8 | uint64(c)
		}
		return Hash(v), true
	case isText(t):
		s, ok := d.text()
		if !ok || len(s) == 0 || len(s) > 2*maxDigest {
			return 0, false
		}
		return hexHash(s)
	}
	v, _, ok := d.integer()
	return Hash(v), ok
}

// maxDigest is the length of the longest digest that is taken for a hash.
const maxDigest = 64

// hexHash returns the last 16 of hex digits as a number.
func hexHash(s []byte) (Hash, bool) {
	var v uint64
	for _, c := range s {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		v = v<<4 | uint64(c)
	}
	return Hash(v), true
}

// oneHash reads a hash.
func (d *Decoder) oneHash(field string) Hash {
	h, ok := d.hash()
	if !ok {
		d.refuse(BadField, field)
	}
	return h
}

// hashes reads the hashes of an event.
func (d *Decoder) hashes(field string) []Hash {
	out := d.batch.arena.newHashes(d.list(field, d.limits.Hashes))
	for i := range out {
		var ok bool
		if out[i], ok = d.hash(); !ok {
			d.refuse(BadField, field)
			break
		}
	}
	return out
}

// words are names that were seen.
type words struct {
	m map[string]string
}

// maxWords is how many names are kept before all are forgotten: salts and objects
// come and go.
const maxWords = 1024

// get returns b as a string.
func (w *words) get(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := w.m[string(b)]; ok {
		return s
	}
	if len(w.m) >= maxWords {
		clear(w.m)
	}
	if w.m == nil {
		w.m = make(map[string]string)
	}
	s := string(b)
	if len(s) <= 128 {
		w.m[s] = s
	}
	return s
}

// object returns the object of an identifier. The empty one names none.
func object(id string, offset int) Object {
	hash, _ := blockkey.ObjectHash(id)
	return Object{ID: id, Hash: hash, Offset: offset}
}
