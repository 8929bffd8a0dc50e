// Package chunks says what to ask an index for, so that what LMCache holds of a prompt is
// found. That is chunk keys that are in the index as block keys are, and entries that
// LMCache has written to Redis itself.
//
// A Source is what a scorer takes as its Config.Chunks. It makes the questions of tokens and
// does no I/O; the index answers them along with those for blocks.
package chunks

import (
	"slices"
	"sync"

	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
)

// Source asks for the chunks of prompts. It is safe for concurrent use if Learn is; the
// fields must not change once it is used.
type Source struct {
	// Readers says by the model's name how its engines run LMCache.
	Readers map[string]*lmcache.Reader
	// Learn returns how the engines of a model run LMCache that Readers does not have. It
	// may learn from the prompt; nil is not known, or nothing. It must not keep the tokens.
	Learn func(model string, tokens []uint32) *lmcache.Reader
}

// hashes are for one chain each: *[]lmcache.Hash.
var hashes = sync.Pool{New: func() any { return new([]lmcache.Hash) }}

// AppendQueries implements scorer.Chunks.
func (s *Source) AppendQueries(dst []store.Query, model string, tokens []uint32, covered int) []store.Query {
	reader := s.Readers[model]
	if reader == nil && s.Learn != nil {
		reader = s.Learn(model, tokens)
	}
	if reader == nil {
		return dst
	}
	room := hashes.Get().(*[]lmcache.Hash)
	defer hashes.Put(room)
	for _, g := range reader.Groups() {
		span := g.Hasher.ChunkSize()
		*room = g.Hasher.Append((*room)[:0], tokens[:min(len(tokens), covered+span)])
		chain := (*room)[:min(len(*room), (covered+span-1)/span)]
		if len(chain) == 0 {
			continue
		}
		dst = appendKeys(dst, span, chain)
		for i := range g.Entries {
			dst = appendEntries(dst, span, &g.Entries[i], chain)
		}
	}
	return dst
}

// appendKeys appends the query for the chunk keys of these hashes, unless there is one
// already: two versions of LMCache may hash alike.
func appendKeys(dst []store.Query, span int, chain []lmcache.Hash) []store.Query {
	dst, q := lengthen(dst)
	q.Span, q.Beside = span, nil
	for i := range chain {
		q.Keys = append(q.Keys, chain[i].ChunkKey())
	}
	before := dst[:len(dst)-1]
	for i := range before {
		if other := &before[i]; other.Beside == nil && other.Span == span && slices.Equal(other.Keys, q.Keys) {
			return before
		}
	}
	return dst
}

func appendEntries(dst []store.Query, span int, e *lmcache.Entries, chain []lmcache.Hash) []store.Query {
	dst, q := lengthen(dst)
	q.Span, q.Keys = span, nil
	names, ok := q.Beside.(*lmcache.EntryNames) // of an earlier prompt
	if !ok {
		names = new(lmcache.EntryNames)
		q.Beside = names
	}
	names.Kind, names.Parts = e.Kind, e.Parts
	names.Names = e.AppendNames(names.Names[:0], chain)
	return dst
}

// lengthen lengthens dst by a query without keys, in the memory of one that was there before.
func lengthen(dst []store.Query) ([]store.Query, *store.Query) {
	dst = slices.Grow(dst, 1)[:len(dst)+1]
	q := &dst[len(dst)-1]
	*q = store.Query{Keys: q.Keys[:0], Beside: q.Beside}
	return dst, q
}
