package keyspace

import (
	"fmt"
	"hash/maphash"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// onceLimit is how many garbled texts are remembered as logged, in half a megabyte.
const onceLimit = 4096

// onceLog remembers which garbled texts have been logged: they stay where they are, and
// each load of the registry meets them again.
type onceLog struct {
	mu   sync.Mutex // protects texts
	seed maphash.Seed
	// texts has hashes of the last texts, by the hash of what they are the text of.
	texts *simplelru.LRU[uint64, uint64]
}

func newOnceLog(limit int) *onceLog {
	l := &onceLog{seed: maphash.MakeSeed()}
	l.texts, _ = simplelru.NewLRU[uint64, uint64](limit, nil) // which fails only without room for one
	return l
}

// first reports whether this is news: another text than was last met under the name.
func (l *onceLog) first(name, text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	of, hash := maphash.String(l.seed, name), maphash.String(l.seed, text)
	if last, said := l.texts.Get(of); said && last == hash {
		return false
	}
	l.texts.Add(of, hash)
	return true
}

// Unreadable counts a text of the registry that cannot be read, and logs it the first time.
func (s *Space) Unreadable(what, text string, err error) {
	s.Garbled.Add(1)
	if s.said.first(what, text) {
		s.Log(fmt.Sprintf("%s cannot be read and counts as none: %v", what, err))
	}
}
