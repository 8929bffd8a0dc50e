package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// RankRef names a rank of a pod.
type RankRef struct {
	Pod  string
	Rank int
}

// String is pod/rank.
func (r RankRef) String() string { return r.Pod + "/" + strconv.Itoa(r.Rank) }

// Reader is a process that reads ranks' events.
type Reader struct {
	// Name is the process's own for this one run of it. Another process, and the same
	// one started again, has another name. It is 1 to 128 bytes without spaces.
	Name string
	// Ranks is how many ranks it will read at most; 0 means none.
	Ranks int
}

// Lease names the process that reads a rank.
type Lease struct {
	// Reader is the Name of its reader. It may be dead; see LeaseView.Readers.
	Reader string
	// Fence is what it writes under: see Guard. A later lease of the rank has a
	// higher one.
	Fence uint64
}

// Limits of one call of Leases.
const (
	// MaxLeaseRanks is how many ranks one call can acquire, and how many release.
	MaxLeaseRanks = 1024
	// MaxReaders is how many readers can live at a time.
	MaxReaders = 1024
	// MaxLeaseTTL is the longest time that a reader can be silent.
	MaxLeaseTTL = time.Hour
	// maxReaderName is the longest Name of a reader in bytes.
	maxReaderName = 128
)

// LeaseCall is what a reader says and wants.
type LeaseCall struct {
	// Reader is the caller.
	Reader Reader
	// TTL is how long the reader lives without another call, 10 ms to MaxLeaseTTL.
	// With 0 it ends its life: its leases are free.
	TTL time.Duration
	// Acquire are ranks to read. One that is free, or whose reader is dead, is
	// given under a new fence, and so is one that the caller has. One that another
	// living reader has is not.
	Acquire []RankRef
	// Release are ranks to give up. Those that a dead reader has are given up too;
	// those of another living reader are left alone.
	Release []RankRef
	// After is a fence that those given now shall be above; 0 means none. It is for a writer that was refused
	// under its own, see ErrFenced, and has asked Life for the other's.
	After uint64
	// Version is that of the last view. While it is the present one the next view
	// comes without its leases.
	Version uint64
}

// LeaseView is what there is after a call.
type LeaseView struct {
	// Version changes with each change of the leases. It is compared for equality
	// only.
	Version uint64
	// Readers are all that live, ascending by name, the caller among them.
	Readers []Reader
	// Leases are those of all ranks, of dead readers too. They are nil while
	// Version is that of the call.
	Leases map[RankRef]Lease
	// Lapsed says that the index did not know the caller as alive when it called. It is
	// new, or was silent for longer than its TTL, or the index has forgotten it. What
	// it had then may be another's.
	Lapsed bool
}

// Leases gives each rank one reader among all processes. Memory and Redis
// implement it beside Index, under one contract (storetest.RunLeases).
//
// A lease lives as long as its reader, so that renewing any number of them is one
// small write. All times are the index's own. That two processes both believe to
// read a rank cannot be ruled out: one of them may have been stopped for a while.
// What keeps them apart is the fence that the leases are given under. It only
// grows, and none is given twice, also when the index has lost its latest writes.
// The process that begins or takes over the generation with the higher fence
// shuts the other one out.
type Leases interface {
	// Lease renews the life of the caller, releases, acquires, and returns what
	// there is then, in one step and one round trip. It may be repeated: that costs
	// fences, and changes nothing else. Beyond MaxReaders, or beyond the index's
	// limit of holders, it gets ErrFull and has done nothing. An index may take a call
	// of more than 128 ranks, or a view of more than 256 leases, in several steps. Then
	// an error can leave some of it done, and reading the view may take further round
	// trips. The view may also be of a time later than its Version, which the next one
	// tells.
	Lease(ctx context.Context, c LeaseCall) (LeaseView, error)
}

// Validate returns ErrInvalid, with the field and the reason, for a call that cannot be made.
func (c *LeaseCall) Validate() error {
	if err := checkName("name of the reader", c.Reader.Name, maxReaderName); err != nil {
		return err
	}
	if strings.Contains(c.Reader.Name, " ") {
		return fmt.Errorf("%w: the name of the reader %q has a space", ErrInvalid, c.Reader.Name)
	}
	if c.Reader.Ranks < 0 {
		return fmt.Errorf("%w: the reader takes %d ranks", ErrInvalid, c.Reader.Ranks)
	}
	if c.TTL != 0 && (c.TTL < 10*time.Millisecond || c.TTL > MaxLeaseTTL) {
		return fmt.Errorf("%w: TTL is %v, it can be 10 ms to %v, or 0", ErrInvalid, c.TTL, MaxLeaseTTL)
	}
	if c.TTL == 0 && len(c.Acquire) > 0 {
		return fmt.Errorf("%w: a reader that ends acquires nothing", ErrInvalid)
	}
	if c.After != 0 {
		if err := CheckFence(c.After); err != nil {
			return err
		}
	}
	for _, list := range [][]RankRef{c.Acquire, c.Release} {
		if len(list) > MaxLeaseRanks {
			return fmt.Errorf("%w: %d ranks, the limit of a call is %d", ErrInvalid, len(list), MaxLeaseRanks)
		}
		for _, r := range list {
			if err := CheckPodName(r.Pod); err != nil {
				return err
			}
			if err := CheckRank(r.Rank); err != nil {
				return err
			}
		}
	}
	return nil
}
