package redis

import (
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

var (
	_ store.Pager     = (*Index)(nil)
	_ store.Forgetter = (*Index)(nil)
)

const (
	// defaultPage is the size of a page that is asked for with 0.
	defaultPage = 4096
	// pageScan is the COUNT of a walk's SCAN, which takes the server up to 3 us a key when
	// there are millions.
	pageScan = 256
	// pageSteps is how many of them a page takes at most: a server that is full of others'
	// keys would keep a caller for as long as it takes to find a page of blocks, and who has
	// no such time would never get on.
	pageSteps = 256
	// pageRest is how long a walk rests when slots are on the move.
	pageRest = 100 * time.Millisecond
)

// A walk goes through the masters one after the other, by SCAN, and keeps no
// state but its cursor:
//
//	done  the partitions that are complete
//	mask  those that the present master owned when its SCAN began
//	run   the run id of that master
//	scan  the cursor of its SCAN
//
// SCAN promises that it gives what is there from its beginning to its end, but
// only if it is one server all along: another one, after a failover or a
// restart, orders its keys otherwise. So the run id is read along with each
// step, and when it has changed the partitions of mask begin anew.
//
// What is found of any partition that is not done is given, whoever owns it. But
// mask is done only when the master owns it still at the end, with no slot of it
// on the move, since else
//
//	walk: has scanned master A, is scanning B
//	A takes slot 7 from B, key by key
//
// and the keys that B had not shown yet are where the walk has already been.
type pageCursor struct {
	done, mask uint64
	run        [20]byte
	scan       uint64
}

const (
	cursorBytes   = 1 + 4 + 8 + 8 + 20 + 8
	cursorVersion = 1
)

// seal is what binds a cursor to an index, and tells when it has been changed.
func (x *Index) seal(b []byte) uint32 {
	return uint32(xxh3.HashSeed(append([]byte(x.space.Names.Prefix), b[5:cursorBytes]...), uint64(b[0])))
}

// anew is the cursor with which the present master's partitions begin anew.
func (c *pageCursor) anew() pageCursor { return pageCursor{done: c.done} }

// shown reports whether the present master has shown all, as of the step before.
func (c *pageCursor) shown() bool { return c.mask != 0 && c.scan == 0 }

func (c *pageCursor) text(x *Index) string {
	var b [cursorBytes]byte
	b[0] = cursorVersion
	binary.BigEndian.PutUint64(b[5:], c.done)
	binary.BigEndian.PutUint64(b[13:], c.mask)
	copy(b[21:], c.run[:])
	binary.BigEndian.PutUint64(b[41:], c.scan)
	binary.BigEndian.PutUint32(b[1:], x.seal(b[:]))
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func (x *Index) parseCursor(s string) (c pageCursor, err error) {
	if s == "" {
		return c, nil
	}
	if len(s) != base64.RawURLEncoding.EncodedLen(cursorBytes) {
		return c, store.ErrCursor
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || b[0] != cursorVersion || binary.BigEndian.Uint32(b[1:]) != x.seal(b) {
		return c, store.ErrCursor
	}
	c.done = binary.BigEndian.Uint64(b[5:])
	c.mask = binary.BigEndian.Uint64(b[13:])
	copy(c.run[:], b[21:])
	c.scan = binary.BigEndian.Uint64(b[41:])
	return c, nil
}

// Page implements [store.Pager]. A cursor is good in any process, for an index
// with the same prefix. One SCAN visits some thousand keys of the server,
// whoever's they are.
func (x *Index) Page(ctx context.Context, cursor string, limit int) (store.Page, error) {
	if err := x.space.Check(ctx, "page"); err != nil {
		return store.Page{}, err
	}
	at, err := x.parseCursor(cursor)
	switch {
	case err != nil:
		return store.Page{}, err
	case limit < 0 || limit > store.MaxPage:
		return store.Page{}, fmt.Errorf("%w: a page of %d blocks, it can have 1 to %d", store.ErrInvalid, limit, store.MaxPage)
	case limit == 0:
		limit = defaultPage
	}
	p := newPager(x, at)
	r, err := p.live(ctx, limit)
	if err != nil {
		return store.Page{}, keyspace.Failed(ctx, "page", err)
	}
	page := store.Page{Registry: r, Blocks: p.blocks}
	if p.at.done != allPartitions {
		page.Next = p.at.text(x)
	}
	return page, nil
}

const allPartitions = 1<<blockkey.Partitions - 1

// pager makes one page.
type pager struct {
	x    *Index
	at   pageCursor
	node *redis.Client // the present master, when it is known

	steps  int
	blocks []store.Block
	sets   map[string][]store.HolderID // holders by the text of a value
	epoch  uint64                      // as of the last read
	read   bool                        // there was one
	texts  bool                        // some value was texts, which are left out
}

func newPager(x *Index, at pageCursor) *pager {
	return &pager{x: x, at: at, sets: map[string][]store.HolderID{}}
}

// live makes a page of what live holders hold, and returns the registry that says who
// lives.
func (p *pager) live(ctx context.Context, limit int) (*store.Registry, error) {
	for p.at.done != allPartitions && p.room(limit) {
		same, err := p.walk(ctx, limit)
		if err != nil {
			return nil, err
		}
		if !same {
			p.at = p.at.anew()
			continue
		}
		if p.at.shown() {
			more, err := p.finish(ctx)
			if err != nil {
				return nil, err
			}
			if !more {
				break // the caller may want to leave
			}
		}
	}
	if !p.read {
		if err := p.fetch(ctx, nil); err != nil {
			return nil, err
		}
	}
	r, err := p.x.registryAt(ctx, p.epoch, nil)
	if err != nil {
		return nil, err
	}
	p.onlyLive(r)
	return r, nil
}

// room reports whether there may be more in the page.
func (p *pager) room(limit int) bool { return len(p.blocks) < limit && p.steps < pageSteps }

// walk goes on through one master until that has shown all, or the page is full. same is
// false when the server is not the one that the SCAN began on.
func (p *pager) walk(ctx context.Context, limit int) (same bool, err error) {
	if p.at.mask == 0 {
		if err := p.choose(ctx); err != nil {
			return false, err
		}
	}
	for {
		p.steps++
		if same, err = p.step(ctx); err != nil || !same || p.at.scan == 0 || !p.room(limit) {
			return same, err
		}
	}
}

// master returns the client of the master that owns the first partition of a
// mask.
func (p *pager) master(ctx context.Context, mask uint64) (*redis.Client, error) {
	switch c := p.x.space.Client.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, p.x.space.Names.High(bits.TrailingZeros64(mask)))
	}
	return nil, fmt.Errorf("redis: a client of type %T cannot be scanned", p.x.space.Client)
}

// choose begins with the master of the first partition that is not done.
func (p *pager) choose(ctx context.Context) (err error) {
	left := ^p.at.done
	for try := 0; ; try++ {
		if p.node, err = p.master(ctx, left); err != nil {
			return err
		}
		owned, _, run, err := p.ask(ctx)
		if err != nil {
			return err
		}
		if owned&(left&-left) != 0 {
			p.at = pageCursor{done: p.at.done, mask: owned & left, run: run}
			return nil
		}
		// The client's picture of the cluster is outdated.
		c, ok := p.x.space.Client.(*redis.ClusterClient)
		if !ok || try == 2 {
			return fmt.Errorf("redis: nobody owns slot %d", keyspace.SlotOf(bits.TrailingZeros64(left)))
		}
		c.ReloadState(ctx)
		if err := keyspace.Sleep(ctx, pageRest); err != nil {
			return err
		}
	}
}

// ask asks the node which partitions it owns as a master, which of them have no
// slot on the move, and for its run id.
func (p *pager) ask(ctx context.Context) (owned, still uint64, run [20]byte, err error) {
	pipe := p.node.Pipeline()
	info := pipe.Info(ctx, "server")
	var nodes *redis.StringCmd
	if p.x.space.Cluster {
		nodes = pipe.ClusterNodes(ctx)
	}
	p.x.space.Trips.Add(1)
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, 0, run, err
	}
	if run, err = parseRun(info.Val()); err != nil || nodes == nil {
		return allPartitions, allPartitions, run, err
	}
	owned, still = ownPartitions(nodes.Val())
	return owned, still, run, nil
}

func parseRun(info string) (run [20]byte, err error) {
	_, rest, _ := strings.Cut(info, "run_id:")
	if len(rest) >= 40 {
		if _, err = hex.Decode(run[:], []byte(rest[:40])); err == nil {
			return run, nil
		}
	}
	return run, fmt.Errorf("%w: INFO has no run_id of 40 hex digits", keyspace.ErrProtocol)
}

// ownPartitions reads the line "myself" of CLUSTER NODES:
//
//	id address flags master ping pong epoch link slot slot-slot [slot->-id] [slot-<-id]
//
// The last two are a slot that goes and one that comes; still leaves them out.
func ownPartitions(nodes string) (owned, still uint64) {
	for line := range strings.Lines(nodes) {
		f := strings.Fields(line)
		if len(f) < 8 || !strings.Contains(f[2], "myself") || !strings.Contains(f[2], "master") {
			continue
		}
		var own, moving [1 << 14]bool
		for _, s := range f[8:] {
			if move, ok := strings.CutPrefix(s, "["); ok {
				slot, _, _ := strings.Cut(move, "-")
				if n, err := strconv.ParseUint(slot, 10, 14); err == nil {
					moving[n] = true
				}
				continue
			}
			first, last, ok := strings.Cut(s, "-")
			if !ok {
				last = first
			}
			from, err1 := strconv.ParseUint(first, 10, 14)
			to, err2 := strconv.ParseUint(last, 10, 14)
			if err1 != nil || err2 != nil {
				continue
			}
			for n := from; n <= to; n++ {
				own[n] = true
			}
		}
		for part := range blockkey.Partitions {
			n := keyspace.SlotOf(part)
			if own[n] {
				owned |= 1 << part
			}
			if own[n] && !moving[n] {
				still |= 1 << part
			}
		}
	}
	return owned, still
}

// step goes on with the SCAN. same is false when the server is not the one that
// the SCAN began on.
func (p *pager) step(ctx context.Context) (same bool, err error) {
	if p.node == nil {
		if p.node, err = p.master(ctx, p.at.mask); err != nil {
			return false, err
		}
	}
	pipe := p.node.Pipeline()
	info := pipe.Info(ctx, "server")
	scan := pipe.Scan(ctx, p.at.scan, p.x.space.Names.Prefix+"{*", pageScan)
	p.x.space.Trips.Add(1)
	if _, err := pipe.Exec(ctx); err != nil {
		return false, err
	}
	run, err := parseRun(info.Val())
	if err != nil || run != p.at.run {
		return false, err
	}
	names, next := scan.Val()
	var keys []blockkey.StoreKey
	for _, name := range names {
		if k, ok := p.x.space.Names.ParseBlock(name); ok && p.at.done>>k.Partition()&1 == 0 {
			keys = append(keys, k)
		}
	}
	// The same may come twice, and SCAN may return many more than COUNT.
	slices.SortFunc(keys, byPartition)
	keys = slices.Compact(keys)
	for part := range slices.Chunk(keys, pageScan) {
		if err := p.fetch(ctx, part); err != nil {
			return false, err
		}
	}
	p.at.scan = next
	return true, nil
}

// fetch reads who holds the blocks, and the epoch along with it.
func (p *pager) fetch(ctx context.Context, keys []blockkey.StoreKey) (err error) {
	l := newLookup(p.x)
	defer l.free()
	l.names = l.names[:0]
	for _, k := range keys {
		l.names = p.x.space.Names.AppendBlock(l.names, k)
	}
	l.split()
	if p.epoch, err = l.read(ctx, true); err != nil {
		return err
	}
	p.read = true
	for i, k := range keys {
		v, held := l.vals[i].of(l.buf)
		if !held {
			continue
		}
		ids, known := p.sets[string(v)]
		if !known {
			var ok bool
			// Texts age and are written again: they are not in pages.
			if ids, ok = keyspace.AppendHolders(nil, v); !ok {
				if p.x.config.TextAge >= 0 && keyspace.IsText(v) {
					p.texts = true
				} else {
					p.x.space.Garbled.Add(1)
				}
			}
			p.sets[string(v)] = ids
		}
		if len(ids) > 0 {
			p.blocks = append(p.blocks, store.Block{Key: k, Holders: ids})
		}
	}
	return nil
}

// same reports whether the master is still the server that the SCAN began on.
func (p *pager) same(ctx context.Context) (bool, error) {
	_, _, run, err := p.ask(ctx)
	return run == p.at.run, err
}

// finish ends the SCAN of a master. more is false when nothing is done with it,
// since slots are on the move.
func (p *pager) finish(ctx context.Context) (more bool, err error) {
	_, still, run, err := p.ask(ctx)
	if err != nil {
		return false, err
	}
	if run != p.at.run {
		still = 0
	}
	more = p.at.mask&still != 0
	p.at = pageCursor{done: p.at.done | p.at.mask&still}
	p.node = nil
	if !more {
		err = keyspace.Sleep(ctx, pageRest)
	}
	return more, err
}

// onlyLive takes the ended holders and the predictions out of the blocks, and the blocks
// that nobody else holds.
func (p *pager) onlyLive(r *store.Registry) {
	live := make(map[*store.HolderID][]store.HolderID, len(p.sets))
	for _, ids := range p.sets {
		if len(ids) > 0 {
			first := &ids[0]
			live[first] = slices.DeleteFunc(ids, func(id store.HolderID) bool { return !r.IsTold(id) })
		}
	}
	n := 0
	for _, b := range p.blocks {
		if ids := live[&b.Holders[0]]; len(ids) > 0 {
			p.blocks[n] = store.Block{Key: b.Key, Holders: ids}
			n++
		}
	}
	clear(p.blocks[n:])
	p.blocks = p.blocks[:n]
}

// Forget implements [store.Forgetter].
func (x *Index) Forget(ctx context.Context, model string) (known bool, err error) {
	if err := x.space.Check(ctx, "forget"); err != nil {
		return false, err
	}
	cmds, err := x.space.Run(ctx, x.space.RegistryCall(lua.Forget, x.space.Names.Own(""), keyspace.ModelField+model))
	if err != nil {
		return false, keyspace.Failed(ctx, "forget", err)
	}
	return keyspace.IsOne(cmds[0].Val()), nil
}
