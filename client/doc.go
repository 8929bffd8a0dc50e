// Package client is the Go client of kvatlas's HTTP API.
//
//	c, err := client.New(client.Config{URL: "http://127.0.0.1:8080"})
//	...
//	resp, err := c.Score(ctx, client.ScoreRequest{Model: "meta-llama/Meta-Llama-3-8B-Instruct", Prompt: "Hello"})
//	fmt.Println(resp.Best)
//
// It guarantees:
//
//   - Every call ends within Config.Timeout, or sooner when its context does. A
//     dump or a restore, which may be long, ends when nothing has moved for so
//     long.
//   - A refusal by the server is a *Error, with the server's own code, message
//     and parameter; anything else is a fault on the way, and wraps the
//     cause. Nothing is retried: the caller knows what a second try may cost
//     and has Error.RetryAfter to time it by.
//   - A response is read to its end, so that connections are used again, and
//     no further than Config.MaxResponseBytes; a dump is its reader's to bound.
//   - Tokens travel packed (tokens_b64), which costs the server a small part
//     of what a JSON array does.
//
// A Client is safe for concurrent use, starts no goroutine of its own and
// writes no log.
package client
