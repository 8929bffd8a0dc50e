package chat

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// How much is kept of templates that requests bring, by the length of their sources.
// A compiled template takes up to 80 times its source, outside of Go's heap.
const (
	maxKeptSource  = 32 << 10  // the longest known template has 20 KB
	maxKeptSources = 256 << 10 // of all together
)

// Templates compiles the templates that requests bring, and keeps the last ones. A
// template that is not kept gives its memory back as soon as the last rendering with
// it has ended. It is safe for concurrent use, and renderers may share it.
type Templates struct {
	mu      sync.Mutex // protects the rest, and all of lent
	kept    *simplelru.LRU[string, *lent]
	sources int // their lengths together
}

// lent is a template in use or kept.
type lent struct {
	*Template
	users int
	kept  bool
}

// NewTemplates returns an empty Templates.
func NewTemplates() *Templates {
	// NewLRU fails for a size below 1 only. What bounds it is sources.
	kept, _ := simplelru.NewLRU[string, *lent](maxKeptSources, nil)
	return &Templates{kept: kept}
}

// borrow returns the compiled template, which giveBack must get.
func (c *Templates) borrow(source string) (*lent, error) {
	c.mu.Lock()
	if l, ok := c.kept.Get(source); ok {
		l.users++
		c.mu.Unlock()
		return l, nil
	}
	c.mu.Unlock()
	t, err := Compile(source)
	if err != nil {
		return nil, err
	}
	l := &lent{Template: t, users: 1}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(source) > maxKeptSource || c.kept.Contains(source) {
		return l, nil
	}
	for c.sources+len(source) > maxKeptSources {
		if _, old, ok := c.kept.RemoveOldest(); ok {
			c.sources -= len(old.source)
			old.kept = false
			old.closeUnused()
		}
	}
	c.kept.Add(source, l)
	c.sources += len(source)
	l.kept = true
	return l, nil
}

// giveBack ends the use of a template.
func (c *Templates) giveBack(l *lent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.users--
	l.closeUnused()
}

// closeUnused closes a template that no render can reach any more.
func (l *lent) closeUnused() {
	if l.users == 0 && !l.kept {
		l.close()
	}
}
