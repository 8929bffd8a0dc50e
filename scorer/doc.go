// Package scorer ranks pods by how much of a prompt's KV cache they hold.
//
// A Scorer runs one pipeline: prompt -> tokens -> block keys -> index lookup
// -> fold -> Match -> ranking. The index and the tokenizer are given to it, so it
// works in any process, with no HTTP and no Redis of its own. A scheduler can embed it
// (see the example). The fold and the ranking are pure functions of what the index
// answers; time is passed in.
//
//	s, err := scorer.New(scorer.Config{Index: index, Tokenizer: pool})
//	...
//	resp, err := s.Score(ctx, scorer.Request{Model: "m", Input: scorer.Prompt("Hello")})
//	fmt.Println(resp.Best)
//
// An answer is always given within the budgets of the configuration. What a
// fault or a budget cut off is missing credit, never false credit, and
// Response.Degraded says so.
//
// Config.Chunks adds what another cache, such as LMCache, holds in chunks of its own. It is
// asked for in the same lookup and joined with the blocks by tokens (join.go).
//
// Nothing here, nor in the packages that it imports, needs cgo. A program that has tokens already builds
// with CGO_ENABLED=0. Package tokenpool, which makes tokens of texts, needs it.
//
// A Scorer is safe for concurrent use. Its methods allocate per pod and per
// request, never per block.
package scorer
