// Package tokenpool turns prompts into the tokens that an engine would see.
//
// A Pool keeps a bounded number of tokenizers in memory and runs a fixed number
// of workers over a bounded queue. It asks a prefixcache.Store first, so that
// no text is tokenized twice. It guarantees:
//
//   - Tokens are those of the model's own tokenizer.json, special tokens
//     included, with the truncation and padding of the file switched off, as
//     engines run it. What is not the whole text's tokens says so
//     (Result.Exact) and why (Result.Behind).
//   - A text that goes on where another ended, as a chat does turn by turn, costs
//     what is new in it, and its tokens are exactly those of the whole: it is cut
//     only where that is certain (package cut).
//   - A failing tokenizer is an error, never an empty or cut answer: texts that
//     the library would cut or replace (NUL, invalid UTF-8) are refused, and so
//     are texts longer than a limit.
//   - One text asked for many times at once is tokenized once; one tokenizer
//     asked for many times at once is loaded once. A caller that goes away
//     takes nothing from the others.
//   - Queue, texts waiting in it, tokenizers, remembered failures and
//     downloads all have a limit in Config. A full queue is reported, not hidden.
//   - Close ends every goroutine that the pool began. A tokenizer that runs
//     cannot be interrupted; MaxTextBytes bounds how long that takes.
//
// Chats are rendered into texts first, with package chat.
//
// Tokenizers come from an Origin: a Directory, the Hub (huggingface.co or a
// mirror of it), or a Chain of them.
//
//	dir, err := tokenpool.NewDirectory("/models")
//	pool, err := tokenpool.New(tokenpool.Config{Origin: dir, Store: lru})
//	defer pool.Close()
//	res, err := pool.Tokens(ctx, tokenpool.Request{Model: "org/model", Text: prompt})
//
// Everything exported is safe for concurrent use.
package tokenpool
