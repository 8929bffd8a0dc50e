package coordinator

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// ip is where the server is, as it has told, or else where it speaks from. It is
// feed.ErrShared while two that tell different addresses register from one host: nothing
// says which of them events are of.
func (in *instance) ip() (string, error) {
	in.memberMu.Lock()
	defer in.memberMu.Unlock()
	switch {
	case in.member.IP == "":
		return in.host, nil
	case in.before.IP != "" && time.Since(in.replaced) < 2*in.c.config.Lease:
		return "", in.shared(in.where(in.before.IP), in.where(in.member.IP))
	}
	return in.member.IP, nil
}

// where says where a server of this host is.
func (in *instance) where(ip string) string {
	return fmt.Sprintf("%s (connected from %s)", ip, in.host)
}

func (in *instance) shared(one, other string) error {
	return fmt.Errorf("%w, so that nothing is kept of what they say: %s and %s; give each an instance id of its own", feed.ErrShared, one, other)
}

// hear notes that events of an incarnation have come.
func (in *instance) hear(incarnation uint64) {
	in.memberMu.Lock()
	defer in.memberMu.Unlock()
	now := time.Now()
	if in.speaks != incarnation || in.began.IsZero() {
		in.speaks, in.began = incarnation, now
	}
	in.spoke = now
}

// outlived says that an incarnation speaks that another one has followed: both live, and
// the later one counts, as it does for LMCache's own coordinator.
func (in *instance) outlived(old, by uint64) {
	in.memberMu.Lock()
	if in.before.IP != "" {
		in.replaced = time.Now()
	}
	in.memberMu.Unlock()
	in.tellShared(fmt.Sprintf("incarnation %d (connected from %s), which does not count", old, in.host), fmt.Sprintf("incarnation %d", by))
}

// tellShared reports two servers with one id, once for each pair.
func (in *instance) tellShared(one, other string) {
	in.memberMu.Lock()
	pair := one + other
	tell := in.toldRival != pair
	in.toldRival = pair
	in.memberMu.Unlock()
	if tell {
		in.c.config.Observer.Shared(in.id, []string{one, other})
	}
}

// place finds the targets of the server. It is feed.ErrShared where another one, at
// another host, has its id and the same claim to one of them.
func (in *instance) place(reg *store.Registry) ([]feed.Target, error) {
	pods := &in.c.config.Pods
	ip, err := in.ip()
	if err != nil {
		return nil, err
	}
	targets, err := pods.Find(reg, in.id, ip)
	if err == nil {
		err = pods.Doubt(reg, in.id, ip)
	}
	if err != nil {
		return nil, err
	}
	for _, other := range in.others() {
		theirs, err := other.ip()
		if err != nil {
			continue
		}
		in.tellShared(in.where(ip), other.where(theirs))
		list, err := pods.Find(reg, in.id, theirs)
		if err != nil {
			continue
		}
		for _, t := range targets {
			if slices.Contains(list, t) && (!t.At(reg, ip) || t.At(reg, theirs)) {
				return nil, in.shared(in.where(ip), other.where(theirs))
			}
		}
	}
	return targets, nil
}

// others are servers at other hosts that have the id and live: they have spoken since this
// one began, within a lease. One process that comes from several hosts is not among them.
func (in *instance) others() (out []*instance) {
	in.c.mu.Lock()
	var same []*instance
	for id, other := range in.c.instances {
		if id.id == in.id && other != in {
			same = append(same, other)
		}
	}
	in.c.mu.Unlock()
	in.memberMu.Lock()
	speaks, began := in.speaks, in.began
	in.memberMu.Unlock()
	for _, other := range same {
		other.memberMu.Lock()
		if other.speaks != speaks && other.spoke.After(began) && time.Since(other.spoke) < in.c.config.Lease {
			out = append(out, other)
		}
		other.memberMu.Unlock()
	}
	return out
}
