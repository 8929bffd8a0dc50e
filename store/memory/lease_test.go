package memory

import (
	"errors"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/storetest"
)

func TestLeases(t *testing.T) {
	storetest.RunLeases(t, func(t *testing.T) storetest.Subject {
		c := &clock{now: time.Unix(1000, 0)}
		x := open(t, Config{Clock: c.Now})
		return storetest.Subject{Index: x, Leases: x, PeerLeases: x, Advance: c.Advance}
	})
}

// TestLeasesAreBounded: ranks beyond MaxHolders get no reader, and the call that
// asked does nothing.
func TestLeasesAreBounded(t *testing.T) {
	x := open(t, Config{MaxHolders: 2})
	call := func(ranks ...int) error {
		c := store.LeaseCall{Reader: store.Reader{Name: "o"}, TTL: time.Minute}
		for _, r := range ranks {
			c.Acquire = append(c.Acquire, store.RankRef{Pod: "a", Rank: r})
		}
		_, err := x.Lease(t.Context(), c)
		return err
	}
	if err := call(0, 1, 2); !errors.Is(err, store.ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	if err := call(0, 1); err != nil {
		t.Error(err)
	}
	if err := call(0, 1); err != nil {
		t.Errorf("what is there already: %v", err)
	}
	if err := call(3); !errors.Is(err, store.ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
}
