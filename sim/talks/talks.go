// Package talks has conversations to try engines with: recorded ones, without their texts.
// The README beside it names their source.
package talks

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
)

//go:embed conversations.json
var recorded []byte

// blockSize is how many tokens the record's blocks have.
const blockSize = 64

// Turn is one of a conversation.
type Turn struct {
	// Think is how long it comes after the answer to the last one.
	Think time.Duration
	// Output is how many tokens the answer has.
	Output int

	tokens int
	// blocks are the full blocks of the prompt by number, of which the first common are of
	// other conversations, too.
	blocks []uint64
	common int
	tail   uint64
}

// Conversation is a list of turns. The prompt of each has nearly all of the one before.
type Conversation []Turn

// Recorded returns the conversations of the record.
func Recorded() []Conversation {
	var rows [][7]int
	if err := json.Unmarshal(recorded, &rows); err != nil {
		panic(fmt.Sprintf("talks: the embedded record: %v", err))
	}
	var (
		out  []Conversation
		all  = make([][]uint64, 0, len(rows))
		next uint64
	)
	for _, r := range rows {
		session, like, shared, common, prompt, answer, think := r[0], r[1], r[2], r[3], r[4], r[5], r[6]
		blocks := make([]uint64, prompt/blockSize)
		if shared > 0 {
			copy(blocks, all[like][:shared])
		}
		for i := shared; i < len(blocks); i++ {
			next++
			blocks[i] = next
		}
		next++
		all = append(all, blocks)
		if session == len(out) {
			out = append(out, nil)
		}
		out[session] = append(out[session], Turn{
			Think: time.Duration(think) * time.Millisecond, Output: answer, tokens: prompt, blocks: blocks, common: common, tail: next,
		})
	}
	return out
}

// Tokens is how many tokens the prompt has.
func (t *Turn) Tokens() int { return t.tokens }

// Prompt returns the prompt's tokens. Those of a conversation are the same whenever it is
// had in one round; in another round it shares with it what conversations share.
func (t *Turn) Prompt(round uint64) []uint32 {
	out := make([]uint32, 0, t.tokens)
	for i, b := range t.blocks {
		r := round
		if i < t.common {
			r = 0
		}
		out = AppendTokens(out, b, r, blockSize)
	}
	return AppendTokens(out, t.tail, round, t.tokens-len(out))
}

// vocabulary is how many different tokens there are.
const vocabulary = 100_000

// AppendTokens appends n tokens that follow from a block's number and a round.
func AppendTokens(out []uint32, block, round uint64, n int) []uint32 {
	rng := rand.NewPCG(block, round)
	for range n {
		out = append(out, uint32(rng.Uint64()%vocabulary))
	}
	return out
}
