// Package prompt has the words in which a prompt is handed to a tokenizer and its tokens
// come back. These are a text or a Chat, how long to wait, the tokens, and whether they are
// all of them.
//
// A tokenizer implements
//
//	Tokens(ctx context.Context, r prompt.Request) (prompt.Result, error)
//
// as tokenpool.Pool does, and the scorer asks it so. Neither needs the other, and
// nothing here links a library of tokenizers: a program that has tokens already can be built
// without cgo.
//
// The types hold data and do no work. They are as safe for concurrent use as other values.
package prompt
