package servercheck

import (
	"fmt"
	"strings"

	"github.com/kvatlas/kvatlas/check"
)

// judgeMemory looks at the limit and at what happens when it is reached.
func (l *Look) judgeMemory() {
	limit, used, system := l.number("maxmemory"), l.number("used_memory"), l.number("total_system_memory")
	policy := l.info["maxmemory_policy"]
	evicts := strings.HasPrefix(policy, "allkeys-")

	f := check.Finding{What: "memory limit", Found: fmt.Sprintf("%s used of %s", size(used), size(limit))}
	switch {
	case limit == 0:
		f.Level = check.Warn
		f.Found = "none"
		if system > 0 {
			f.Found += ", on a machine of " + size(system)
		}
		f.Means = "the index may grow until the machine has no memory left and the kernel kills the server"
		f.Do = "set maxmemory to what the index may take, and leave room beside it for the buffers of clients, and for the copy that a save makes"
	case used >= limit && !evicts:
		f.Level = check.Fail
		f.Means = "the server is full: new blocks, pods and models are refused now; removals, leases and sweeping, which makes room, go on"
		f.Do = "raise maxmemory, now; then see in docs/performance.md what the index needs"
	case used >= limit-limit/10:
		f.Level = check.Warn
		f.Means = "the server is nearly full; see what the eviction policy does then"
		f.Do = "raise maxmemory, or index less: larger index blocks (block-size) make fewer keys"
	case system > 0 && limit > system-system/10:
		f.Level = check.Warn
		f.Means = fmt.Sprintf("the machine has %s: it runs out of memory before the limit is reached", size(system))
		f.Do = "set maxmemory to at most three quarters of the machine's memory"
	}
	l.add(f)
	if policy != "" {
		l.add(evictionPolicy(policy, limit > 0, l.number("evicted_keys")))
		l.add(blockMemory(policy, limit > 0, l.Index.Prefix, l.sample))
	}
}

// evictionPolicy says what each policy does to the index.
//
// The shares of blocks that cannot be reached are measured on chains of prompts.
func evictionPolicy(policy string, limited bool, evicted int64) check.Finding {
	f := check.Finding{What: "eviction policy", Found: policy}
	if evicted > 0 {
		f.Found += fmt.Sprintf(", %d keys evicted since the server's start", evicted)
	}
	const (
		remedy    = "CONFIG SET maxmemory-policy noeviction, with memory enough"
		evictsAll = "when the server is full, it evicts the keys of the registry too: no pod holds anything until each has registered and written again, and a pod that is dead may get another lease. Of the blocks that are left, so many cannot be reached, because one before them in their chain is gone: "
	)
	switch {
	case policy == "noeviction":
		f.Means = "when the server is full, writes are refused: new blocks are missing from the index, and lookups go on"
	case strings.HasPrefix(policy, "volatile-"):
		f.Level = check.Warn
		f.Means = "it evicts keys that expire only, and no block does: when the server is full, it first takes the keys of others, and the sweeper's lock, and then writes are refused, as with noeviction"
		f.Do = remedy
	case policy == "allkeys-lru":
		f.Level = check.Fail
		f.Means = evictsAll + "26 %"
		f.Do = remedy
	case policy == "allkeys-lfu", policy == "allkeys-random":
		f.Level = check.Fail
		f.Means = evictsAll + "96 %"
		f.Do = remedy
	default:
		f.Level = check.Info
		f.Means = "kvatlas does not know this policy"
		f.Do = remedy
	}
	if !limited && f.Level > check.OK {
		// It never acts, until a limit is set.
		f.Level = min(f.Level, check.Warn)
		f.Found += ", without a limit"
		f.Means = "nothing is evicted while there is no memory limit. With one: " + f.Means
	}
	return f
}

// blockMemory says what one block takes.
func blockMemory(policy string, limited bool, prefix string, s sample) check.Finding {
	f := check.Finding{What: "memory of a block"}
	if s.measured > 0 {
		f.Found = fmt.Sprintf("%d bytes on average of %d blocks; ", s.bytes/int64(s.measured), s.measured)
	}
	byUse := strings.HasSuffix(policy, "-lru") || strings.HasSuffix(policy, "-lfu")
	switch {
	case byUse && limited:
		f.Level = check.Info
		f.Found += "small integers are not shared"
		f.Means = "a block with one holder takes 72 bytes instead of 56: under an LRU or LFU policy each value needs an object of its own, for the time of its last use"
		f.Do = "noeviction saves a fifth of the memory"
	case len(prefix) > 3:
		f.Level = check.Info
		f.Found += fmt.Sprintf("a prefix of %d bytes", len(prefix))
		f.Means = "names of more than 14 bytes take a larger allocation: a block takes at least 8 bytes more than with a prefix of 3 bytes or less"
		f.Do = "a prefix of at most 3 bytes saves them; it can only be changed together with a new index"
	default:
		f.Found += "small integers are shared"
	}
	return f
}
