// Package prefixcache remembers how prompts were tokenized, so that a prompt
// that shares a prefix with an earlier one needs no tokenizer for that part.
//
// Two stores keep the one contract of [Store]:
//
//   - [LRU] cuts texts into chunks, of 256 bytes at first and then of at most
//     1/64 of what stands before. It keeps the tokens of each under a hash that
//     chains over the scope and all chunks before it. It keeps no text. What two
//     texts share is found to the last whole chunk in common.
//   - [Trie] is a radix tree over the bytes of the texts. It finds what two
//     texts share to the byte, and keeps the texts for that.
//
// Trie finds more and is quicker, LRU takes less memory and keeps no prompt's
// text. CPU time of one core on a loaded 2-core machine, and memory for text of
// 4.5 bytes a token that shares nothing:
//
//	                              LRU       Trie
//	Find, 8 KB, all known         4 us      0.5 us
//	Find, 131,072 tokens, 590 KB  0.08 ms   0.05 ms
//	Put of 590 KB, all new        4 ms      2 ms
//	memory, text of 8 KB          7.7       10.6 bytes a token
//	        text of 590 KB        5.0       10.6
//
// # What Find promises
//
// A token belongs to the prefix of a text that holds the byte at which the
// token ends. For a matched prefix of n bytes, Find takes one text that was put
// and that begins with these n bytes. It gives exactly its leading tokens whose
// ends are n or less: never a token more, never one less, never a mix of two
// tokenizations. Tokens that share one character's span come together or not at
// all. (Of a character that takes several tokens all end where it ends.)
// Special tokens that the tokenizer puts before the text (end 0) come with
// every match. Those that it puts behind the text (end 0 again) come only when
// the text as a whole is known. A text none of whose tokens says where it ends
// is known as a whole or not at all.
//
// That is a promise about the store, not about the tokenizer. The tokenization
// of a prefix is not always a prefix of the tokenization. For example, "foo ba"
// may be [foo][ ba] while "foo bar" is [foo][ bar]. A text that goes on behind
// a match may turn the last tokens given into others. Only Match.Whole says
// that the tokens are those that the tokenizer gives for the text; what to make
// of the others is the caller's choice. For the same reason two texts may
// disagree about the tokens of the bytes they share. Such a text is kept as a
// correction to the one that came first ("take back so many tokens, then add
// these"). So both are given back unharmed. And a tokenizer that trims the
// spaces off its offsets, as RoBERTa's does, has tokens that reach further than
// they say. Its partial matches are a little less sure.
//
// # Limits
//
// Config.MaxBytes bounds what a store takes, bookkeeping included; it is never
// exceeded, not for a moment. Room is made by recency (second chance). A read
// marks what it used, and the oldest entry that was not read since it was last
// looked at goes first. A mark is a flag that is written once, so a hot prefix
// is read without a write. Of one text the end goes before the beginning,
// because an entry is of use only together with all before it.
//
// # Tokens are kept as plain uint32
//
// Copying is by far the fastest way to give 131,072 tokens back. Measured with
// Llama 3 ids in chunks of 57 tokens, best of eight runs side by side on a
// loaded 2-core machine (BenchmarkUnpack):
//
//	form            bytes a token   131,072 tokens
//	uint32          4               0.08 ms
//	three bytes     3               0.41 ms
//	varint          2.2             4.5 ms
//
// Three bytes instead of four would make an LRU chunk smaller by an eighth, of
// long texts by a fifth. They would use up half of the millisecond that a hit on
// such a prompt may take.
package prefixcache
