package tokenpool

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/prompt"
)

// slowBytes is from which length on a chat counts as slow to render, in bytes.
const slowBytes = 64 << 10

// slowTokens is from which number on tokens count as slow to turn into text.
const slowTokens = 16 << 10

// turns bound how much of the library runs at a time beside the workers: rendering
// chats, compiling their templates, and turning tokens into text. What may be slow has
// turns of its own, so that it does not hold up the rest.
type turns struct {
	quick, slow chan struct{} // a send takes a turn, a receive gives it back
}

func newTurns(workers int) turns {
	return turns{quick: make(chan struct{}, workers), slow: make(chan struct{}, max(workers/2, 1))}
}

func (t *turns) of(slow bool) chan struct{} {
	if slow {
		return t.slow
	}
	return t.quick
}

// isSlow reports whether a chat may be slow to render: it is long, or its template is
// not the model's.
func (c *chatEntry) isSlow(req *prompt.Chat) bool {
	return req.Size() > slowBytes || c.renderer.Brings(*req)
}

// takeTurn waits for a turn. One that is free is taken even by a caller whose budget is over,
// since the work then goes on behind.
func (p *Pool) takeTurn(ctx context.Context, mode prompt.Mode, turn chan<- struct{}) (prompt.Behind, error) {
	if ctx.Err() != nil {
		if _, err := outOfTime(ctx, mode); err != nil {
			return "", err
		}
	}
	select {
	case turn <- struct{}{}:
		return "", nil
	default:
	}
	select {
	case turn <- struct{}{}:
		return "", nil
	case <-ctx.Done():
		return outOfTime(ctx, mode)
	case <-p.done:
		return "", ErrClosed
	}
}

// outOfTime is what a request ends with whose context has ended.
func outOfTime(ctx context.Context, mode prompt.Mode) (prompt.Behind, error) {
	if err := ctx.Err(); mode == prompt.Sync || !errors.Is(err, context.DeadlineExceeded) {
		return "", fmt.Errorf("tokenpool: %w", err)
	}
	return prompt.BehindBudget, nil
}

// spawn runs f on a goroutine that Close waits for. It reports false after Close.
func (p *Pool) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.wg.Go(f)
	}
	return !p.closed
}
