package client_test

import (
	"context"
	"fmt"

	"github.com/kvatlas/kvatlas/client"
)

// A scheduler asks which pod holds the longest prefix of a prompt.
func Example() {
	url, stop, err := newServer() // in production: kvatlas serve
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	c, err := client.New(client.Config{URL: url})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()

	// Engines' events do this; here we say ourselves what a pod holds.
	_, err = c.Blocks(ctx, client.BlocksRequest{
		Op: client.OpAdd, Model: "letters", Pod: "10.0.0.1:8000", Tokens: []uint32{'H', 'e', 'l', 'l', 'o', ' ', 'y', 'o'},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	resp, err := c.Score(ctx, client.ScoreRequest{Model: "letters", Prompt: "Hello you there"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, pod := range resp.Ranking() {
		fmt.Printf("%s holds %d of %d tokens\n", pod, resp.Matched[pod].Tokens, resp.Tokens.Total)
	}
	// Output: 10.0.0.1:8000 holds 8 of 15 tokens
}
