package tokenpool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// TestStress asks for many texts in all ways at once of a pool in which
// everything is scarce. It replaces tokenizers meanwhile, and closes the pool in
// the middle. All answers must be right, all errors expected, and everything
// given back (fakes.check, goleak).
func TestStress(t *testing.T) {
	for _, s := range stores() {
		t.Run(s.name, func(t *testing.T) {
			f := newFakes(t)
			f.took, f.slow = 50*time.Microsecond, 200*time.Microsecond
			var models []string
			for i := range 6 {
				models = append(models, fmt.Sprint("m", i))
				f.put(models[i], "1")
			}
			f.put("broken", "bad")
			models = append(models, "broken", "unknown", "../bad")
			p := f.pool(Config{
				Workers: 3, Queue: 8, QueueBytes: 4000, MaxTextBytes: 2000, MaxTokenizers: 2, Store: s.open(t),
				FailureTTL: time.Millisecond, Recheck: time.Millisecond, Budget: time.Millisecond,
			})
			const goroutines, requests = 32, 150
			var exact, partial, failed, asked atomic.Int64
			var wg sync.WaitGroup
			for g := range goroutines {
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(g), 1))
					for range requests {
						if asked.Add(1) == goroutines*requests*3/4 {
							wg.Go(func() { _ = p.Close() })
						}
						req := prompt.Request{
							Model:           models[rnd.IntN(len(models))],
							Text:            stressText(rnd),
							NoSpecialTokens: rnd.IntN(2) == 0,
							Mode:            prompt.Mode(rnd.IntN(3)),
						}
						ctx, cancel := t.Context(), context.CancelFunc(func() {})
						switch rnd.IntN(4) {
						case 0:
							ctx, cancel = context.WithTimeout(ctx, time.Duration(rnd.IntN(2000))*time.Microsecond)
						case 1:
							ctx, cancel = context.WithCancel(ctx)
							time.AfterFunc(time.Duration(rnd.IntN(2000))*time.Microsecond, cancel)
						}
						res, err := p.Tokens(ctx, req)
						cancel()
						switch {
						case err != nil:
							failed.Add(1)
							expected(t, req, err)
						case res.Exact:
							exact.Add(1)
							rightTokens(t, req, res)
						default:
							partial.Add(1)
							rightPrefix(t, req, res)
						}
						if rnd.IntN(50) == 0 {
							f.put(models[rnd.IntN(3)], fmt.Sprint(1+rnd.IntN(2)))
						}
						if rnd.IntN(50) == 0 {
							_, _ = p.Stats(), p.Models()
						}
					}
				})
			}
			wg.Wait()
			if n := f.maxLive.Load(); n > 2 {
				t.Errorf("%d tokenizers were in memory, want at most 2", n)
			}
			if exact.Load() == 0 || partial.Load() == 0 || failed.Load() == 0 {
				t.Errorf("one-sided: %d exact, %d partial, %d failed", exact.Load(), partial.Load(), failed.Load())
			}
			t.Logf("%d exact, %d partial, %d failed; %+v", exact.Load(), partial.Load(), failed.Load(), p.Stats())
		})
	}
}

// stressText is one of a few hundred texts, some of which cannot be tokenized.
func stressText(rnd *rand.Rand) string {
	switch rnd.IntN(40) {
	case 0:
		return ""
	case 1:
		return "nul\x00"
	case 2:
		return "bad \xff"
	case 3:
		return strings.Repeat("x", 2001)
	case 4:
		return "fails!"
	case 5:
		return "..."
	case 6:
		return strings.Repeat("y", 1900+rnd.IntN(100))
	}
	return strings.Repeat("common ", rnd.IntN(100)) + fmt.Sprint(rnd.IntN(3))
}

// expected checks that an error is one that may come of the request.
func expected(t *testing.T, req prompt.Request, err error) {
	t.Helper()
	may := []error{ErrClosed, context.Canceled}
	if req.Mode == prompt.Sync {
		may = append(may, context.DeadlineExceeded)
	}
	switch {
	case len(req.Text) > 2000:
		may = append(may, ErrTooLong)
	case strings.Contains(req.Text, "\x00"), strings.HasPrefix(req.Text, "bad"):
		may = append(may, ErrInvalidText)
	case strings.Contains(req.Text, "!"):
		may = append(may, ErrTokenizer)
	}
	switch req.Model {
	case "broken":
		may = append(may, tokenfile.ErrLoad)
	case "unknown", "../bad":
		may = append(may, ErrUnknownModel)
	}
	if !slices.ContainsFunc(may, func(e error) bool { return errors.Is(err, e) }) {
		t.Errorf("model %s, mode %d, text of %d bytes: %v", req.Model, req.Mode, len(req.Text), err)
	}
}

// rightTokens checks that tokens are those of one version of the tokenizer, and
// of the whole text.
func rightTokens(t *testing.T, req prompt.Request, res prompt.Result) {
	t.Helper()
	for _, content := range []string{"1", "2"} {
		ids, _ := fakeTokens(req.Text, !req.NoSpecialTokens, content)
		if slices.Equal(ids, res.Tokens) && res.Bytes == len(req.Text) && res.Behind == "" {
			return
		}
	}
	t.Errorf("model %s, text of %d bytes: %d wrong tokens", req.Model, len(req.Text), len(res.Tokens))
}

// rightPrefix checks that tokens are a prefix of those of one version.
func rightPrefix(t *testing.T, req prompt.Request, res prompt.Result) {
	t.Helper()
	if res.Behind == "" || res.Bytes > len(req.Text) || (len(res.Tokens) == 0) != (res.Source == prompt.FromNowhere) {
		t.Errorf("%d tokens from %q, %d of %d bytes, behind %q", len(res.Tokens), res.Source, res.Bytes, len(req.Text), res.Behind)
	}
	for _, content := range []string{"1", "2"} {
		ids, _ := fakeTokens(req.Text, !req.NoSpecialTokens, content)
		if len(ids) >= len(res.Tokens) && slices.Equal(ids[:len(res.Tokens)], res.Tokens) {
			return
		}
	}
	t.Errorf("model %s, text of %d bytes: %d tokens that it does not begin with", req.Model, len(req.Text), len(res.Tokens))
}
