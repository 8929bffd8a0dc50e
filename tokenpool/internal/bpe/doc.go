// Package bpe tokenizes to the tokens of Hugging Face's tokenizers, at a tenth of their cost
// or less. It does BPE over bytes, as most models that are served today do. It also does
// SentencePiece's BPE over characters, as Llama 2 and Gemma do.
//
// Read reads a tokenizer.json and refuses everything that it does not do in exactly the same way. It
// refuses another model than BPE, and an expression that is not one of those in patterns. It refuses
// normalization other than NFC or spaces that are written as U+2581, and added tokens that must be words.
// Its user keeps the reference beside it all the same, and proves with Check that both agree before it
// trusts this one.
//
// A text is tokenized in four steps. Added tokens are found in it (added.go), and what is
// between them is split into words (split.go). Matchers written by hand for each
// expression split it. Their table of Unicode classes was read out of the reference's own
// expression engine (classes.go). The tokens of a word come from a cache (words.go), or
// by merging its bytes (merge.go). SentencePiece's BPE has no expression, so a text is
// one word. It is cut where no token of the vocabulary reaches over (chars.go), with
// spaces as that family writes them (spaces.go). Nothing here is unsafe, starts a
// goroutine, or keeps more memory than New has said.
package bpe
