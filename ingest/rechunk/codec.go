package rechunk

import (
	"encoding/binary"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Where the entries of a record are among the parts of its hash. Numbers are varints
// (unsigned LEB128) or big endian.
//
//	0                         the record; where it is longer than 64 bytes, its first 64
//	1-143, 144-287            tokens of the record's tail, and of its branch
//	448-451                   of formHash: what the stream has shown of the engine (the form)
//	480 and the tier          of a number in place of an engine's hash: a copy that its engine
//	                          never tells the end of, numbered from 1 as they came: its hash,
//	                          8 bytes, and its group, a byte
//	488 and the tier          of agingHash: the number of the next such copy, that of the oldest,
//	                          and up to which they are void, varints
//	509                       of a block key: how many engine blocks hold the index block: era,
//	                          and for each layer a count for each tier, varints, zeros at the
//	                          end left out
//	510                       of hash 0: the sequence, a varint, up to which the map has changed.
//	                          It is the first entry of a batch to be written. Above the
//	                          watermark a write has stopped halfway: the generation is over
//	511                       of the hash of meta: the number of clears so far (the era), then for
//	                          each tier, and each window tier, the era of its last clear,
//	                          varints; what is missing is 0
//	512-4095                  the rest of a record
//	4096-32767, 32768-65535   branches (kids) of the tail, and of the branch: 8 hashes an entry,
//	                          0 for none
const (
	partRecord = 0
	partMeta   = 0x01ff
	partMark   = 0x01fe
	partShare  = 0x01fd
	partForm   = 0x01c0 // and the number of the entry: of formHash
	partAged   = 0x01e0 // and the tier: of a number, the copy
	partAging  = 0x01e8 // and the tier: of agingHash
	partMore   = 0x0200
	maxMore    = 0x0e00
	kidsPage   = store.MaxMapValue / 8
	maxKids    = 0x7000 * kidsPage
	maxObjects = 512 // of a run, so that a record has fewer than maxMore entries
)

var (
	partTokens = [2]uint16{0x0001, 0x0090}
	partKids   = [2]uint16{0x1000, 0x8000}
)

// Bits of a record's first byte, and of the second if hasExtra is set.
const (
	isJoined = 1 << iota
	joinsBranch
	isKeyed
	hasTail
	hasBranch
	oneCopy // the only slot is one copy, GPU, group 0
	isLong
	hasExtra
)

const (
	isAmbiguous = 1 << iota
	hasEra
	hasSeed
	isShared
)

// Bits of a run's first byte.
const (
	runPrev = 1 << iota
	runClosed
	runChild
	runUniform // parts end every so many tokens
	runObjects
	runPlain // all parts are held on the GPU, placed, and in no other tier
	runSeed
	runBranch // parent is a branch
)

// Set in a run's byte of tiers. With isLacking, sets of what is lacking follow. With
// hasWindows, behind the sets of the tiers of memory, so does what is in window tiers.
const (
	isLacking  = 0x80
	hasWindows = 0x40
)

var plainSeed = blockkey.NativeSeed("", "")

// appendRecord appends b's record. tokens are the chunks of tokens of its runs.
func appendRecord(dst []byte, b *block, size int, tokens [2]int) []byte {
	begin := len(dst)
	var flags, extra byte
	set := func(f *byte, bit byte, on bool) {
		if on {
			*f |= bit
		}
	}
	set(&flags, isJoined, b.joined)
	set(&flags, joinsBranch, b.joined && b.joinBranch)
	set(&flags, isKeyed, b.keyed)
	set(&flags, hasTail, b.tail != nil)
	set(&flags, hasBranch, b.branch != nil)
	set(&flags, oneCopy, len(b.slots()) == 0 && b.slot == slot{copies: 1})
	set(&extra, isAmbiguous, b.ambiguous)
	set(&extra, hasEra, b.era != 0)
	set(&extra, isShared, b.keyed && b.shared)
	set(&extra, hasSeed, b.keyed && b.seed != plainSeed)
	set(&flags, hasExtra, extra != 0)
	dst = append(dst, flags)
	if extra != 0 {
		dst = append(dst, extra)
	}
	if extra&hasEra != 0 {
		dst = binary.AppendUvarint(dst, uint64(b.era))
	}
	if flags&oneCopy == 0 {
		if !b.held() {
			dst = append(dst, 0)
		} else {
			dst = append(dst, byte(1+len(b.slots())))
			dst = appendSlot(dst, b.slot)
			for _, s := range b.slots() {
				dst = appendSlot(dst, s)
			}
		}
	}
	if b.joined {
		dst = binary.BigEndian.AppendUint64(dst, b.joinHash)
		dst = binary.AppendUvarint(dst, uint64(b.part))
	}
	if extra&hasSeed != 0 {
		dst = binary.BigEndian.AppendUint64(dst, uint64(b.seed))
	}
	if b.keyed {
		dst = binary.AppendUvarint(dst, uint64(len(b.more())))
		dst = binary.BigEndian.AppendUint64(dst, uint64(b.key))
		for _, k := range b.more() {
			dst = binary.BigEndian.AppendUint64(dst, uint64(k))
		}
	}
	for i, r := range [2]*run{b.tail, b.branch} {
		if r != nil {
			dst = appendRun(dst, r, size, tokens[i])
		}
	}
	if len(dst)-begin > store.MaxMapValue {
		// The number of entries comes behind the first byte.
		n := (len(dst) - begin + 2 + store.MaxMapValue - 1) / store.MaxMapValue
		dst = append(dst, 0, 0)
		copy(dst[begin+3:], dst[begin+1:])
		dst[begin] |= isLong
		binary.BigEndian.PutUint16(dst[begin+1:], uint16(n))
	}
	return dst
}

// What is set in the group of a slot. They say that it is in a window tier, that it has
// doubtful copies, and that these are among the others.
const (
	windowGroup   = 1 << 8
	doubtfulGroup = 1 << 9
	amongGroup    = 1 << 10
)

func appendSlot(dst []byte, s slot) []byte {
	group := uint64(s.group)
	if s.tier.IsWindow() {
		group |= windowGroup
	}
	if s.doubts > 0 {
		group |= doubtfulGroup
	}
	if s.among {
		group |= amongGroup
	}
	dst = binary.AppendUvarint(dst, group<<2|uint64(s.tier.Memory()))
	dst = binary.AppendUvarint(dst, uint64(s.copies))
	if s.doubts > 0 {
		dst = append(dst, s.doubts)
	}
	return dst
}

func appendRun(dst []byte, r *run, size, tokens int) []byte {
	n := len(r.ends)
	step := 0
	if n > 1 {
		step = int(r.ends[1] - r.ends[0])
	}
	uniform := true
	for i, e := range r.ends {
		uniform = uniform && int(e) == min(int(r.ends[0])+i*step, size)
	}
	plain := r.held == 0
	if r.closed {
		plain = r.held == 1<<store.GPU
	}
	plain = plain && r.present.gpu.full(n) && r.placed.full(n)
	lacking, windows := !r.lacking.gpu.empty(), r.held>>store.NumTiers != 0
	for t := int(store.GPU) + 1; t < numTiers && (r.present.others != nil || r.lacking.others != nil); t++ {
		present, lack := !r.present.of(t).empty(), !r.lacking.of(t).empty()
		plain = plain && !present
		lacking = lacking || lack
		windows = windows || t >= store.NumTiers && (present || lack)
	}
	plain = plain && !lacking
	var flags byte
	for i, on := range [...]bool{r.hasPrev, r.closed, r.child, uniform, len(r.objects) > 0, plain, r.seed != plainSeed, r.parentBranch} {
		if on {
			flags |= 1 << i
		}
	}
	dst = append(dst, flags)
	if flags&runSeed != 0 {
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.seed))
	}
	if r.hasPrev {
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.prev))
	}
	if r.closed {
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.key))
	}
	if r.child {
		dst = binary.BigEndian.AppendUint64(dst, r.parentHash)
		dst = binary.AppendUvarint(dst, uint64(r.fork))
		dst = binary.AppendUvarint(dst, uint64(r.place))
		dst = binary.AppendUvarint(dst, uint64(r.start))
	}
	dst = binary.AppendUvarint(dst, uint64(n))
	if uniform {
		dst = binary.AppendUvarint(dst, uint64(r.ends[0]))
		if n > 1 {
			dst = binary.AppendUvarint(dst, uint64(step))
		}
	} else {
		for _, e := range r.ends {
			dst = binary.AppendUvarint(dst, uint64(e))
		}
	}
	dst = append(dst, byte(tokens))
	kids := uint64(len(r.kids())) << 1
	if r.shared {
		kids |= 1
	}
	dst = binary.AppendUvarint(dst, kids)
	if !plain {
		held, tiers := r.held&allTiers, store.NumTiers
		if lacking {
			held |= isLacking
		}
		if windows {
			held, tiers = held|hasWindows, numTiers
		}
		dst = append(dst, held)
		if windows {
			dst = append(dst, r.held>>store.NumTiers)
		}
		for t := range tiers {
			dst = appendBits(dst, r.present.of(t), n)
		}
		dst = appendBits(dst, &r.placed, n)
		if lacking {
			for t := range tiers {
				dst = appendBits(dst, r.lacking.of(t), n)
			}
		}
	}
	if len(r.objects) > 0 {
		dst = binary.AppendUvarint(dst, uint64(len(r.objects)))
		for _, o := range r.objects {
			dst = binary.BigEndian.AppendUint64(dst, o.hash)
			dst = binary.AppendUvarint(dst, uint64(o.first))
			dst = binary.AppendUvarint(dst, uint64(o.last))
		}
	}
	return dst
}

// appendBits appends a set of numbers below n: 0 for none, 1 for all, or 2 and a
// bit each, the lowest first.
func appendBits(dst []byte, s *bitset, n int) []byte {
	switch {
	case s.empty():
		return append(dst, 0)
	case s.full(n):
		return append(dst, 1)
	}
	dst = append(dst, 2)
	for i := 0; i < n; i += 8 {
		dst = append(dst, byte(s.word(i>>6)>>(i&63)))
	}
	return dst
}
