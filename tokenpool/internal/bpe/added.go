package bpe

import "bytes"

// matcher finds added tokens in a text: the longest one of those that begin first.
type matcher struct {
	nodes  []node
	firsts [256]bool
	// only is the byte that all begin with, if alone.
	only  byte
	alone bool
}

// node is where a beginning of tokens leads to.
type node struct {
	next  map[byte]int32
	token uint32
	ends  bool // a token ends here
}

// maxAdded is how many bytes an added token has at most.
const maxAdded = 512

func newMatcher(tokens map[string]uint32) *matcher {
	if len(tokens) == 0 {
		return nil
	}
	m := &matcher{nodes: make([]node, 1)}
	for content, id := range tokens {
		m.firsts[content[0]] = true
		at := int32(0)
		for i := range len(content) {
			n := &m.nodes[at]
			if n.next == nil {
				n.next = map[byte]int32{}
			}
			to, ok := n.next[content[i]]
			if !ok {
				to = int32(len(m.nodes))
				n.next[content[i]] = to
				m.nodes = append(m.nodes, node{})
			}
			at = to
		}
		m.nodes[at].token, m.nodes[at].ends = id, true
	}
	n := 0
	for c, is := range m.firsts {
		if is {
			m.only = byte(c)
			n++
		}
	}
	m.alone = n == 1
	return m
}

// find returns the first token in b[i:end] and where it stands; from is end if there is
// none. A nil matcher finds none.
func (m *matcher) find(b []byte, i, end int) (from, to int, token uint32) {
	if m == nil {
		return end, end, 0
	}
	for i < end {
		if m.alone {
			n := bytes.IndexByte(b[i:end], m.only)
			if n < 0 {
				return end, end, 0
			}
			i += n
		} else if !m.firsts[b[i]] {
			i++
			continue
		}
		at, found := int32(0), false
		for j := i; j < end; j++ {
			next, ok := m.nodes[at].next[b[j]]
			if !ok {
				break
			}
			if at = next; m.nodes[at].ends {
				to, token, found = j+1, m.nodes[at].token, true
			}
		}
		if found {
			return i, to, token
		}
		i++
	}
	return end, end, 0
}
