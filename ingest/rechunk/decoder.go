package rechunk

import (
	"encoding/binary"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// decoder reads a record. What it cannot read makes it bad, and then 0.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uint64() uint64 {
	if len(d.b) < 8 {
		d.b, d.bad = nil, true
		return 0
	}
	v := binary.BigEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

// upTo reads a number that is at most limit.
func (d *decoder) upTo(limit int) int {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > uint64(limit) {
		d.b, d.bad = nil, true
		return 0
	}
	d.b = d.b[n:]
	return int(v)
}

func (d *decoder) bits(n int) (s bitset) {
	switch d.byte() {
	case 0:
	case 1:
		for i := range n {
			s.set(i, true)
		}
	case 2:
		for i := 0; i < n; i += 8 {
			v := d.byte()
			for j := i; j < min(i+8, n); j++ {
				if v>>(j-i)&1 != 0 {
					s.set(j, true)
				}
			}
		}
	default:
		d.bad = true
	}
	return s
}

// entries is the number of entries that the record beginning with v has, 0 if that
// cannot be.
func entries(v []byte) int {
	if len(v) == 0 {
		return 0
	}
	if v[0]&isLong == 0 {
		return 1
	}
	if len(v) < 3 {
		return 0
	}
	if n := int(binary.BigEndian.Uint16(v[1:])); n > 1 && n <= maxMore {
		return n
	}
	return 0
}

// decodeRecord reads the record of a hash into b, without the tokens and kids of
// its runs. Of these it has the number of entries, and runs have places for kids.
// It returns false when that cannot be a record.
func decodeRecord(b *block, v []byte, size int) bool {
	d := decoder{b: v}
	flags := d.byte()
	if flags&isLong != 0 {
		d.byte()
		d.byte()
	}
	var extra byte
	if flags&hasExtra != 0 {
		extra = d.byte()
	}
	b.ambiguous, b.shared = extra&isAmbiguous != 0, extra&isShared != 0
	if extra&hasEra != 0 {
		b.era = uint32(d.upTo(1<<32 - 1))
	}
	if flags&oneCopy != 0 {
		b.slot = slot{copies: 1}
	} else if n := d.upTo(maxSlots + 1); n > 0 {
		all := make([]slot, n)
		for i := range all {
			where := d.upTo(amongGroup<<3 - 1)
			tier := store.Tier(where & 3)
			if where>>2&windowGroup != 0 {
				tier = tier.Window()
			}
			all[i] = slot{tier: tier, group: uint8(where >> 2), copies: uint32(d.upTo(1 << 31))}
			if where>>2&doubtfulGroup != 0 {
				all[i].doubts, all[i].among = d.byte(), where>>2&amongGroup != 0
				d.bad = d.bad || all[i].among && uint32(all[i].doubts) > all[i].copies
			}
		}
		b.slot = all[0]
		if n > 1 {
			b.setSlots(all[1:])
		}
		b.tidy(0)
	}
	if flags&isJoined != 0 {
		b.joined = true
		b.setJoin(ref{d.uint64(), flags&joinsBranch != 0})
		b.part = uint16(d.upTo(size))
	}
	b.seed = plainSeed
	if extra&hasSeed != 0 {
		b.seed = blockkey.Seed(d.uint64())
	}
	if flags&isKeyed != 0 {
		b.keyed = true
		n := d.upTo(MaxEngineBlock)
		b.key = blockkey.Key(d.uint64())
		if n > 0 && len(d.b) >= 8*n {
			more := make([]blockkey.Key, n)
			for i := range more {
				more[i] = blockkey.Key(d.uint64())
			}
			b.setMore(more)
		} else if n > 0 {
			d.bad = true
		}
	}
	if flags&hasTail != 0 {
		b.tail = d.run(b, 0, size)
	}
	if flags&hasBranch != 0 {
		b.branch = d.run(b, 1, size)
	}
	return !d.bad && len(d.b) == 0 && (b.held() || (b.tail != nil || b.branch != nil) && !b.joined && !b.keyed)
}

// run reads the i-th run of b.
func (d *decoder) run(b *block, i, size int) *run {
	r := &run{hash: b.hash, branch: i == 1, owner: b, seed: plainSeed}
	flags := d.byte()
	if flags&runSeed != 0 {
		r.seed = blockkey.Seed(d.uint64())
	}
	if r.hasPrev = flags&runPrev != 0; r.hasPrev {
		r.prev = blockkey.Key(d.uint64())
	}
	if r.closed = flags&runClosed != 0; r.closed {
		r.key = blockkey.Key(d.uint64())
	}
	if r.child = flags&runChild != 0; r.child {
		r.setParent(ref{d.uint64(), flags&runBranch != 0})
		r.fork = uint16(d.upTo(size))
		r.place = int32(d.upTo(maxKids))
		r.start = uint16(d.upTo(size))
	}
	if r.child != r.branch || r.child && (r.fork == 0 || r.start < r.fork) {
		d.bad = true
	}
	n := d.upTo(size - int(r.fork))
	if n == 0 || d.bad {
		d.bad = true
		return r
	}
	r.ends = make([]uint16, n)
	if flags&runUniform != 0 {
		first, step := d.upTo(size), 0
		if n > 1 {
			step = d.upTo(size)
		}
		for i := range r.ends {
			r.ends[i] = uint16(min(first+i*step, size))
		}
	} else {
		for i := range r.ends {
			r.ends[i] = uint16(d.upTo(size))
		}
	}
	last := r.start
	for _, e := range r.ends {
		if e <= last {
			d.bad = true
		}
		last = e
	}
	if r.closed != (int(last) == size) || r.closed && n == 1 && !r.child {
		d.bad = true
	}
	b.stored.tokens[i] = d.byte()
	kids := d.upTo(maxKids<<1 | 1)
	r.shared = kids&1 != 0
	kids >>= 1
	b.stored.kids[i] = uint16((kids + kidsPage - 1) / kidsPage)
	if flags&runPlain != 0 {
		for i := range n {
			r.present.gpu.set(i, true)
			r.placed.set(i, true)
		}
		if r.closed {
			r.held = 1 << store.GPU
		}
	} else {
		held := d.byte()
		tiers := store.NumTiers
		r.held = held & allTiers
		if held&hasWindows != 0 {
			tiers = numTiers
			r.held |= d.byte() << store.NumTiers
		}
		for t := range tiers {
			r.present.put(t, d.bits(n))
		}
		r.placed = d.bits(n)
		if held&isLacking != 0 {
			for t := range tiers {
				r.lacking.put(t, d.bits(n))
			}
		}
	}
	if flags&runObjects != 0 {
		n := d.upTo(len(d.b) / 10)
		for range n {
			r.objects = append(r.objects, object{d.uint64(), uint16(d.upTo(size)), uint16(d.upTo(size))})
		}
	}
	if !d.bad && kids > 0 {
		r.kin = &kin{kids: make([]uint64, kids)}
	}
	return r
}
