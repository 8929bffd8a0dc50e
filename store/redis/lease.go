package redis

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/store"
)

//go:embed lua/lease.lua
var leaseLua string

var leaseScript = newScript(registryLua, leaseLua)

var _ store.Leases = (*Index)(nil)

// readers are the keys of who reads what: who lives, and the leases.
func (n *names) readers() (living, leases string) {
	reg := n.prefix + "{" + registryTag + "}:"
	return reg + "readers", reg + "leases"
}

// Lease implements store.Leases.
func (x *Index) Lease(ctx context.Context, c store.LeaseCall) (store.LeaseView, error) {
	const doing = "lease"
	if err := x.begin(ctx, doing); err != nil {
		return store.LeaseView{}, err
	}
	if err := c.Validate(); err != nil {
		return store.LeaseView{}, err
	}
	args := make([]string, 0, 8+len(c.Acquire)+len(c.Release))
	args = append(args, c.Reader.Name, strconv.Itoa(c.Reader.Ranks), strconv.FormatInt(c.TTL.Milliseconds(), 10), strconv.FormatUint(c.Version, 10),
		strconv.Itoa(store.MaxReaders), strconv.Itoa(x.config.MaxHolders), strconv.FormatUint(c.After, 10), strconv.Itoa(len(c.Acquire)))
	for _, list := range [][]store.RankRef{c.Acquire, c.Release} {
		for _, r := range list {
			args = append(args, strconv.Itoa(r.Rank)+" "+r.Pod)
		}
	}
	call := x.registryCall(leaseScript, x.names.own(""), args...)
	living, leases := x.names.readers()
	call.keys = append(call.keys, living, leases)
	cmds, err := x.run(ctx, call)
	if err != nil {
		return store.LeaseView{}, failed(ctx, doing, err)
	}
	v, err := parseLeases(cmds[0].Val())
	if err != nil {
		return store.LeaseView{}, fmt.Errorf("redis: %s: %w", doing, err)
	}
	return v, nil
}

// parseLeases reads the reply of lease.lua. What others have written into the keys
// is left out where it is no reader or no lease.
func parseLeases(reply any) (v store.LeaseView, err error) {
	parts, _ := reply.([]any)
	if len(parts) < 3 {
		return v, fmt.Errorf("the reply is %.100v", reply)
	}
	version, _ := parts[0].(string)
	if v.Version, err = strconv.ParseUint(version, 10, 64); err != nil {
		return v, fmt.Errorf("the version is %q", clip(version))
	}
	v.Lapsed = isOne(parts[1])
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
		return v, nil
	}
	pairs, _ := parts[3].([]any)
	v.Leases = make(map[store.RankRef]store.Lease, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		field, _ := pairs[i].(string)
		text, _ := pairs[i+1].(string)
		rank, pod, _ := strings.Cut(field, " ")
		fence, reader, _ := strings.Cut(text, " ")
		r, err := strconv.Atoi(rank)
		f, err2 := strconv.ParseUint(fence, 10, 64)
		if err != nil || err2 != nil || store.CheckPodName(pod) != nil || store.CheckRank(r) != nil || store.CheckFence(f) != nil {
			continue
		}
		v.Leases[store.RankRef{Pod: pod, Rank: r}] = store.Lease{Reader: reader, Fence: f}
	}
	return v, nil
}
