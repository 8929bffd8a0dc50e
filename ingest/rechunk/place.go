package rechunk

import (
	"cmp"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
)

// cursor is a place at which a block can begin.
type cursor struct {
	ok   bool
	why  Reason // if not ok
	seed blockkey.Seed
	// The end of a part, or, without run, of the index block prev.
	run     *run
	part    uint16
	prev    blockkey.Key
	hasPrev bool
	shared  bool // blocks are told apart by more than what they cover
}

func lost(why Reason) cursor { return cursor{why: why} }

// after is the place behind a block.
func (c *Chunker) after(b *block) cursor {
	switch {
	case b.ambiguous:
		return lost(Ambiguous)
	case b.tail != nil:
		return cursor{ok: true, seed: b.tail.seed, run: b.tail}
	case b.keyed:
		last := b.key
		if more := b.more(); len(more) > 0 {
			last = more[len(more)-1]
		}
		return cursor{ok: true, seed: b.seed, prev: last, hasPrev: true}
	case b.joined:
		r := c.run(b.join())
		if r == nil || int(b.part) >= r.parts() || b.part < r.fork {
			return lost(NoParent)
		}
		if r.isLast(b.part) {
			return cursor{ok: true, seed: r.seed, prev: r.key, hasPrev: true}
		}
		return cursor{ok: true, seed: r.seed, run: r, part: b.part}
	}
	return lost(NoParent)
}

// how a block goes on with the index block that was begun before it.
type how uint8

const (
	notAtAll how = iota // it begins with an index block
	matches             // it is the part that comes next already
	extends             // it is the first to go on there
	forks               // it goes on otherwise than the part that comes next
	clashes             // its hash begins another run
)

// place is where a block with certain tokens lies behind a cursor.
type place struct {
	how     how
	run     *run // matches, extends: part of this; forks: from this
	part    uint16
	end     uint16 // of the part, in tokens of the index block
	head    []uint32
	closes  bool
	key     blockkey.Key // of the index block, if it closes
	keys    []blockkey.Key
	tail    []uint32
	prev    blockkey.Key // before the tail
	hasPrev bool
	seed    blockkey.Seed
	shared  bool
	headObj []event.Object
	tailObj []event.Object
}

// locate says where a block lies that has these tokens and objects, known being what
// is known of it already.
// It changes nothing. Its keys are valid until the next call.
func (c *Chunker) locate(cur *cursor, known *block, tokens []uint32, objects []event.Object) (p place, ok bool) {
	p.seed, p.prev, p.hasPrev, p.shared = cur.seed, cur.prev, cur.hasPrev, cur.shared
	rest := tokens
	begin := 0
	if cur.run != nil {
		begin = c.endOf(cur.run, cur.part)
		p.head = tokens[:min(len(tokens), c.size-begin)]
		rest = tokens[len(p.head):]
	}
	whole := len(rest) / c.size * c.size
	p.tail = rest[whole:]
	// Objects are told by where they begin, not by where they end. In a block that
	// covers several index blocks only one that begins in the last is certain.
	var wholeObj []event.Object
	if len(objects) > 0 {
		last := len(tokens) - len(p.tail)
		switch {
		case len(p.tail) > 0:
			p.tailObj = objects
		case whole > 0:
			wholeObj, last = objects, len(tokens)-c.size
		default:
			p.headObj, last = objects, 0
		}
		kept := len(objects)
		if cur.run != nil {
			kept += len(cur.run.objects)
		}
		if kept > maxObjects {
			return p, false
		}
		for i := range objects {
			if (last > 0 && objects[i].Offset < last) || objects[i] == (event.Object{}) {
				return p, false
			}
		}
	}
	if cur.run != nil {
		p.end = uint16(begin + len(p.head))
		p.closes = int(p.end) == c.size
		c.join(cur, known, &p)
	}
	if whole > 0 {
		chain := blockkey.Chain{BlockSize: c.size, Seed: p.seed, Parent: p.prev, HasParent: p.hasPrev}
		if wholeObj == nil {
			c.keys = chain.Append(c.keys[:0], rest[:whole])
		} else {
			hashes := make([][]uint64, whole/c.size)
			for _, o := range wholeObj {
				hashes[len(hashes)-1] = append(hashes[len(hashes)-1], o.Hash)
			}
			c.keys = chain.AppendHashes(c.keys[:0], rest[:whole], hashes)
		}
		p.keys = c.keys
		p.prev, p.hasPrev = chain.Parent, true
	}
	return p, true
}

// endOf is where a part on r's path ends, in tokens of the index block.
func (c *Chunker) endOf(r *run, part uint16) int {
	for r != nil && part < r.fork {
		r = c.up(r)
	}
	if r == nil || int(part) >= r.parts() {
		return c.size - 1 // torn; what follows matches nothing
	}
	return r.end(int(part))
}

// join finds how p goes on behind cur, with its key if it closes.
func (c *Chunker) join(cur *cursor, known *block, p *place) {
	r, q := cur.run, cur.part+1
	if p.closes {
		p.key = c.close(r, q, p)
		p.prev, p.hasPrev = p.key, true
	}
	p.run, p.part = r, q
	if int(q) == r.parts() {
		if known != nil && known.branch != nil {
			p.how = c.branchHow(known.branch, r, q, p)
			return
		}
		p.how = extends
		return
	}
	// Another hash may have the same content at this place (vLLM mixes the tokens
	// that follow into it). Then each has a run of its own.
	mine := known != nil && known.joined && known.join() == r.ref() && known.part == q
	if c.same(r, q, p) && (mine || !r.placed.has(int(q-r.fork))) && (known == nil || known.branch == nil) {
		p.how = matches
		return
	}
	if known != nil && known.branch != nil {
		p.how = c.branchHow(known.branch, r, q, p)
		return
	}
	p.how = forks
}

// branchHow is how a block goes on that begins a branch already.
func (c *Chunker) branchHow(b *run, from *run, part uint16, p *place) how {
	if b.child && b.parent() == from.ref() && b.fork == part && c.same(b, part, p) {
		p.run = b
		return matches
	}
	return clashes
}

// same reports whether an own part of r is what p brings.
func (c *Chunker) same(r *run, part uint16, p *place) bool {
	if r.end(int(part)) != int(p.end) {
		return false
	}
	if r.isLast(part) {
		return p.closes && r.key == p.key
	}
	if p.closes || !slices.Equal(r.partTokens(int(part)), p.head) {
		return false
	}
	if len(r.objects) == 0 && len(p.headObj) == 0 {
		return true
	}
	var have, want []partObject
	for _, o := range r.objects {
		if o.first <= part && part <= o.last {
			have = append(have, partObject{o.hash, o.first < part})
		}
	}
	goOn := c.goingOn(r, part)
	for _, o := range p.headObj {
		cont := false
		if o.Offset <= 0 {
			if i := slices.Index(goOn, o.Hash); i >= 0 {
				goOn = slices.Delete(goOn, i, i+1)
				cont = true
			}
		}
		want = append(want, partObject{o.Hash, cont})
	}
	order := func(a, b partObject) int {
		if a.hash != b.hash {
			return cmp.Compare(a.hash, b.hash)
		}
		if a.goesOn == b.goesOn {
			return 0
		}
		if b.goesOn {
			return -1
		}
		return 1
	}
	slices.SortFunc(have, order)
	slices.SortFunc(want, order)
	return slices.Equal(have, want)
}

type partObject struct {
	hash   uint64
	goesOn bool
}

// path appends the tokens before part of r's path.
func (c *Chunker) path(dst []uint32, r *run, part uint16) []uint32 {
	if r == nil {
		return dst
	}
	if r.child {
		dst = c.path(dst, c.up(r), min(part, r.fork))
	}
	if part > r.fork {
		dst = append(dst, r.tokens[:min(r.end(int(part)-1)-int(r.start), len(r.tokens))]...)
	}
	return dst
}

// pathObjects appends the objects in the parts before part of r's path, each once.
func (c *Chunker) pathObjects(dst []object, r *run, part uint16) []object {
	if r == nil {
		return dst
	}
	if r.child {
		dst = c.pathObjects(dst, c.up(r), min(part, r.fork))
	}
	for _, o := range r.objects {
		if o.first >= part {
			continue
		}
		if o.first < r.fork { // began in the parent's parts
			for i := range dst {
				if dst[i].hash == o.hash && dst[i].last+1 == r.fork {
					dst[i].last = min(o.last, part-1)
					break
				}
			}
			continue
		}
		o.last = min(o.last, part-1)
		dst = append(dst, o)
	}
	return dst
}

// goingOn are the objects that reach into the part before part, and so perhaps on.
func (c *Chunker) goingOn(r *run, part uint16) (hashes []uint64) {
	for _, o := range c.pathObjects(nil, r, part) {
		if o.last+1 == part {
			hashes = append(hashes, o.hash)
		}
	}
	return hashes
}

// close is the key of the index block that p closes behind r's parts before part.
func (c *Chunker) close(r *run, part uint16, p *place) blockkey.Key {
	c.tokens = append(c.path(c.tokens[:0], r, part), p.head...)
	chain := blockkey.Chain{BlockSize: c.size, Seed: r.seed, Parent: r.prev, HasParent: r.hasPrev}
	if objects := c.pathObjects(nil, r, part); len(objects) > 0 || len(p.headObj) > 0 {
		var hashes []uint64
		var goOn []uint64
		for _, o := range objects {
			hashes = append(hashes, o.hash)
			if o.last+1 == part {
				goOn = append(goOn, o.hash)
			}
		}
		for _, o := range p.headObj {
			if i := slices.Index(goOn, o.Hash); i >= 0 && o.Offset <= 0 {
				goOn = slices.Delete(goOn, i, i+1)
				continue
			}
			hashes = append(hashes, o.Hash)
		}
		c.keyBuf = chain.AppendHashes(c.keyBuf[:0], c.tokens, [][]uint64{hashes})
	} else {
		c.keyBuf = chain.Append(c.keyBuf[:0], c.tokens)
	}
	if len(c.keyBuf) == 0 {
		return 0 // torn: fewer tokens than the parts say
	}
	return c.keyBuf[0]
}

// is reports whether b lies at p.
func (b *block) is(p *place) bool {
	switch {
	case b.joined != (p.how != notAtAll), b.keyed != (len(p.keys) > 0), (b.tail != nil) != (len(p.tail) > 0):
		return false
	case b.joined && (p.how != matches || b.join() != p.run.ref() || b.part != p.part):
		return false
	case b.keyed && (b.key != p.keys[0] || !slices.Equal(b.more(), p.keys[1:])):
		return false
	}
	return b.tail == nil || b.begins(p)
}

// begins reports whether b's tail begins with that of p.
func (b *block) begins(p *place) bool {
	t := b.tail
	return t.seed == p.seed && t.prev == p.prev && t.hasPrev == p.hasPrev && int(t.ends[0]) == len(p.tail) &&
		(t.isLast(0) || slices.Equal(t.partTokens(0), p.tail)) && sameHead(t, p.tailObj)
}

// sameHead reports whether the objects of a tail's first part are these.
func sameHead(t *run, objects []event.Object) bool {
	if len(t.objects) == 0 && len(objects) == 0 {
		return true
	}
	var have, want []uint64
	for _, o := range t.objects {
		if o.first == 0 {
			have = append(have, o.hash)
		}
	}
	for _, o := range objects {
		want = append(want, o.Hash)
	}
	slices.Sort(have)
	slices.Sort(want)
	return slices.Equal(have, want)
}

// put gives b, which has no place, the place p. It returns false when runs that b
// has begun before say that it cannot be there.
func (c *Chunker) put(b *block, p *place) bool {
	if p.how == clashes || (b.tail != nil && (len(p.tail) == 0 || !b.begins(p))) || (b.branch != nil && (p.how != matches || p.run != b.branch)) {
		return false
	}
	switch p.how {
	case extends:
		c.extend(p.run, p)
		c.touch(p.run.owner)
	case forks:
		r := c.newRun(b, true)
		r.seed, r.prev, r.hasPrev = p.run.seed, p.run.prev, p.run.hasPrev
		r.setParent(p.run.ref())
		r.child, r.fork, r.start = true, p.part, uint16(c.endOf(p.run, p.part-1))
		if !c.adopt(p.run, r) {
			return false
		}
		c.extend(r, p)
		b.branch = r
		p.run = r
	case matches:
		p.run.placed.set(int(p.part-p.run.fork), true)
		c.touch(p.run.owner)
	case notAtAll, clashes:
	}
	b.joined, b.keyed = p.how != notAtAll, len(p.keys) > 0
	b.seed = p.seed
	if b.joined {
		b.setJoin(p.run.ref())
		b.part = p.part
	}
	b.shared = p.shared
	if b.keyed {
		b.key = p.keys[0]
		if len(p.keys) > 1 && b.wide == nil {
			b.wide = c.wides.take(1)
		}
		b.setMore(p.keys[1:])
	}
	if len(p.tail) > 0 {
		if b.tail == nil {
			r := c.newRun(b, false)
			r.seed, r.prev, r.hasPrev = p.seed, p.prev, p.hasPrev
			if r.ends == nil { // it is new
				r.ends = allot(&c.room.ends, max(1, min(8, c.size/len(p.tail))))
				r.tokens = allot(&c.room.tokens, max(len(p.tail), c.size-len(p.tail)))
			}
			r.ends = append(r.ends, uint16(len(p.tail)))
			r.tokens = append(r.tokens, p.tail...)
			b.tail = r
			for _, o := range p.tailObj {
				b.tail.objects = append(b.tail.objects, object{hash: o.Hash})
			}
		}
		b.tail.placed.set(0, true)
	}
	c.touch(b)
	return true
}

// extend adds to r the part that p brings.
func (c *Chunker) extend(r *run, p *place) {
	part := p.part
	for _, o := range p.headObj {
		r.addObject(c, o, part)
	}
	r.ends = append(r.ends, p.end)
	if p.closes {
		r.closed, r.key, r.shared = true, p.key, p.shared || len(p.keys) > 0 || len(p.tail) > 0
	} else {
		r.tokens = append(r.tokens, p.head...)
		r.tokensDirty = true
	}
	r.placed.set(int(part-r.fork), true)
}

// addObject notes that an object reaches into part, which comes next. It goes on
// from the part before if it has begun there. Where engines do not tell offsets they
// are 0. So the same image right behind itself, from a block's first token on, is
// taken for one.
func (r *run) addObject(c *Chunker, o event.Object, part uint16) {
	if o.Offset <= 0 {
		for i := range r.objects {
			if r.objects[i].hash == o.Hash && r.objects[i].last+1 == part {
				r.objects[i].last = part
				return
			}
		}
		if r.child && part == r.fork && slices.Contains(c.goingOn(r, part), o.Hash) {
			r.objects = append(r.objects, object{o.Hash, part - 1, part})
			return
		}
	}
	r.objects = append(r.objects, object{o.Hash, part, part})
}

// adopt makes r a kid of from. There are so many places for kids that it returns
// false only when no engine's memory could hold as many.
func (c *Chunker) adopt(from, r *run) bool {
	if r.hash == 0 {
		return false // stands for none in the list
	}
	k := from.kin
	if k == nil {
		k = &kin{}
		from.kin = k
	}
	if n := len(k.free); n > 0 {
		r.place = int32(k.free[n-1])
		k.free = k.free[:n-1]
		k.kids[r.place] = r.hash
	} else {
		if len(k.kids) >= maxKids {
			return false
		}
		r.place = int32(len(k.kids))
		k.kids = append(k.kids, r.hash)
	}
	k.count++
	c.pageChanged(k, int(r.place))
	c.touch(from.owner)
	return true
}

func (c *Chunker) pageChanged(k *kin, place int) {
	if page := place / kidsPage; !c.alone && !slices.Contains(k.pagesDirty, page) {
		k.pagesDirty = append(k.pagesDirty, page)
	}
}
