package redis

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/blocks"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

var (
	_ store.Pager     = (*Index)(nil)
	_ store.Forgetter = (*Index)(nil)
)

// defaultPage is the size of a page that is asked for with 0.
const defaultPage = 4096

func (x *Index) newPager(at blocks.Cursor) *blocks.Pager {
	return blocks.NewPager(x.space, x.config.TextAge >= 0, at)
}

// Page implements [store.Pager]. A cursor is good in any process, for an index
// with the same prefix. One SCAN visits some thousand keys of the server, others' too.
func (x *Index) Page(ctx context.Context, cursor string, limit int) (store.Page, error) {
	if err := x.space.Check(ctx, "page"); err != nil {
		return store.Page{}, err
	}
	at, err := blocks.ParseCursor(x.space.Names.Prefix, cursor)
	switch {
	case err != nil:
		return store.Page{}, err
	case limit < 0 || limit > store.MaxPage:
		return store.Page{}, fmt.Errorf("%w: a page of %d blocks, it can have 1 to %d", store.ErrInvalid, limit, store.MaxPage)
	case limit == 0:
		limit = defaultPage
	}
	p := x.newPager(at)
	r, err := x.livePage(ctx, p, limit)
	if err != nil {
		return store.Page{}, keyspace.Failed(ctx, "page", err)
	}
	page := store.Page{Registry: r, Blocks: p.Blocks}
	if p.At.Done != blocks.AllPartitions {
		page.Next = p.At.Text(x.space.Names.Prefix)
	}
	return page, nil
}

// livePage makes a page of what live holders hold, and returns the registry that says which
// those are.
func (x *Index) livePage(ctx context.Context, p *blocks.Pager, limit int) (*store.Registry, error) {
	for p.At.Done != blocks.AllPartitions && p.Room(limit) {
		same, err := p.Walk(ctx, limit)
		if err != nil {
			return nil, err
		}
		if !same {
			p.At = p.At.Anew()
			continue
		}
		if p.At.Shown() {
			more, err := p.Finish(ctx)
			if err != nil {
				return nil, err
			}
			if !more {
				break // the caller may want to leave
			}
		}
	}
	if !p.Read {
		if err := p.Fetch(ctx, nil); err != nil {
			return nil, err
		}
	}
	r, err := x.roster.RegistryAt(ctx, p.Epoch, nil)
	if err != nil {
		return nil, err
	}
	onlyLive(p, r)
	return r, nil
}

// onlyLive takes the ended holders and the predictions out of the blocks, and the blocks
// that have no other holder.
func onlyLive(p *blocks.Pager, r *store.Registry) {
	live := make(map[*store.HolderID][]store.HolderID, len(p.Sets))
	for _, ids := range p.Sets {
		if len(ids) > 0 {
			first := &ids[0]
			live[first] = slices.DeleteFunc(ids, func(id store.HolderID) bool { return !r.IsTold(id) })
		}
	}
	n := 0
	for _, b := range p.Blocks {
		if ids := live[&b.Holders[0]]; len(ids) > 0 {
			p.Blocks[n] = store.Block{Key: b.Key, Holders: ids}
			n++
		}
	}
	clear(p.Blocks[n:])
	p.Blocks = p.Blocks[:n]
}
