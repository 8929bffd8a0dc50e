package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
	"github.com/kvatlas/kvatlas/store/redis/roster"
)

// Register implements store.Index.
func (x *Index) Register(ctx context.Context, p store.Pod) (created bool, err error) {
	if err := x.space.Check(ctx, "register"); err != nil {
		return false, err
	}
	if err := p.Validate(); err != nil {
		return false, err
	}
	text, err := json.Marshal(p)
	if err != nil {
		return false, fmt.Errorf("redis: the registration of %s: %w", p.Name, err)
	}
	// A lease that is not none must not become none.
	lease := time.Duration(p.Lease).Milliseconds()
	if lease == 0 && p.Lease > 0 {
		lease = 1
	}
	gens := x.acks.ofPod(p.Name) // before: a next life may begin while the reply is on its way
	cmds, err := x.space.Run(ctx, x.space.RegistryCall(lua.Register, x.space.Names.Own(p.Name),
		p.Name, string(text), strconv.FormatInt(lease, 10), strconv.Itoa(x.config.MaxPods)))
	if err != nil {
		return false, keyspace.Failed(ctx, "register", err)
	}
	if created = keyspace.IsOne(cmds[0].Val()); created {
		x.forget(gens...)
	}
	return created, nil
}

// Retire implements store.Index.
func (x *Index) Retire(ctx context.Context, pod string) (known bool, err error) {
	if err := x.space.Check(ctx, "retire"); err != nil {
		return false, err
	}
	if err := store.CheckPodName(pod); err != nil {
		return false, err
	}
	gens := x.acks.ofPod(pod) // before: a next life may begin while the reply is on its way
	cmds, err := x.space.Run(ctx, x.retireCall(pod, "always"))
	if err != nil {
		return false, keyspace.Failed(ctx, "retire", err)
	}
	x.forget(gens...)
	return keyspace.IsOne(cmds[0].Val()), nil
}

func (x *Index) retireCall(pod, when string) *keyspace.Call {
	return x.space.RegistryCall(lua.Retire, x.space.Names.Own(pod), pod, when)
}

// lateAtOnce is how many pods retireLate retires in one round trip.
const lateAtOnce = 64

// retireLate retires pods whose leases seem to have run out. The server looks
// at its clock again, so that a renewal in between counts.
func (x *Index) retireLate(ctx context.Context, pods []string) error {
	for part := range slices.Chunk(pods, lateAtOnce) {
		calls := make([]*keyspace.Call, len(part))
		for i, pod := range part {
			calls[i] = x.retireCall(pod, "expired")
		}
		if _, err := x.space.Run(ctx, calls...); err != nil {
			return err
		}
	}
	return nil
}

// EnsureModel implements store.Index.
func (x *Index) EnsureModel(ctx context.Context, want store.ModelInfo) (store.ModelInfo, error) {
	if err := x.space.Check(ctx, "model"); err != nil {
		return store.ModelInfo{}, err
	}
	if err := want.Validate(); err != nil {
		return store.ModelInfo{}, err
	}
	got, err := x.writeModel(ctx, want, "")
	if err != nil {
		return store.ModelInfo{}, err
	}
	if !got.SameKeys(&want) {
		return got, fmt.Errorf("%w: %s has blocks of %d tokens and scheme %s, not %d and %s",
			store.ErrModelConflict, want.Name, got.BlockSize, got.Scheme, want.BlockSize, want.Scheme)
	}
	return got, nil
}

// SetUnregistered implements [store.UnregisteredSetter].
func (x *Index) SetUnregistered(ctx context.Context, want store.ModelInfo) (store.ModelInfo, error) {
	if err := x.space.Check(ctx, "model"); err != nil {
		return store.ModelInfo{}, err
	}
	if err := want.Validate(); err != nil {
		return store.ModelInfo{}, err
	}
	return x.writeModel(ctx, want, strconv.FormatBool(want.Unregistered))
}

// writeModel fixes the settings of a model, unless they are, and sets unregistered in them
// unless it is "".
func (x *Index) writeModel(ctx context.Context, want store.ModelInfo, unregistered string) (store.ModelInfo, error) {
	text, err := json.Marshal(roster.ModelSettings{BlockSize: want.BlockSize, Scheme: want.Scheme, Unregistered: want.Unregistered})
	if err != nil {
		return store.ModelInfo{}, fmt.Errorf("redis: model %s: %w", want.Name, err)
	}
	cmds, err := x.space.Run(ctx, x.space.RegistryCall(lua.Model, x.space.Names.Own(""), keyspace.ModelField+want.Name, string(text), strconv.Itoa(x.config.MaxModels), unregistered))
	if err != nil {
		return store.ModelInfo{}, keyspace.Failed(ctx, "model", err)
	}
	s, _ := cmds[0].Val().(string)
	got, err := roster.ParseModel(want.Name, s)
	if err != nil {
		return store.ModelInfo{}, fmt.Errorf("%w, where it is %q; %s makes it be fixed anew", err, redisx.Clip(s), x.space.Names.Unfix(want.Name))
	}
	return got, nil
}

// Forget implements [store.Forgetter].
func (x *Index) Forget(ctx context.Context, model string) (known bool, err error) {
	if err := x.space.Check(ctx, "forget"); err != nil {
		return false, err
	}
	cmds, err := x.space.Run(ctx, x.space.RegistryCall(lua.Forget, x.space.Names.Own(""), keyspace.ModelField+model))
	if err != nil {
		return false, keyspace.Failed(ctx, "forget", err)
	}
	return keyspace.IsOne(cmds[0].Val()), nil
}
