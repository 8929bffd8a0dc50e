package bench

import (
	"context"

	"github.com/kvatlas/kvatlas/blockkey"
)

// layout is a way to keep the index in Redis.
type layout interface {
	// name says in a word or two which one it is.
	name() string
	// fill makes the pods holders of the blocks, in the cheapest way there is:
	// for data that are to be measured later.
	fill(ctx context.Context, pods []string, keys []blockkey.Key) error
	// store and remove carry out an engine's event about the blocks.
	store(ctx context.Context, pod string, keys []blockkey.Key) error
	remove(ctx context.Context, pod string, keys []blockkey.Key) error
	// lookup returns how many blocks from the start each pod holds.
	lookup(ctx context.Context, keys []blockkey.Key) (prefixes, error)
	// forget deletes what the layout keeps of the blocks.
	forget(ctx context.Context, keys []blockkey.Key) error
	// trips are the round trips that it has made.
	trips() uint64
}

// prefixes are the lengths of the prefixes that pods hold; pods that hold no
// first block are not in it.
type prefixes map[string]int

// walk folds the holders of a chain's blocks into prefixes.
func (p prefixes) walk(block int, pods []string) (more bool) {
	for _, pod := range pods {
		if p[pod] == block {
			p[pod] = block + 1
			more = true
		}
	}
	return more
}

// fillAll fills a layout with a whole corpus.
func fillAll(ctx context.Context, l layout, c corpus, pods []string) error {
	return c.each(1024, func(keys []blockkey.Key) error { return l.fill(ctx, pods, keys) })
}

// forgetAll empties a layout of a corpus.
func forgetAll(ctx context.Context, l layout, c corpus) error {
	return c.each(1024, func(keys []blockkey.Key) error { return l.forget(ctx, keys) })
}

// event is the number of an engine's event: which blocks of which pod. Each list
// of blocks is that of two pods, one after the other, so that half of the events
// make blocks and half find them.
func (c corpus) event(seq, blocks int, pods []string) (pod string, keys []blockkey.Key) {
	at := seq / 2 * blocks
	return pods[seq%len(pods)], c.append(nil, at/c.depth, at%c.depth, at%c.depth+blocks)
}
