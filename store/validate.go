package store

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of what an Index accepts. They bound what one call can cost and what
// one name can take; a value beyond them is ErrInvalid, never cut.
const (
	// MaxPodName is the longest pod name in bytes.
	MaxPodName = 253
	// MaxModelName is the longest model name in bytes. Models may be named by
	// a path.
	MaxModelName = 512
	// MaxRanks is the number of data-parallel ranks that a pod can have: ranks
	// are 0 to MaxRanks-1.
	MaxRanks = 1024
	// MaxOpKeys is the number of keys that one Op can carry. A writer splits
	// longer lists over several ops.
	MaxOpKeys = 8192
	// MaxBlockSize is the largest block in tokens, the index's or an engine's.
	MaxBlockSize = 1 << 16
	// MaxLease is the longest lease. A pod that needs more needs none.
	MaxLease = 366 * 24 * time.Hour
	// MaxLabels is the number of labels of a pod.
	MaxLabels = 64
	// maxWord is the longest free word of a registration in bytes.
	maxWord = 512
)

// checkName says what is wrong with a name; what is "pod name" or the like.
func checkName(what, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: %s is empty", ErrInvalid, what)
	case len(s) > limit:
		return fmt.Errorf("%w: %s has %d bytes, the limit is %d", ErrInvalid, what, len(s), limit)
	}
	return checkText(what, s, limit)
}

// checkText is checkName for what may be empty.
func checkText(what, s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("%w: %s has %d bytes, the limit is %d", ErrInvalid, what, len(s), limit)
	}
	plain := true
	for i := range len(s) {
		plain = plain && s[i] >= ' ' && s[i] <= '~'
	}
	if plain {
		return nil
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("%w: %s is not UTF-8", ErrInvalid, what)
	}
	for i, r := range s {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w: %s has the control character %U at byte %d", ErrInvalid, what, r, i)
		}
	}
	return nil
}

// CheckPodName returns ErrInvalid, with the reason, when no pod can have this
// name.
func CheckPodName(name string) error { return checkName("pod name", name, MaxPodName) }

// Validate returns ErrInvalid, with the field and the reason, when the
// registration cannot be right.
func (p *Pod) Validate() error {
	if err := CheckPodName(p.Name); err != nil {
		return err
	}
	if err := checkName("model of the pod", p.Model, MaxModelName); err != nil {
		return err
	}
	if err := p.validateNames(); err != nil {
		return err
	}
	for _, f := range []struct{ what, s string }{
		{"address", p.Address}, {"engine", p.Engine}, {"events", p.Events}, {"replay", p.Replay},
	} {
		if err := checkText(f.what, f.s, maxWord); err != nil {
			return err
		}
	}
	switch p.Role {
	case "", "prefill", "decode", "both":
	default:
		return fmt.Errorf("%w: role is not one of prefill, decode, both", ErrInvalid)
	}
	if p.Ranks < 0 || p.Ranks > MaxRanks {
		return fmt.Errorf("%w: ranks is %d, it can be 0 to %d", ErrInvalid, p.Ranks, MaxRanks)
	}
	if p.KVTokens < 0 || p.KVTokens > 1<<31-1 {
		return fmt.Errorf("%w: kv_tokens is %d, it can be 0 to 2^31-1", ErrInvalid, p.KVTokens)
	}
	if p.BlockSize < 0 || p.BlockSize > MaxBlockSize {
		return fmt.Errorf("%w: block_size is %d, it can be 0 to %d", ErrInvalid, p.BlockSize, MaxBlockSize)
	}
	if p.PartOf != nil {
		if err := p.PartOf.Validate(); err != nil {
			return err
		}
		if p.PartOf.Pod == p.Name {
			return fmt.Errorf("%w: the pod %s is part of itself", ErrInvalid, p.Name)
		}
	}
	if l := time.Duration(p.Lease); l < 0 || l > MaxLease {
		return fmt.Errorf("%w: lease_s is %v, it can be 0 to %v", ErrInvalid, l, MaxLease)
	}
	if len(p.Labels) > MaxLabels {
		return fmt.Errorf("%w: %d labels, the limit is %d", ErrInvalid, len(p.Labels), MaxLabels)
	}
	for k, v := range p.Labels {
		if err := checkName("name of a label", k, maxWord); err != nil {
			return err
		}
		if err := checkText("label "+k, v, maxWord); err != nil {
			return err
		}
	}
	return nil
}

// Validate returns ErrInvalid, with the field and the reason, when no model can
// be indexed like this.
func (m *ModelInfo) Validate() error {
	if err := checkName("model name", m.Name, MaxModelName); err != nil {
		return err
	}
	if m.BlockSize < 1 || m.BlockSize > MaxBlockSize {
		return fmt.Errorf("%w: block size of model is %d, it can be 1 to %d", ErrInvalid, m.BlockSize, MaxBlockSize)
	}
	return checkName("scheme", m.Scheme, 64)
}

// Validate returns ErrInvalid, with the place and the reason, when the batch
// cannot be applied. It looks at no key.
func (b *Batch) Validate() error {
	if err := CheckPodName(b.Pod); err != nil {
		return err
	}
	if err := checkName("model of the batch", b.Model, MaxModelName); err != nil {
		return err
	}
	if err := CheckRank(b.Rank); err != nil {
		return err
	}
	if b.Guard != nil {
		if err := b.Guard.validate(); err != nil {
			return err
		}
	}
	if err := b.Reuse.Validate(); err != nil {
		return err
	}
	for i := range b.Ops {
		if err := b.Ops[i].validate(); err != nil {
			return fmt.Errorf("op %d: %w", i, err)
		}
		if b.Guard != nil && b.Ops[i].AllRanks {
			return fmt.Errorf("op %d: %w: a guarded clear is of its own rank only", i, ErrInvalid)
		}
		if b.Guard != nil && b.Ops[i].Tier == Predicted {
			return fmt.Errorf("op %d: %w: predictions have no guard, they are nothing that an engine tells", i, ErrInvalid)
		}
	}
	return b.validateMap()
}

// CheckRank returns ErrInvalid when no pod can have this rank.
func CheckRank(rank int) error {
	if rank < 0 || rank >= MaxRanks {
		return fmt.Errorf("%w: rank is %d, it can be 0 to %d", ErrInvalid, rank, MaxRanks-1)
	}
	return nil
}

// CheckRank returns ErrNoRank, with the ranks that there are, when the registration declares them and this is
// not one of them.
func (p *Pod) CheckRank(rank int) error {
	switch {
	case p.Ranks == 0 || rank < p.Ranks:
		return nil
	case p.Ranks == 1:
		return fmt.Errorf("%w: rank is %d, %s has rank 0 alone (ranks of its registration)", ErrNoRank, rank, p.Name)
	}
	return fmt.Errorf("%w: rank is %d, %s has ranks 0 to %d (ranks of its registration)", ErrNoRank, rank, p.Name, p.Ranks-1)
}

func (o *Op) validate() error {
	switch o.Kind {
	case Add, Remove:
		if o.AllRanks {
			return fmt.Errorf("%w: only a clear can be of all ranks", ErrInvalid)
		}
	case Clear:
		if len(o.Keys) > 0 {
			return fmt.Errorf("%w: a clear takes no keys, it has %d", ErrInvalid, len(o.Keys))
		}
	default:
		return fmt.Errorf("%w: kind %d is not one of add, remove, clear", ErrInvalid, o.Kind)
	}
	if o.Tier == Predicted {
		return o.validatePredicted()
	}
	if !o.Until.IsZero() {
		return fmt.Errorf("%w: holders in tier %s do not end at a time", ErrInvalid, o.Tier)
	}
	if int(o.Tier) >= NumTiers && (o.Tier != AllTiers || o.Kind == Add) && (!o.Tier.IsWindow() || o.Kind == Clear) {
		return fmt.Errorf("%w: there is no tier %d to %s", ErrInvalid, uint8(o.Tier), [...]string{Add: "add to", Remove: "remove from", Clear: "clear"}[o.Kind])
	}
	return o.checkKeys()
}

func (o *Op) validatePredicted() error {
	switch {
	case o.Kind == Remove:
		return fmt.Errorf("%w: what is removed from tier gpu is removed from its predictions", ErrInvalid)
	case o.AllRanks:
		return fmt.Errorf("%w: a clear of a prediction is of one rank", ErrInvalid)
	case o.Until.UnixMilli() <= 0:
		return fmt.Errorf("%w: a prediction without an end", ErrInvalid)
	}
	return o.checkKeys()
}

func (o *Op) checkKeys() error {
	if len(o.Keys) > MaxOpKeys {
		return fmt.Errorf("%w: %d keys in one op, the limit is %d", ErrInvalid, len(o.Keys), MaxOpKeys)
	}
	return nil
}
