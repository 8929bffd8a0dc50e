package prefixcache

// Store finds the tokens of the longest prefix of a text that has been
// tokenized before. LRU and Trie implement it. All methods are safe for
// concurrent use.
//
// A scope separates what must never mix: one string per (model, tokenizer
// revision, special tokens or not). The same text under two scopes is two
// texts.
type Store interface {
	// Put remembers that text tokenizes to tokens. Each ends[i] is the byte
	// offset in text at which tokens[i] ends, as the tokenizer reports it, and
	// ends is as long as tokens. Put copies what it keeps. It refuses, with an
	// error and without keeping anything, what it could not give back rightly.
	Put(scope, text string, tokens []uint32, ends []int) error

	// Find appends to dst the tokens of the longest known prefix of text.
	Find(dst []uint32, scope, text string) Match

	// Stats returns figures for metrics.
	Stats() Stats

	// Purge forgets everything.
	Purge()
}

// Match is what Find found.
type Match struct {
	// Tokens is dst with the tokens appended.
	Tokens []uint32
	// Bytes is the length of the matched prefix: no token given ends beyond it.
	Bytes int
	// Whole says that the text as a whole has been put before. Tokens are then
	// exactly the tokens of the whole text, with those special tokens that the
	// tokenizer puts behind it.
	Whole bool
}

// Stats are figures about a store. Counters run since it was made.
type Stats struct {
	// Entries is the number of chunks or nodes, Bytes what they take, keys and
	// bookkeeping included; MaxBytes is the limit.
	Entries, Bytes, MaxBytes int64
	// Evicted counts entries dropped to stay below the limit.
	Evicted uint64
	// Whole, Partial and Miss count Find calls by what they found.
	Whole, Partial, Miss uint64
	// Refused counts Put calls that returned an error.
	Refused uint64
}
