package trial

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/kvatlas/kvatlas/sim/talks"
)

// Turn is a request.
type Turn struct {
	// Think is how long it comes after the last token of the turn before it.
	Think time.Duration
	// Output is how many tokens the answer has.
	Output int
	// Prompt makes the prompt's tokens, the same with each call.
	Prompt func() []uint32
}

// Talk is a list of turns, each of which comes when the one before it has ended.
type Talk struct {
	// At is when the first one comes, where talks are not bound by how many go on at a time.
	At    time.Duration
	Turns []Turn
}

// Work is what a trial has engines do.
type Work struct {
	Talks []Talk
	// Together, if above 0, is how many talks go on at a time: the next one begins when one
	// ends, in the order of Talks. Otherwise each begins at its time.
	Together int
}

// Shuffle puts the talks into an order that the seed makes.
func (w *Work) Shuffle(seed uint64) {
	shuffled := make([]Talk, len(w.Talks))
	for i, k := range rand.New(rand.NewPCG(seed, 9)).Perm(len(w.Talks)) {
		shuffled[i] = w.Talks[k]
	}
	w.Talks = shuffled
}

// Recorded returns the recorded conversations as talks. Each ends before its first turn of
// which prompt and answer have more tokens than room.
func Recorded(room int) (out []Talk) {
	for _, c := range talks.Recorded() {
		var t Talk
		for i := range c {
			turn := &c[i]
			if turn.Tokens()+turn.Output > room {
				break
			}
			t.Turns = append(t.Turns, Turn{Think: turn.Think, Output: turn.Output, Prompt: func() []uint32 { return turn.Prompt(1) }})
		}
		if len(t.Turns) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// ErrTrace says that a trace cannot be read.
var ErrTrace = errors.New("trial: wrong trace")

// The bounds of a trace.
const (
	maxTraceLine   = 1 << 20
	maxTraceTokens = 1 << 24
	maxTraceRows   = 1 << 20
)

// ReadTrace reads a trace of Mooncake's form. Each line is a JSON object with timestamp in
// ms, input_length and output_length in tokens. Its hash_ids has the prompt's blocks of
// blockSize tokens, where an id stands for a block and all before it. Rows with one
// session_id are a talk, whose turns come think_ms after each other; other rows are talks of
// their own. Times are multiplied by scale. A row that needs more than room tokens is left
// out, with the rest of its talk. The error is ErrTrace.
func ReadTrace(r io.Reader, blockSize, room int, scale float64) ([]Talk, error) {
	var (
		out      []Talk
		sessions = map[string]int{}
		full     = map[string]bool{}
	)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxTraceLine)
	for n := 1; lines.Scan(); n++ {
		var row struct {
			Timestamp float64  `json:"timestamp"`
			Input     int      `json:"input_length"`
			Output    int      `json:"output_length"`
			Blocks    []uint64 `json:"hash_ids"`
			Session   string   `json:"session_id"`
			Think     float64  `json:"think_ms"`
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrTrace, n, err)
		}
		if row.Input < 1 || row.Input > maxTraceTokens || row.Output < 0 || row.Output > maxTraceTokens || len(row.Blocks) < row.Input/blockSize || n > maxTraceRows {
			return nil, fmt.Errorf("%w: line %d: %d blocks of %d tokens, %d tokens, %d of output", ErrTrace, n, len(row.Blocks), blockSize, row.Input, row.Output)
		}
		output := max(1, row.Output)
		if full[row.Session] || row.Input+output > room {
			full[row.Session] = row.Session != ""
			continue
		}
		line := uint64(n)
		turn := Turn{
			Think: time.Duration(row.Think * scale * float64(time.Millisecond)), Output: output,
			Prompt: func() []uint32 { return tracePrompt(row.Blocks, row.Input, blockSize, line) },
		}
		if i, ok := sessions[row.Session]; ok && row.Session != "" {
			out[i].Turns = append(out[i].Turns, turn)
			continue
		}
		sessions[row.Session] = len(out)
		turn.Think = 0
		out = append(out, Talk{At: time.Duration(row.Timestamp * scale * float64(time.Millisecond)), Turns: []Turn{turn}})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTrace, err)
	}
	return out, nil
}

// tracePrompt makes the tokens of a row: those of a full block follow from its id, those
// behind them from the row's line.
func tracePrompt(blocks []uint64, tokens, blockSize int, line uint64) []uint32 {
	out := make([]uint32, 0, tokens)
	for i := range tokens / blockSize {
		out = talks.AppendTokens(out, blocks[i], 0, blockSize)
	}
	return talks.AppendTokens(out, line, 1, tokens-len(out))
}
