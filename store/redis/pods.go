package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
)

// modelField is what the fields of models in kva{reg}:meta begin with.
const modelField = "model:"

// registryCall is a call of a script of the registry, with what all of them
// take first.
func (x *Index) registryCall(s *script, own string, args ...string) *call {
	n := x.names
	return &call{
		script: s, place: atRegistry,
		keys: []string{n.meta, n.count, n.epoch, n.pods, n.live, n.gen, n.records, own, n.logs[atRegistry].logged, n.logs[atRegistry].log},
		args: append([]string{strconv.Itoa(Schema), strconv.Itoa(len(tags))}, args...),
	}
}

// Register implements store.Index.
func (x *Index) Register(ctx context.Context, p store.Pod) (created bool, err error) {
	if err := x.begin(ctx, "register"); err != nil {
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
	cmds, err := x.run(ctx, x.registryCall(registerScript, x.names.own(p.Name),
		p.Name, string(text), strconv.FormatInt(lease, 10), strconv.Itoa(x.config.MaxPods)))
	if err != nil {
		return false, failed(ctx, "register", err)
	}
	if created = isOne(cmds[0].Val()); created {
		x.forget(gens...)
	}
	return created, nil
}

// Retire implements store.Index.
func (x *Index) Retire(ctx context.Context, pod string) (known bool, err error) {
	if err := x.begin(ctx, "retire"); err != nil {
		return false, err
	}
	if err := store.CheckPodName(pod); err != nil {
		return false, err
	}
	gens := x.acks.ofPod(pod) // before: a next life may begin while the reply is on its way
	cmds, err := x.run(ctx, x.retireCall(pod, "always"))
	if err != nil {
		return false, failed(ctx, "retire", err)
	}
	x.forget(gens...)
	return isOne(cmds[0].Val()), nil
}

func (x *Index) retireCall(pod, when string) *call {
	return x.registryCall(retireScript, x.names.own(pod), pod, when)
}

// lateAtOnce is how many pods retireLate retires in one round trip.
const lateAtOnce = 64

// retireLate retires pods whose leases seem to have run out. The server looks
// at its clock again, so that a renewal in between counts.
func (x *Index) retireLate(ctx context.Context, pods []string) error {
	for len(pods) > 0 {
		n := min(len(pods), lateAtOnce)
		calls := make([]*call, n)
		for i, pod := range pods[:n] {
			calls[i] = x.retireCall(pod, "expired")
		}
		if _, err := x.run(ctx, calls...); err != nil {
			return err
		}
		pods = pods[n:]
	}
	return nil
}

// modelSettings is the JSON form of a model in kva{reg}:meta.
type modelSettings struct {
	BlockSize    int    `json:"block_size"`
	Scheme       string `json:"scheme"`
	Unregistered bool   `json:"unregistered,omitempty"`
}

func parseModel(name, text string) (store.ModelInfo, error) {
	var s modelSettings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return store.ModelInfo{}, fmt.Errorf("%w: what Redis has of model %s: %w", store.ErrRefused, name, err)
	}
	m := store.ModelInfo{Name: name, BlockSize: s.BlockSize, Scheme: s.Scheme, Unregistered: s.Unregistered}
	if err := m.Validate(); err != nil {
		// Not ErrInvalid: it is nothing that the caller has said.
		return store.ModelInfo{}, fmt.Errorf("%w: what Redis has of model %s: %s", store.ErrRefused, name, err.Error())
	}
	return m, nil
}

// unfix is the command that takes away what is set for a model.
func (n *names) unfix(model string) string {
	return fmt.Sprintf("HDEL %s %q", n.meta, modelField+model)
}

// EnsureModel implements store.Index.
func (x *Index) EnsureModel(ctx context.Context, want store.ModelInfo) (store.ModelInfo, error) {
	if err := x.begin(ctx, "model"); err != nil {
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
	if err := x.begin(ctx, "model"); err != nil {
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
	text, err := json.Marshal(modelSettings{BlockSize: want.BlockSize, Scheme: want.Scheme, Unregistered: want.Unregistered})
	if err != nil {
		return store.ModelInfo{}, fmt.Errorf("redis: model %s: %w", want.Name, err)
	}
	cmds, err := x.run(ctx, x.registryCall(modelScript, x.names.own(""), modelField+want.Name, string(text), strconv.Itoa(x.config.MaxModels), unregistered))
	if err != nil {
		return store.ModelInfo{}, failed(ctx, "model", err)
	}
	s, _ := cmds[0].Val().(string)
	got, err := parseModel(want.Name, s)
	if err != nil {
		return store.ModelInfo{}, fmt.Errorf("%w, where it is %q; %s makes it be fixed anew", err, redisx.Clip(s), x.names.unfix(want.Name))
	}
	return got, nil
}

func isOne(v any) bool {
	n, ok := v.(int64)
	return ok && n == 1
}
