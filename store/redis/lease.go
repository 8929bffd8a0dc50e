package redis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

var _ store.Leases = (*Index)(nil)

// Lease implements store.Leases.
func (x *Index) Lease(ctx context.Context, c store.LeaseCall) (store.LeaseView, error) {
	const doing = "lease"
	if err := x.space.Check(ctx, doing); err != nil {
		return store.LeaseView{}, err
	}
	if err := c.Validate(); err != nil {
		return store.LeaseView{}, err
	}
	var calls []*keyspace.Call
	if len(c.Acquire)+len(c.Release) > leaseStep {
		for part := range slices.Chunk(c.Release, leaseStep) {
			calls = append(calls, x.leaseCall(&c, noView, nil, part))
		}
		for part := range slices.Chunk(c.Acquire, leaseStep) {
			calls = append(calls, x.leaseCall(&c, noView, part, nil))
		}
		c.Acquire, c.Release = nil, nil
	}
	calls = append(calls, x.leaseCall(&c, strconv.FormatUint(c.Version, 10), c.Acquire, c.Release))
	cmds, err := x.space.Run(ctx, calls...)
	if err != nil {
		return store.LeaseView{}, keyspace.Failed(ctx, doing, err)
	}
	v, many, err := parseLeases(cmds[len(cmds)-1].Val())
	if err == nil && len(cmds) > 1 {
		// The later parts find the caller alive by the first.
		var first store.LeaseView
		first, _, err = parseLeases(cmds[0].Val())
		v.Lapsed = first.Lapsed
	}
	if err != nil {
		return store.LeaseView{}, fmt.Errorf("redis: %s: %w", doing, err)
	}
	if many {
		if v.Leases, err = x.allLeases(ctx); err != nil {
			return store.LeaseView{}, keyspace.Failed(ctx, doing, err)
		}
	}
	return v, nil
}

const (
	// leaseStep is how many ranks one run of lease.lua takes. A thousand in one would
	// keep others from the server for milliseconds.
	leaseStep = 128
	// leasePage is how many leases are read at a time where there are many.
	leasePage = 512
	// noView is the version of a call that wants to see no leases.
	noView = "-"
)

// leaseCall is one run of lease.lua, with all of c but its ranks and version.
func (x *Index) leaseCall(c *store.LeaseCall, version string, acquire, release []store.RankRef) *keyspace.Call {
	args := make([]string, 0, 8+len(acquire)+len(release))
	args = append(args, c.Reader.Name, strconv.Itoa(c.Reader.Ranks), strconv.FormatInt(c.TTL.Milliseconds(), 10), version,
		strconv.Itoa(store.MaxReaders), strconv.Itoa(x.config.MaxHolders), strconv.FormatUint(c.After, 10), strconv.Itoa(len(acquire)))
	for _, list := range [][]store.RankRef{acquire, release} {
		for _, r := range list {
			args = append(args, strconv.Itoa(r.Rank)+" "+r.Pod)
		}
	}
	call := x.space.RegistryCall(lua.Lease, x.space.Names.Own(""), args...)
	living, leases := x.space.Names.Readers()
	call.Keys = append(call.Keys, living, leases)
	return call
}

// allLeases reads the leases page by page. What changes meanwhile may be in it or not:
// the version, which is older, tells the caller next time that there is more to see.
func (x *Index) allLeases(ctx context.Context) (map[store.RankRef]store.Lease, error) {
	_, key := x.space.Names.Readers()
	out := map[store.RankRef]store.Lease{}
	for cursor := uint64(0); ; {
		x.space.Trips.Add(1)
		page, next, err := x.space.Client.HScan(ctx, key, cursor, "", leasePage).Result()
		if err != nil {
			return nil, err
		}
		for i := 0; i+1 < len(page); i += 2 {
			addLease(out, page[i], page[i+1])
		}
		if cursor = next; cursor == 0 {
			return out, nil
		}
	}
}

// parseLeases reads the reply of lease.lua; many says that the leases are to be read
// apart. What others have written into the keys is left out where it is no reader or no
// lease.
func parseLeases(reply any) (v store.LeaseView, many bool, err error) {
	parts, _ := reply.([]any)
	if len(parts) < 3 {
		return v, false, fmt.Errorf("the reply is %.100v", reply)
	}
	version, _ := parts[0].(string)
	if v.Version, err = strconv.ParseUint(version, 10, 64); err != nil {
		return v, false, fmt.Errorf("the version is %q", redisx.Clip(version))
	}
	v.Lapsed = keyspace.IsOne(parts[1])
	members, _ := parts[2].([]any)
	for _, m := range members {
		text, _ := m.(string)
		name, ranks, _ := strings.Cut(text, " ")
		if n, err := strconv.Atoi(ranks); err == nil && n >= 0 && name != "" {
			v.Readers = append(v.Readers, store.Reader{Name: name, Ranks: n})
		}
	}
	slices.SortFunc(v.Readers, func(a, b store.Reader) int { return cmp.Compare(a.Name, b.Name) })
	if len(parts) == 3 {
		return v, false, nil
	}
	pairs, ok := parts[3].([]any)
	v.Leases = make(map[store.RankRef]store.Lease, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		field, _ := pairs[i].(string)
		text, _ := pairs[i+1].(string)
		addLease(v.Leases, field, text)
	}
	return v, !ok, nil
}

// addLease adds a field of the leases, if it is one.
func addLease(to map[store.RankRef]store.Lease, field, text string) {
	rank, pod, _ := strings.Cut(field, " ")
	fence, reader, _ := strings.Cut(text, " ")
	r, err := strconv.Atoi(rank)
	f, err2 := strconv.ParseUint(fence, 10, 64)
	if err != nil || err2 != nil || store.CheckPodName(pod) != nil || store.CheckRank(r) != nil || store.CheckFence(f) != nil {
		return
	}
	to[store.RankRef{Pod: pod, Rank: r}] = store.Lease{Reader: reader, Fence: f}
}
