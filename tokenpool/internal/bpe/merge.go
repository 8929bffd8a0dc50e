package bpe

// merges has the pairs of tokens that BPE joins, with their ranks. Of all pairs in a word,
// the one of the lowest rank is joined first, the leftmost of equal ones.
type merges struct {
	// bytes has the ranks of pairs of two bytes, which every word begins with.
	bytes []uint32
	// table is open-addressed, at most half full: left<<43 | right<<22 | rank+1 in each
	// entry, 0 where there is none.
	table []uint64
	shift uint8
	// joined is the token that comes of a rank's pair.
	joined []uint32
}

const (
	maxToken = 1 << 21
	maxRank  = 1<<22 - 2
	noRank   = ^uint32(0)
)

// newMerges makes the tables of Tables.Merges, for so many tokens.
func newMerges(list []uint32, tokens int, byteIDs *[256]uint32) (*merges, error) {
	if len(list)%3 != 0 || len(list)/3 > maxRank {
		return nil, unsupported("%d merges", len(list)/3)
	}
	m := &merges{bytes: make([]uint32, 1<<16), joined: make([]uint32, len(list)/3), shift: 63}
	size := 2
	for size < 2*len(m.joined) {
		size *= 2
		m.shift--
	}
	m.table = make([]uint64, size)
	for rank := range m.joined {
		pair := list[3*rank : 3*rank+3]
		if int(max(pair[0], pair[1], pair[2])) >= tokens {
			return nil, unsupported("merges of tokens that are not there")
		}
		m.joined[rank] = pair[2]
		key := uint64(pair[0])<<43 | uint64(pair[1])<<22
		i := m.slot(key)
		// Of a pair that is there twice, the last one counts, as in the reference.
		for m.table[i] != 0 && m.table[i]>>22 != key>>22 {
			i = (i + 1) & (len(m.table) - 1)
		}
		m.table[i] = key | uint64(rank+1)
	}
	for i := range m.bytes {
		m.bytes[i] = m.rank(byteIDs[i>>8], byteIDs[i&0xff])
	}
	return m, nil
}

// slot is where the search for a key begins. The pairs are the tokenizer's, not a text's,
// so that no client can choose them to collide.
func (m *merges) slot(key uint64) int {
	return int(((key >> 22) * 0x9e3779b97f4a7c15) >> m.shift)
}

// rank returns the rank of a pair, noRank if it is not joined.
func (m *merges) rank(left, right uint32) uint32 {
	key := uint64(left)<<43 | uint64(right)<<22
	for i := m.slot(key); ; i = (i + 1) & (len(m.table) - 1) {
		e := m.table[i]
		if e == 0 {
			return noRank
		}
		if e>>22 == key>>22 {
			return uint32(e&(1<<22-1)) - 1
		}
	}
}

// shortWord is the length in bytes up to which each merge of a word looks through all its
// pairs. That is faster than a heap there.
const shortWord = 64

// merger is the memory that merging takes.
type merger struct {
	ids   [shortWord]uint32
	ranks [shortWord]uint32
	long  longWord
}

// merge returns the tokens of a word. They are valid until the next call.
func (w *merger) merge(m *merges, byteIDs *[256]uint32, word []byte) []uint32 {
	if len(word) > shortWord {
		return w.long.merge(m, byteIDs, word)
	}
	n := len(word)
	ids, ranks := w.ids[:n], w.ranks[:n]
	for i, c := range word {
		ids[i] = byteIDs[c]
		ranks[i] = noRank
		if i+1 < n {
			ranks[i] = m.bytes[int(c)<<8|int(word[i+1])]
		}
	}
	return settle(m, ids, ranks)
}

// settle merges the tokens of a word in place. Of each the rank of the pair that begins
// with it is given.
func settle(m *merges, ids, ranks []uint32) []uint32 {
	n := len(ids)
	for {
		at, best := 0, noRank
		for i, r := range ranks {
			if r < best {
				at, best = i, r
			}
		}
		if best == noRank {
			return ids
		}
		ids[at] = m.joined[best]
		n--
		copy(ids[at+1:], ids[at+2:])
		copy(ranks[at:], ranks[at+1:])
		ids, ranks = ids[:n], ranks[:n]
		if at+1 < n {
			ranks[at] = m.rank(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1] = m.rank(ids[at-1], ids[at])
		}
	}
}

// longWord merges with a heap, in time that grows little more than the word does.
type longWord struct {
	ids        []uint32
	ranks      []uint32 // of the pair that begins here, noRank if there is none
	prev, next []int32
	queue      ranked
}

// ranked are pairs by rank and place: rank<<32 | place. Those that have changed since
// they were put in are passed over.
type ranked []uint64

// down restores the order below i.
func (q *ranked) down(i int) {
	h := *q
	x := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if h[child] >= x {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = x
}

// order makes a heap of what stands in any order.
func (q *ranked) order() {
	for i := len(*q)/2 - 1; i >= 0; i-- {
		q.down(i)
	}
}

// push puts a pair in.
func (q *ranked) push(x uint64) {
	*q = append(*q, x)
	h := *q
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent] <= x {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = x
}

// pop takes the lowest one out. There must be one.
func (q *ranked) pop() uint64 {
	h := *q
	x, n := h[0], len(h)-1
	h[0] = h[n]
	if *q = h[:n]; n > 0 {
		q.down(0)
	}
	return x
}

// keptWord is up to how many bytes of a word the memory for it is kept for the next one.
const keptWord = 16 << 10

func (w *longWord) merge(m *merges, byteIDs *[256]uint32, word []byte) []uint32 {
	n := len(word)
	w = w.grow(n)
	for i, c := range word {
		rank := noRank
		if i+1 < n {
			rank = m.bytes[int(c)<<8|int(word[i+1])]
		}
		w.put(i, byteIDs[c], rank)
	}
	return w.settle(m, n)
}

// grow makes room for a word of up to n tokens. It returns the memory to use.
func (w *longWord) grow(n int) *longWord {
	if n > keptWord {
		w = new(longWord) // for this one
	}
	if cap(w.ids) < n {
		w.ids, w.ranks = make([]uint32, n), make([]uint32, n)
		w.prev, w.next = make([]int32, n), make([]int32, n)
	}
	w.ids, w.ranks, w.prev, w.next = w.ids[:n], w.ranks[:n], w.prev[:n], w.next[:n]
	w.queue = w.queue[:0]
	return w
}

// put sets the token at i, and the rank of the pair that begins with it.
func (w *longWord) put(i int, id, rank uint32) {
	w.ids[i], w.ranks[i] = id, rank
	w.prev[i], w.next[i] = int32(i-1), int32(i+1)
	if rank != noRank {
		w.queue = append(w.queue, uint64(rank)<<32|uint64(i))
	}
}

// settle merges the first n tokens.
func (w *longWord) settle(m *merges, n int) []uint32 {
	ids, ranks, prev, next := w.ids, w.ranks, w.prev, w.next
	w.queue.order()
	// rerank looks up the pair that begins at i.
	rerank := func(i int32) {
		ranks[i] = noRank
		if j := next[i]; int(j) < n {
			if ranks[i] = m.rank(ids[i], ids[j]); ranks[i] != noRank {
				w.queue.push(uint64(ranks[i])<<32 | uint64(i))
			}
		}
	}
	for len(w.queue) > 0 {
		x := w.queue.pop()
		i, rank := int32(uint32(x)), uint32(x>>32)
		if ranks[i] != rank {
			continue // it is another pair now, or none
		}
		gone := next[i]
		ids[i], ranks[gone] = m.joined[rank], noRank
		next[i] = next[gone]
		if j := next[i]; int(j) < n {
			prev[j] = i
		}
		rerank(i)
		if prev[i] >= 0 {
			rerank(prev[i])
		}
	}
	// What is left, moved together: a token never moves behind the place it has.
	k := 0
	for i := int32(0); int(i) < n; i = next[i] {
		ids[k] = ids[i]
		k++
	}
	return ids[:k]
}
