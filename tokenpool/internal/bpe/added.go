package bpe

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// matcher finds added tokens in a text: the longest one of those that begin first.
type matcher struct {
	nodes  []node
	firsts [256]bool
	// only is the byte that all begin with, if alone.
	only  byte
	alone bool
	// inked says that U+0020 is no white space to these tokens: it stands for U+2581.
	inked bool
}

// node is where a beginning of tokens leads to.
type node struct {
	next map[byte]int32
	addedToken
	ends bool // a token ends here
}

// addedToken is one that is looked for.
type addedToken struct {
	id uint32
	// left and right say that it takes the white space on that side.
	left, right bool
}

// maxAdded is how many bytes an added token has at most.
const maxAdded = 512

func newMatcher(tokens map[string]addedToken) *matcher {
	if len(tokens) == 0 {
		return nil
	}
	m := &matcher{nodes: make([]node, 1)}
	for content, token := range tokens {
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
		m.nodes[at].addedToken, m.nodes[at].ends = token, true
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
// none.
func (m *matcher) find(b []byte, i, end int) (from, to int, token addedToken) {
	for i < end {
		if m.alone {
			n := bytes.IndexByte(b[i:end], m.only)
			if n < 0 {
				return end, end, token
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
				to, token, found = j+1, m.nodes[at].addedToken, true
			}
		}
		if found {
			return i, to, token
		}
		i++
	}
	return end, end, token
}

// each finds all tokens in b[i:end]. It calls token for each, with where it ends, and
// between for what stands before, between and behind them, in the order of the text. A nil
// matcher finds none.
func (m *matcher) each(b []byte, i, end int, between func(i, j int), token func(id uint32, to int)) {
	for m != nil && i < end {
		from, to, t := m.find(b, i, end)
		if from == end {
			break
		}
		for t.left && from > i {
			r, n := utf8.DecodeLastRune(b[i:from])
			if !m.isSpace(r) {
				break
			}
			from -= n
		}
		// No token begins with white space where one takes it, so none is passed over.
		for t.right && to < end {
			r, n := utf8.DecodeRune(b[to:end])
			if !m.isSpace(r) {
				break
			}
			to += n
		}
		if i < from {
			between(i, from)
		}
		token(t.id, to)
		i = to
	}
	if i < end {
		between(i, end)
	}
}

func (m *matcher) isSpace(r rune) bool { return unicode.IsSpace(r) && (!m.inked || r != ' ') }

// startsWithSpace reports whether white space is the first of a token's content.
func startsWithSpace(content string) bool {
	r, _ := utf8.DecodeRuneInString(content)
	return unicode.IsSpace(r)
}

// ink sets inked.
func (m *matcher) ink(inked bool) {
	if m != nil {
		m.inked = inked
	}
}
