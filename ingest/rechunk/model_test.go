package rechunk

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// model is what a Chunker says, in the plainest way: every block knows all tokens
// before it, and what is held is worked out anew from all blocks each time.
type model struct {
	size   int
	copies Copies
	blocks map[uint64]*modelBlock
	// unremoved bounds the copies in a tier whose removals are not told, which are
	// in ages, the oldest first.
	unremoved int
	ages      [store.NumTiers][]modelCopy
	told      [store.NumTiers]bool
}

type modelCopy struct {
	hash uint64
	slot modelSlot
}

type modelBlock struct {
	seed      blockkey.Seed
	start     int      // tokens before it
	tokens    []uint32 // all, from the root to its end
	slots     map[modelSlot]int
	ambiguous bool
}

type modelSlot struct {
	tier  store.Tier
	group int
}

type credit struct {
	tier store.Tier
	key  blockkey.Key
}

func newModel(c Config) *model {
	return &model{size: c.BlockSize, copies: c.Copies, unremoved: c.Unremoved, blocks: map[uint64]*modelBlock{}}
}

// age notes a copy that has come.
func (m *model) age(h uint64, s modelSlot) {
	if s.tier != store.GPU && m.unremoved > 0 && !m.told[s.tier] {
		m.ages[s.tier] = append(m.ages[s.tier], modelCopy{h, s})
	}
}

// expire removes the oldest copies beyond the bound.
func (m *model) expire() {
	for t := range m.ages {
		for len(m.ages[t]) > m.unremoved {
			c := m.ages[t][0]
			m.ages[t] = m.ages[t][1:]
			if b := m.blocks[c.hash]; b != nil && b.slots[c.slot] > 0 {
				b.slots[c.slot]--
				m.forget(c.hash)
			}
		}
	}
}

func (m *model) apply(b *event.Batch) {
	defer m.expire()
	for i := range b.Events {
		e := &b.Events[i]
		var media *event.Media
		tier, ok := media.TierOf(e)
		if !ok {
			continue
		}
		switch e.Kind {
		case event.Cleared:
			m.ages[tier] = nil
			for h, b := range m.blocks {
				maps.DeleteFunc(b.slots, func(s modelSlot, _ int) bool { return s.tier == tier })
				m.forget(h)
			}
		case event.Removed:
			m.ages[tier], m.told[tier] = nil, true
			for _, h := range e.Hashes {
				b := m.blocks[uint64(h)]
				s := modelSlot{tier, e.Group}
				if b == nil || b.slots[s] == 0 {
					continue
				}
				b.slots[s]--
				m.forget(uint64(h))
			}
		case event.Stored:
			m.store(e, tier)
		}
	}
}

// forget drops the slots of tiers without copies, and the block without slots.
func (m *model) forget(h uint64) {
	b := m.blocks[h]
	some := map[store.Tier]bool{}
	for s, n := range b.slots {
		some[s.tier] = some[s.tier] || n > 0
	}
	maps.DeleteFunc(b.slots, func(s modelSlot, _ int) bool { return !some[s.tier] })
	if len(b.slots) == 0 {
		delete(m.blocks, h)
	}
}

func (m *model) store(e *event.Event, tier store.Tier) {
	if e.Spec == "sliding_window" || e.Spec == "mamba" || (e.Spec == "" && e.Group > 0) {
		return
	}
	want := len(e.Hashes) * e.BlockSize
	if len(e.Tokens) > 0 && len(e.Tokens) != want {
		return
	}
	var at *modelBlock // whose end is the place; nil for none
	if len(e.Tokens) > 0 && !e.HasParent {
		at = &modelBlock{seed: blockkey.NativeSeed(e.LoRA, e.Salt)}
	} else if len(e.Tokens) > 0 {
		if p := m.blocks[uint64(e.Parent)]; p != nil && !p.ambiguous {
			at = p
		}
	}
	report := !e.HasParent && len(e.Hashes) > 1 && m.copies == InferCopies
	for i, hash := range e.Hashes {
		h, s := uint64(hash), modelSlot{tier, e.Group}
		b := m.blocks[h]
		var here *modelBlock
		if at != nil {
			here = &modelBlock{
				seed: at.seed, start: len(at.tokens), slots: map[modelSlot]int{},
				tokens: slices.Concat(at.tokens, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize]),
			}
		}
		if b == nil {
			report = false
			if at = here; at == nil {
				continue
			}
			m.blocks[h] = here
			here.slots[s] = 1
			m.age(h, s)
			continue
		}
		if here != nil && !b.ambiguous && (b.seed != here.seed || b.start != here.start || !slices.Equal(b.tokens, here.tokens)) {
			other := true
			for s := range b.slots {
				other = other && s.group != e.Group
			}
			if other {
				at, report = nil, false
				continue
			}
			b.ambiguous = true
		}
		if at = b; b.ambiguous {
			at = nil
		}
		if b.slots[s] > 0 && (report || m.copies == NoCopies) {
			continue
		}
		report = false
		b.slots[s]++
		m.age(h, s)
	}
}

// present tells whether b is in a tier: each group that has had it there has it.
func (b *modelBlock) present(tier store.Tier) bool {
	some := false
	for s, n := range b.slots {
		if s.tier == tier {
			if n == 0 {
				return false
			}
			some = true
		}
	}
	return some && !b.ambiguous
}

// credits are the index blocks that are held.
func (m *model) credits() map[credit]bool {
	out := map[credit]bool{}
	for _, last := range m.blocks {
		if last.ambiguous {
			continue
		}
		for end := (last.start/m.size + 1) * m.size; end <= len(last.tokens); end += m.size {
			var key blockkey.Key
			for tier := range store.Tier(store.NumTiers) {
				if !last.present(tier) {
					continue
				}
				covered := make([]bool, m.size)
				for _, b := range m.blocks {
					n := min(end, len(b.tokens))
					if n <= end-m.size || b.start >= end {
						continue
					}
					if b.seed != last.seed || !b.present(tier) || !slices.Equal(b.tokens[:n], last.tokens[:n]) {
						continue
					}
					for i := max(b.start, end-m.size); i < n; i++ {
						covered[i-(end-m.size)] = true
					}
				}
				if !slices.Contains(covered, false) {
					if key == 0 {
						keys := blockkey.AppendNative(nil, last.tokens[:end], m.size, last.seed)
						key = keys[len(keys)-1]
					}
					out[credit{tier, key}] = true
				}
			}
		}
	}
	return out
}

// diff says how two sets of credits differ, "" if they do not.
func diff(got, want map[credit]bool) string {
	for k := range got {
		if !want[k] {
			return fmt.Sprintf("%v %v is held by mistake", k.tier, k.key)
		}
	}
	for k := range want {
		if !got[k] {
			return fmt.Sprintf("%v %v is not held", k.tier, k.key)
		}
	}
	return ""
}
