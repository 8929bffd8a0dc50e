package replica

import (
	"context"
	"testing"

	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// caughtUp is a replica whose lookups wait until it shows what was written before.
// So it must keep the contract to the letter, and answer as Redis does.
type caughtUp struct {
	*Replica
	t *testing.T
}

func (c caughtUp) Lookup(ctx context.Context, queries ...*store.Query) error {
	if c.CatchUp(ctx) != nil {
		return c.Replica.Lookup(ctx, queries...) // closed, or cancelled
	}
	before := c.Status().Lookups[Redis]
	err := c.Replica.Lookup(ctx, queries...)
	if c.Status().Lookups[Redis] != before && err == nil {
		c.t.Errorf("a lookup was answered from Redis: %+v", c.Status())
	}
	return err
}

// contract is the suite with reads from the replica, writes through it to Redis,
// and Redis itself as the peer that it is compared with.
func contract(url string) storetest.Open {
	return func(t *testing.T) storetest.Subject {
		prefix := newPrefix()
		peer := openRedis(t, url, prefix)
		patient := func(c *Config) { c.MaxLag = patience } // it never asks Redis for being slow
		x := caughtUp{openReplica(t, url, prefix, patient), t}
		return storetest.Subject{Index: x, Peer: peer, Unregistered: x, PeerUnregistered: peer}
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, contract(redistest.Start(t).URL()))
}

func TestContractOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	storetest.RunQuick(t, contract(c.URL()))
}
