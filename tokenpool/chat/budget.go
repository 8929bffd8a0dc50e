package chat

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
)

// Defaults of Limits for what a request may have. An item takes some 10 µs to
// prepare and as much to render, a value 0.2 µs. So a request at these limits takes
// about a second.
const (
	defaultItems  = 1 << 16
	defaultValues = 1 << 20
)

// maxDepth is how deep the JSON of a field may be nested. The library takes 200
// (rust/hft_json.rs), and the field stands in the object of all variables.
const maxDepth = 199

// maxKwargs is how many variables a request may bring: each is looked for among
// all of them.
const maxKwargs = 1024

// budget is what one request may still have, and the caller's time. It is spent
// before anything is made of what it is spent for.
type budget struct {
	ctx           context.Context //nolint:containedctx // it lives as long as one call
	limits        Limits
	items, values int // spent
}

func newBudget(ctx context.Context, limits Limits) *budget {
	limits.Items = cmp.Or(limits.Items, defaultItems)
	limits.Values = cmp.Or(limits.Values, defaultValues)
	return &budget{ctx: ctx, limits: limits}
}

// tooLarge makes an ErrTooLarge that names the part of the request it is about.
func tooLarge(where, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrTooLarge, where, fmt.Sprintf(format, args...))
}

// alive is the context's error.
func (b *budget) alive() error {
	if err := b.ctx.Err(); err != nil {
		return fmt.Errorf("chat: %w", err)
	}
	return nil
}

// list returns the elements of an array, which are items.
func (b *budget) list(where string, raw json.RawMessage) ([]json.RawMessage, error) {
	if err := b.alive(); err != nil {
		return nil, err
	}
	out := elements(raw)
	if b.items += len(out); b.items > b.limits.Items {
		return nil, tooLarge(where, "the request has more than %d messages, parts of contents, calls, tools and documents, which is the limit", b.limits.Items)
	}
	return out, nil
}

// value spends the values in raw and holds its nesting against the library's limit.
// Raw is valid JSON, depth levels down in a field of the request.
func (b *budget) value(where string, raw json.RawMessage, depth int) error {
	if err := b.alive(); err != nil {
		return err
	}
	for at := space(raw, 0); at < len(raw); at = space(raw, at) {
		switch raw[at] {
		case ',', ':':
			at++
			continue
		case ']', '}':
			depth--
			at++
			continue
		case '[', '{':
			if depth++; depth > maxDepth {
				return bad(where, "nested deeper than %d", maxDepth)
			}
			at++
		case '"':
			at = skip(raw, at)
			if next := space(raw, at); next < len(raw) && raw[next] == ':' {
				continue // a key
			}
		default:
			at = skip(raw, at)
		}
		if b.values++; b.values > b.limits.Values {
			return tooLarge(where, "the request has more than %d JSON values, which is the limit", b.limits.Values)
		}
	}
	return nil
}
