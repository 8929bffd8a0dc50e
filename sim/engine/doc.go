// Package engine is the core of a simulated inference engine. It does what vLLM, SGLang
// and TensorRT-LLM do with a prefix cache, and knows how long a batch takes. It has no
// model, clock, socket or goroutine.
//
// An [Engine] lives in virtual time: the caller says what time it is and learns when something happens next.
// So a server can run it at the speed of the day and a simulation of a trace as fast as the machine allows.
// The same calls with the same times give the same outputs and the same events.
//
//	e, _ := engine.New(engine.Config{Kind: engine.VLLM})
//	e.Submit(0, engine.Request{ID: 1, Tokens: prompt, Output: []uint32{7, 8}})
//	for at, ok := e.Due(); ok; at, ok = e.Due() {
//		var r engine.Report
//		e.Advance(at, &r) // tokens that were made, and the events of the cache
//	}
//
// # What is the engine's
//
// Each engine has its own chain of hashes, reuse of prompts, and time when a block enters the cache. The
// order in which blocks leave it, and what is told of it, are its own too:
//
//   - vLLM: blocks of a pool; a block is cached when a step has room for it, before it is
//     computed; two requests may hold copies of one block, and each is told; at least a
//     prompt's last token is computed, so its last block is. A window beside full
//     attention is a second group of blocks. Offloading copies each block to the host.
//   - SGLang: a radix tree of pages; a page enters it when a chunk of a prompt is
//     computed, pages of answers when the request ends; whole nodes are evicted, the
//     least recently used leaf first. HiCache copies each page to the host.
//   - TensorRT-LLM: a tree of blocks; those of a prompt enter it when all of the prompt
//     is computed; the least recently used block moves to the host, and leaves the tree
//     when there is no room. A request is admitted when all that it may become has room.
//     Partial reuse (of a part of a block) is off.
//
// Of how a batch is made they share one form. It is first come first served, decoding
// before chunks of prompts, up to so many tokens and requests an iteration.
//
// An Engine is for one goroutine at a time.
package engine
