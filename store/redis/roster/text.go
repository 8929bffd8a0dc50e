package roster

import (
	"bytes"
	"net"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/store"
)

// An engine that knows nothing of ids may write the address of a pod as a block's
// value: a text, or several joined by commas. Such a text stands for the pod's rank 0
// in tier gpu. It has no life of its own, so that two things are done for it:
//
//   - It ages. The sweeper gives each value of texts that has no time to live one;
//     a writer that writes it again takes that away and begins anew.
//   - It counts only for a pod whose former lives have been swept. A sweep deletes
//     values with a text that names no pod that counts:
//
//     1. retire: 7 lives have ended; the text names no pod
//     2. register: the pod is born when 7 had ended, and 6 are swept: it does not
//     count for texts yet
//     3. a sweep that begins now knows of 7, meets every value of before 2, and
//     deletes the text
//     4. it ends, and 7 are swept: what is written from now on counts
//
// A text that names no registered pod counts for a pod that a query names (guests.go). Or
// it counts for the pod of that name where the model allows it, while all ended lives are
// swept. A sweep that has lives to sweep deletes it, and one that has none lets it age.
//
// The fold keeps no order between texts and ids. An id that is added takes the place of
// texts. A text takes that of ids, since its writer knows no better than SET.

// texts are the texts that name pods, and the holders that they stand for. A holder is 0
// where the pods are registered and do not count, or are several.
type texts map[string]store.HolderID

// newTexts finds out which texts name the pods that count. They are a pod's
// name, its address, and the host of either where no other pod has the same.
func newTexts(r roster, late map[string]bool, ids map[string]store.HolderID) texts {
	out := texts{}
	hosts := map[string]*member{} // nil for a host of several
	addresses := map[string]*member{}
	names := make(map[string]bool, len(r.members))
	for _, m := range r.members {
		names[m.name] = true
	}
	claim := func(to map[string]*member, text string, m *member) {
		if other, taken := to[text]; taken && other != m {
			m = nil
		}
		to[text] = m
	}
	for _, m := range r.members {
		if plain := store.PlainName(m.name); plain != m.name && names[plain] {
			continue // its texts are those of the registration under the pod's plain name
		}
		if m.pod.PartOf != nil || m.met {
			continue // a cache worker, which has no address of its own, or a text that is its own name only
		}
		for _, text := range []string{m.name, endpoint(m.pod.Address)} {
			if text == "" {
				continue
			}
			claim(addresses, text, m)
			for _, h := range hostsOf(text) {
				claim(hosts, h, m)
			}
		}
	}
	put := func(from map[string]*member) {
		for text, m := range from {
			out[text] = 0
			if m == nil {
				continue // a host that is another's address
			}
			if id, counts := ids[m.name]; counts && !late[m.name] {
				out[text] = id
			}
		}
	}
	put(hosts)
	put(addresses)
	for _, m := range r.members { // names are the pods' own, whatever addresses say
		if m.pod.PartOf != nil {
			continue
		}
		out[m.name] = ids[m.name]
	}
	return out
}

// endpoint is the host:port of an address, which may be a URL.
func endpoint(a string) string {
	if _, rest, ok := strings.Cut(a, "://"); ok {
		a, _, _ = strings.Cut(rest, "/")
	}
	return a
}

// hostsOf are the ways to write the host of an address without the port.
func hostsOf(a string) []string {
	host, _, err := net.SplitHostPort(a)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(a, "["), "]")
	}
	if strings.Contains(host, ":") {
		return []string{host, "[" + host + "]"}
	}
	return []string{host}
}

// append appends the holders that a value of texts stands for, ascending, and
// reports whether each text names a pod that counts.
func (t texts) append(ids []store.HolderID, v []byte) (_ []store.HolderID, all bool) {
	begin := len(ids)
	all = true
	v = bytes.TrimPrefix(v, []byte{','})
	for len(v) > 0 {
		n := slices.Index(v, ',')
		text := v
		if n < 0 {
			v = nil
		} else {
			text, v = v[:n], v[n+1:]
		}
		if id := t[string(text)]; id != 0 {
			ids = append(ids, id)
		} else {
			all = false
		}
	}
	part := ids[begin:]
	slices.Sort(part)
	return ids[:begin+len(slices.Compact(part))], all
}

// local returns the holders that texts stand for: by pod, and those of them that
// the registry has to know beside those with ids.
func (c *Cache) local(r roster, late map[string]bool) (ids map[string]store.HolderID, extra []store.Holder) {
	if !c.c.Texts {
		return nil, nil
	}
	ids = make(map[string]store.HolderID, len(r.members))
	for i, m := range r.members {
		if late[m.name] || m.born > r.swept || m.pod.PartOf != nil {
			continue
		}
		if m.guest && r.swept != r.ended {
			continue // it may be one whose life has ended
		}
		id := store.FirstLocal + store.HolderID(i)
		if len(m.holders) > 0 && m.holders[0].Rank == 0 && m.holders[0].Tier == store.GPU {
			id = m.holders[0].ID
		} else {
			extra = append(extra, store.Holder{ID: id, Pod: m.name, Rank: 0, Tier: store.GPU})
		}
		ids[m.name] = id
	}
	return ids, extra
}
