package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

const (
	// Version is the version of the format that this package writes and reads.
	Version = 1
	// Schema is the version of what store keys are.
	Schema = 1

	// MaxLine is the longest line in bytes, its end included.
	MaxLine = 1 << 20
	// maxPageKeys and maxPageHolders are how many blocks the lines of a page can
	// have together, and how many holders: a page is read into memory.
	maxPageKeys    = 4 * store.MaxPage
	maxPageHolders = 1 << 24

	// lineKeys and lineHolders are how many blocks and how many holders a line
	// has that this package writes.
	lineKeys    = 1024
	lineHolders = 16384

	// What the header and the end have as kvatlas.
	kvatlasDump = "dump"
	kvatlasEnd  = "end"
)

// Kind is what a line says.
type Kind uint8

// The kinds of lines.
const (
	// KindHeader begins a segment.
	KindHeader Kind = iota + 1
	// KindModel gives the settings of a model.
	KindModel
	// KindPod gives the registration of a pod.
	KindPod
	// KindHolder says whose an id is.
	KindHolder
	// KindSeq says up to where a rank's events had been applied.
	KindSeq
	// KindBlocks gives blocks that are held by the same holders.
	KindBlocks
	// KindPage ends a page.
	KindPage
	// KindEnd ends a segment.
	KindEnd
)

// Header is the first line of a segment.
type Header struct {
	// Kvatlas is "dump".
	Kvatlas string `json:"kvatlas"`
	// Version is that of the format, Schema that of the store keys, Partitions
	// the number of partitions.
	Version    int `json:"version"`
	Schema     int `json:"schema"`
	Partitions int `json:"partitions"`
	// Created is when the segment was begun, by its writer's clock.
	Created time.Time `json:"created"`
	// Epoch is the registry's epoch then.
	Epoch uint64 `json:"epoch"`
	// TrueAt is the moment from which on changes must be played again for an
	// exact picture.
	TrueAt TrueAt `json:"true_at"`
	// Model and Pod are what the dump is limited to; empty is all.
	Model string `json:"model,omitempty"`
	Pod   string `json:"pod,omitempty"`
	// After is the cursor that the segment goes on from; empty is the beginning.
	After string `json:"after,omitempty"`
}

// TrueAt is a moment of an index: all that was held before it and is held still
// is in the dump.
type TrueAt struct {
	// Time is the moment by the clock, Epoch by the registry's epoch.
	Time  time.Time `json:"time"`
	Epoch uint64    `json:"epoch"`
	// Logs has the id of the last entry that each log of changes had then, by the
	// name of its stream, where there are logs. A reader of the dump that goes on
	// behind them misses nothing.
	Logs map[string]string `json:"logs,omitempty"`
}

// Holder is whose an id is.
type Holder struct {
	ID   store.HolderID `json:"id"`
	Pod  string         `json:"pod"`
	Rank int            `json:"rank"`
	// Tier may be a window tier.
	Tier string `json:"tier"`
	// EngineBlock and Window are what is known of the rank's engine: see store.Reuse.
	EngineBlock int `json:"engine_block,omitempty"`
	Window      int `json:"window,omitempty"`
}

func (h *Holder) reuse() store.Reuse { return store.Reuse{Block: h.EngineBlock, Window: h.Window} }

// Seq is up to where the events of a rank had been applied when the dump began.
type Seq struct {
	Pod  string `json:"pod"`
	Rank int    `json:"rank"`
	// Generation is that of the rank in the index that was dumped. Seq is the
	// sequence up to which all of its batches had been applied wholly.
	Generation store.Generation `json:"generation"`
	Seq        uint64           `json:"seq"`
}

// PageEnd is the last line of a page.
type PageEnd struct {
	// Page is the number of the page in its segment, from 1.
	Page int `json:"page"`
	// Blocks is how many blocks its lines have.
	Blocks int `json:"blocks"`
	// Sum is the sum of all lines of the segment before this one.
	Sum Sum `json:"sum"`
	// Next is the cursor that a dump goes on from; empty after the last page.
	Next string `json:"next"`
}

// End is the last line of a segment.
type End struct {
	// Kvatlas is "end".
	Kvatlas string `json:"kvatlas"`
	// Models, Pods, Holders, Blocks and Pages are how many of each the segment
	// has.
	Models  int   `json:"models"`
	Pods    int   `json:"pods"`
	Holders int   `json:"holders"`
	Blocks  int64 `json:"blocks"`
	Pages   int   `json:"pages"`
	// Sum is the sum of all lines of the segment before this one.
	Sum Sum `json:"sum"`
	// Next is the cursor that a dump goes on from that was limited to some pages;
	// empty when it is complete.
	Next string `json:"next"`
}

// Sum is an XXH3-64, as 16 hex digits in JSON.
type Sum uint64

// MarshalJSON implements json.Marshaler.
func (s Sum) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, 18), '"')
	return append(blockkey.Key(s).AppendText(b), '"'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Sum) UnmarshalJSON(b []byte) error {
	if len(b) == 18 && b[0] == '"' {
		if k, ok := parseHex(b[1:17]); ok {
			*s = Sum(k)
			return nil
		}
	}
	return fmt.Errorf("a sum is a string of 16 hex digits, not %s", clip(b))
}

// Line is one line of a dump. Only what belongs to its Kind is set. The slices
// are valid until the next line is read.
type Line struct {
	Kind   Kind
	Raw    []byte // the line itself, its end included
	Header Header
	Model  store.ModelInfo
	Pod    store.Pod
	Holder Holder
	Seq    Seq
	// Keys are the blocks and Holders their holders.
	Keys    []blockkey.StoreKey
	Holders []store.HolderID
	Page    PageEnd
	End     End

	failed bool // it is the server's word that it cannot go on
}

// wire is every line in its JSON form. Each has the fields of one kind.
type wire struct {
	Model  *store.ModelInfo `json:"model"`
	Pod    *store.Pod       `json:"pod"`
	Holder *Holder          `json:"holder"`
	Seq    *Seq             `json:"seq"`
	Error  *failure         `json:"error"`
	K      []string         `json:"k"`
	H      []store.HolderID `json:"h"`
}

// failure is what a server says that cannot go on with a dump.
type failure struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
}

// parse reads a line.
func (l *Line) parse(raw []byte) error {
	keys, holders := l.Keys[:0], l.Holders[:0]
	*l = Line{Raw: raw, Keys: keys, Holders: holders}
	text := bytes.TrimRight(raw, "\r\n")
	if bytes.HasPrefix(text, []byte(`{"k":[`)) && l.parseBlocks(text) {
		return nil
	}
	l.Keys, l.Holders = keys, holders
	if len(bytes.TrimSpace(text)) == 0 {
		return errors.New("it is empty")
	}
	var probe struct {
		Kvatlas string           `json:"kvatlas"`
		Page    *json.RawMessage `json:"page"`
	}
	if err := decode(text, &probe, false); err != nil {
		return err
	}
	switch {
	case probe.Kvatlas == kvatlasDump:
		l.Kind = KindHeader
		return decode(text, &l.Header, false)
	case probe.Kvatlas == kvatlasEnd:
		l.Kind = KindEnd
		return decode(text, &l.End, true)
	case probe.Page != nil:
		l.Kind = KindPage
		return decode(text, &l.Page, true)
	}
	var w wire
	if err := decode(text, &w, true); err != nil {
		return err
	}
	kinds := 0
	for _, k := range []struct {
		is   bool
		kind Kind
	}{
		{w.Model != nil, KindModel}, {w.Pod != nil, KindPod}, {w.Holder != nil, KindHolder}, {w.Seq != nil, KindSeq},
		{w.K != nil || w.H != nil, KindBlocks}, {w.Error != nil, 0},
	} {
		if k.is {
			l.Kind = k.kind
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return fmt.Errorf("it is not one of the lines of a dump: %s", clip(text))
	case w.Model != nil:
		l.Model = *w.Model
		return plainly(l.Model.Validate())
	case w.Pod != nil:
		l.Pod = *w.Pod
		return plainly(l.Pod.Validate())
	case w.Holder != nil:
		l.Holder = *w.Holder
		return plainly(l.Holder.validate())
	case w.Seq != nil:
		l.Seq = *w.Seq
		return plainly(l.Seq.validate())
	case w.Error != nil:
		l.failed = true
		return fmt.Errorf("the server could not go on: %s: %s", printable(w.Error.Code), printable(w.Error.Message))
	}
	for i, k := range w.K {
		key, ok := parseHex([]byte(k))
		if !ok || len(k) != 16 {
			return fmt.Errorf("k[%d] is %q, a key has 16 hex digits", i, clip([]byte(k)))
		}
		l.Keys = append(l.Keys, key)
	}
	l.Holders = append(l.Holders, w.H...)
	return nil
}

// plainly leaves out of an error what every error of this kind begins with.
func plainly(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.TrimPrefix(err.Error(), store.ErrInvalid.Error()+": "))
}

// parseBlocks reads a line of blocks in the form in which they are written. It
// is false for any other, which may be a right one all the same.
func (l *Line) parseBlocks(b []byte) bool {
	l.Kind = KindBlocks
	b = b[len(`{"k":[`):]
	for {
		if len(b) < 19 || b[0] != '"' || b[17] != '"' {
			return false
		}
		k, ok := parseHex(b[1:17])
		if !ok {
			return false
		}
		l.Keys = append(l.Keys, k)
		sep := b[18]
		b = b[19:]
		if sep == ']' {
			break
		}
		if sep != ',' {
			return false
		}
	}
	b, ok := bytes.CutPrefix(b, []byte(`,"h":[`))
	if !ok {
		return false
	}
	n, digits := uint64(0), 0
	for i, c := range b {
		switch {
		case c-'0' < 10 && (digits == 0 || n > 0) && digits < 10:
			n = n*10 + uint64(c-'0')
			digits++
		case (c == ',' || c == ']') && digits > 0 && n <= math.MaxUint32:
			l.Holders = append(l.Holders, store.HolderID(n))
			if c == ']' {
				return string(b[i:]) == "]}"
			}
			n, digits = 0, 0
		default:
			return false
		}
	}
	return false
}

// parseHex reads hex digits, 16 at most.
func parseHex(b []byte) (k blockkey.StoreKey, ok bool) {
	for _, c := range b {
		d := c - '0'
		switch {
		case d < 10:
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			d = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		k = k<<4 | blockkey.StoreKey(d)
	}
	return k, true
}

func decode(text []byte, into any, strict bool) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	if rest := text[d.InputOffset():]; len(bytes.TrimSpace(rest)) > 0 {
		return fmt.Errorf("there is more behind its end: %s", clip(bytes.TrimSpace(rest)))
	}
	return nil
}

func (h *Holder) validate() error {
	if err := store.CheckPodName(h.Pod); err != nil {
		return err
	}
	if _, err := store.ParseHolderTier(h.Tier); err != nil {
		return err
	}
	if err := h.reuse().Validate(); err != nil {
		return err
	}
	if h.Rank < 0 || h.Rank >= store.MaxRanks {
		return fmt.Errorf("rank is %d, it can be 0 to %d", h.Rank, store.MaxRanks-1)
	}
	if h.ID == 0 {
		return fmt.Errorf("the id of a holder is 0, ids begin at 1")
	}
	return nil
}

func (q *Seq) validate() error {
	if err := store.CheckPodName(q.Pod); err != nil {
		return err
	}
	switch {
	case q.Rank < 0 || q.Rank >= store.MaxRanks:
		return fmt.Errorf("rank is %d, it can be 0 to %d", q.Rank, store.MaxRanks-1)
	case q.Generation == 0:
		return errors.New("the generation is 0, which is none")
	case q.Seq > store.MaxSequence:
		return fmt.Errorf("seq is %d, it can be 0 to %d", q.Seq, uint64(store.MaxSequence))
	}
	return nil
}

// validate reports whether this package can read the segment.
func (h *Header) validate() error {
	switch {
	case h.Version != Version:
		return fmt.Errorf("%w: version %d of the format, this program reads %d", ErrVersion, h.Version, Version)
	case h.Schema != Schema || h.Partitions != blockkey.Partitions:
		return fmt.Errorf("%w: store keys of schema %d in %d partitions, this program has schema %d in %d", ErrVersion, h.Schema, h.Partitions, Schema, blockkey.Partitions)
	}
	return nil
}

// appendBlocks appends lines that say that these holders hold these blocks.
func appendBlocks(b []byte, keys []blockkey.StoreKey, holders []store.HolderID) []byte {
	for len(keys) > 0 {
		part := keys[:min(len(keys), lineKeys)]
		keys = keys[len(part):]
		for hs := holders; len(hs) > 0; {
			some := hs[:min(len(hs), lineHolders)]
			hs = hs[len(some):]
			b = append(b, `{"k":[`...)
			for i, k := range part {
				if i > 0 {
					b = append(b, ',')
				}
				b = append(b, '"')
				b = append(blockkey.Key(k).AppendText(b), '"')
			}
			b = append(b, `],"h":[`...)
			for i, h := range some {
				if i > 0 {
					b = append(b, ',')
				}
				b = strconv.AppendUint(b, uint64(h), 10)
			}
			b = append(b, "]}\n"...)
		}
	}
	return b
}

// clip keeps a refused text readable in a message.
func clip(b []byte) string {
	const limit = 64
	if len(b) > limit {
		return printable(string(b[:limit])) + "..."
	}
	return printable(string(b))
}

// printable keeps what a file says from steering a terminal.
func printable(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}
