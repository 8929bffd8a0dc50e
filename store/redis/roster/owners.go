package roster

import (
	"net"
	"strconv"
	"sync"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// The ids by which entries name pods within a snapshot: local ones, after those of texts.
const firstOwner = store.FirstLocal + 1<<26

// owners finds out which pods entries of a model mean.
type owners struct {
	r    roster
	late map[string]bool
	mu   sync.Mutex               // protects by
	by   map[blockkey.Model]texts // made when the first entry of the model is met
}

// newOwners returns what entries can name, and the holders that the registry has to
// know for it: rank 0 of each pod, in tier cpu. When entries are not read it is
// nil.
func (c *Cache) newOwners(r roster, late map[string]bool) (o *owners, extra []store.Holder) {
	if !c.c.Entries {
		return nil, nil
	}
	for i, m := range r.members {
		if !late[m.name] && m.pod.PartOf == nil {
			extra = append(extra, store.Holder{ID: firstOwner + store.HolderID(i), Pod: m.name, Rank: 0, Tier: store.CPU})
		}
	}
	return &owners{r: r, late: late, by: map[blockkey.Model]texts{}}, extra
}

// Owners says which holder a text of an entry stands for, if any.
type Owners interface {
	Owner(text string) (store.HolderID, bool)
}

// Owners returns those that entries of a model can name.
func (s *Snapshot) Owners(m blockkey.Model) Owners { return s.owners.of(m) }

// of returns the texts that name the pods of a model.
func (o *owners) of(m blockkey.Model) texts {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	t, made := o.by[m]
	if made {
		return t
	}
	part := roster{}
	ids := map[string]store.HolderID{}
	for i, member := range o.r.members {
		if !o.late[member.name] && member.pod.PartOf == nil && (member.guest || blockkey.ModelOf(member.pod.Model) == m) {
			part.members = append(part.members, member)
			ids[member.name] = firstOwner + store.HolderID(i)
		}
	}
	t = newTexts(part, nil, ids)
	o.by[m] = t
	return t
}

// Owner returns the holder that an entry's text stands for.
func (t texts) Owner(text string) (store.HolderID, bool) {
	if id := t[text]; id != 0 {
		return id, true
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return 0, false
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return 0, false
	}
	id := t[host]
	return id, id != 0
}
