package rechunk

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// model is what a Chunker says, in the plainest way. Every block knows all tokens
// before it, and what is held is worked out anew from all blocks each time.
type model struct {
	size   int
	unique bool // the engine has a tree
	copies Copies
	blocks map[modelName]*modelBlock
	// groups are those that have stored; layers the block sizes.
	groups  map[int]*modelGroup
	layers  []int
	reports bool
	unseen  bool // the GPU may hold what is not known
	// unremoved bounds the copies in a tier whose removals are not told, which are
	// in ages, the oldest first.
	unremoved int
	ages      [store.NumTiers][]modelCopy
	told      [store.NumTiers]bool
}

type modelCopy struct {
	name modelName
	slot modelSlot
}

// modelName names a block: groups of one block size share names.
type modelName struct {
	layer int
	hash  event.Hash
}

// modelGroup is a group that a hit needs in the tiers in which it has stored.
type modelGroup struct {
	size, layer int
	tiers       map[store.Tier]bool
}

type modelBlock struct {
	seed      blockkey.Seed
	start     int      // tokens before it
	tokens    []uint32 // all, from the root to its end
	slots     map[modelSlot]modelCopies
	ambiguous bool
}

type modelSlot struct {
	tier  store.Tier
	group int
}

// modelCopies are the copies in a slot. They are those that count, and the doubtful ones, which
// are among them if they came before the engine has reported.
type modelCopies struct {
	n, doubts int
	among     bool
}

// certain is c with its doubtful copies beside the others.
func (c modelCopies) certain() modelCopies {
	if c.among {
		c.n -= c.doubts
	}
	return modelCopies{c.n, c.doubts, false}
}

// drop takes a copy of a block's slot.
func (m *model) drop(b *modelBlock, s modelSlot) {
	c := b.slots[s]
	if m.reports {
		c = c.certain()
	}
	if c.n > 0 {
		c.n--
	} else {
		c.doubts--
	}
	if !m.reports {
		c.doubts = min(c.doubts, c.n)
	}
	c.among = c.doubts > 0 && !m.reports
	b.slots[s] = c
}

// ensure takes in that a slot has a copy for certain.
func (m *model) ensure(b *modelBlock, s modelSlot) {
	if c := b.slots[s].certain(); m.reports && c.n == 0 && c.doubts > 0 {
		b.slots[s] = modelCopies{n: 1, doubts: c.doubts - 1}
	}
}

type credit struct {
	tier store.Tier
	key  blockkey.Key
}

func newModel(c Config) *model {
	return &model{size: c.BlockSize, unique: engineOf(c.Engine) == unique, copies: c.Copies, unremoved: c.Unremoved, blocks: map[modelName]*modelBlock{}, groups: map[int]*modelGroup{}}
}

// age notes a copy that has come.
func (m *model) age(n modelName, s modelSlot) {
	if s.tier != store.GPU && m.unremoved > 0 && !m.told[s.tier] {
		m.ages[s.tier] = append(m.ages[s.tier], modelCopy{n, s})
	}
}

// expire removes the oldest copies beyond the bound.
func (m *model) expire() {
	for t := range m.ages {
		for len(m.ages[t]) > m.unremoved {
			c := m.ages[t][0]
			m.ages[t] = m.ages[t][1:]
			if b := m.blocks[c.name]; b != nil && b.slots[c.slot] != (modelCopies{}) {
				m.drop(b, c.slot)
				m.forget(c.name)
			}
		}
	}
}

// survey takes in what a message shows of the groups. What is held in a tier of earlier
// messages ends when another group turns out to be needed there. All ends when a group
// turns out to have blocks of another size than was thought.
func (m *model) survey(b *event.Batch) {
	before := map[store.Tier]bool{}
	for _, g := range m.groups {
		for t := range g.tiers {
			before[t] = true
		}
	}
	end := func(tier store.Tier) {
		if before[tier] {
			m.clear(tier)
			m.unseen = m.unseen || tier == store.GPU
			delete(before, tier)
		}
	}
	for i := range b.Events {
		e := &b.Events[i]
		var media *event.Media
		tier, ok := media.TierOf(e)
		if !ok || e.Kind != event.Stored || !modelPrefix(e) {
			continue
		}
		g := m.groups[e.Group]
		if g == nil {
			g = &modelGroup{tiers: map[store.Tier]bool{}}
			m.groups[e.Group] = g
		}
		if (tier == store.GPU || g.size == 0) && len(e.Tokens) > 0 && e.BlockSize > g.size {
			sized := 0
			for _, o := range m.groups {
				if o != g && o.size > 0 {
					sized++
				}
			}
			g.size = e.BlockSize
			if sized == 0 && len(m.layers) <= 1 {
				m.layers = []int{g.size}
			} else {
				at := slices.Index(m.layers, g.size)
				if at < 0 {
					at = len(m.layers)
					m.layers = append(m.layers, g.size)
				}
				if at != g.layer {
					g.layer = at
					for t := range store.Tier(store.NumTiers) {
						end(t)
					}
				}
			}
		}
		if !g.tiers[tier] {
			g.tiers[tier] = true
			end(tier)
		}
	}
}

func modelPrefix(e *event.Event) bool {
	return e.Spec != "sliding_window" && e.Spec != "mamba" && (e.Spec != "" || e.Group == 0)
}

// name is what a block of an event's group is called by.
func (m *model) name(e *event.Event, h event.Hash) modelName {
	if g := m.groups[e.Group]; g != nil {
		return modelName{g.layer, h}
	}
	return modelName{0, h}
}

func (m *model) clear(tier store.Tier) {
	m.ages[tier] = nil
	for n, b := range m.blocks {
		maps.DeleteFunc(b.slots, func(s modelSlot, _ modelCopies) bool { return s.tier == tier })
		m.forget(n)
	}
}

func (m *model) apply(b *event.Batch) {
	defer m.expire()
	m.survey(b)
	var told telling
	judged := 0
	for i := range b.Events {
		e := &b.Events[i]
		var media *event.Media
		tier, ok := media.TierOf(e)
		if !ok {
			continue
		}
		switch e.Kind {
		case event.Cleared:
			m.clear(tier)
			m.unseen = m.unseen && tier != store.GPU
			if tier == store.GPU && m.unique {
				m.clear(store.CPU)
			}
		case event.Removed:
			m.ages[tier], m.told[tier] = nil, true
			for _, h := range e.Hashes {
				b := m.blocks[m.name(e, h)]
				s := modelSlot{tier, e.Group}
				if b == nil || b.slots[s] == (modelCopies{}) {
					continue
				}
				m.drop(b, s)
				m.forget(m.name(e, h))
			}
		case event.Stored:
			if i >= judged {
				var n int
				told, n = m.tells(b.Events[i:])
				judged = i + n
			}
			m.store(e, tier, told)
		}
	}
}

// forget drops the slots without copies, and the block without slots.
func (m *model) forget(n modelName) {
	b := m.blocks[n]
	maps.DeleteFunc(b.slots, func(_ modelSlot, c modelCopies) bool { return c == modelCopies{} })
	if len(b.slots) == 0 {
		delete(m.blocks, n)
	}
}

// tells is what a Stored says of what is held already, and how many events of other groups
// behind it say the same. Where the engine could reuse all of it, they can be what a request
// has found.
func (m *model) tells(events []event.Event) (told telling, n int) {
	if m.copies != InferCopies {
		return map[Copies]telling{AllCopies: copied, NoCopies: repeated}[m.copies], 1
	}
	first := &events[0]
	root := func(e *event.Event) bool {
		return e.Kind == event.Stored && (e.Medium == "" || e.Medium == "GPU") && !e.HasParent && len(e.Hashes) > 0 && len(e.Tokens) == len(e.Hashes)*e.BlockSize
	}
	groups, held, sure := map[int]bool{}, true, len(first.Hashes) > 1
	for ; n < len(events) && root(&events[n]) && slices.Equal(events[n].Tokens, first.Tokens) && !groups[events[n].Group]; n++ {
		e := &events[n]
		if !modelPrefix(e) {
			continue
		}
		groups[e.Group] = true
		for _, h := range e.Hashes {
			var c modelCopies
			if b := m.blocks[m.name(e, h)]; b != nil {
				c = b.slots[modelSlot{store.GPU, e.Group}]
			}
			held = held && c != modelCopies{}
			sure = sure && c.certain().n > 0
		}
	}
	whole := n > 0
	for id, g := range m.groups {
		whole = whole && (groups[id] || !g.tiers[store.GPU])
	}
	next := n
	for next < len(events) && events[next].Kind == event.Removed {
		next++
	}
	on := false // a request goes on behind it
	for i := range events[:n] {
		e := &events[i]
		on = on || next < len(events) && events[next].Kind == event.Stored && events[next].HasParent && events[next].Parent == e.Hashes[len(e.Hashes)-1]
	}
	m.reports = m.reports || whole && on && sure
	if whole && (held || m.unseen) {
		return doubtful, n
	}
	return copied, max(n, 1)
}

func (m *model) store(e *event.Event, tier store.Tier, told telling) {
	if !modelPrefix(e) {
		return
	}
	want := len(e.Hashes) * e.BlockSize
	if len(e.Tokens) > 0 && len(e.Tokens) != want {
		m.unseen = m.unseen || tier == store.GPU
		return
	}
	var at *modelBlock // whose end is the place; nil for none
	behind := false    // the place is that of an ambiguous block
	if len(e.Tokens) > 0 && !e.HasParent {
		at = &modelBlock{seed: blockkey.NativeSeed(e.LoRA, e.Salt)}
	} else if len(e.Tokens) > 0 {
		p := m.blocks[m.name(e, e.Parent)]
		if p != nil && tier == store.GPU {
			m.ensure(p, modelSlot{tier, e.Group})
		}
		if p != nil && !p.ambiguous {
			at = p
		} else if p != nil {
			behind = true
		}
	}
	s := modelSlot{tier, e.Group}
	for i, hash := range e.Hashes {
		n := m.name(e, hash)
		b := m.blocks[n]
		var here *modelBlock
		if at != nil {
			here = &modelBlock{
				seed: at.seed, start: len(at.tokens), slots: map[modelSlot]modelCopies{},
				tokens: slices.Concat(at.tokens, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize]),
			}
		}
		if b == nil {
			if at = here; at == nil {
				m.unseen = m.unseen || tier == store.GPU
				continue
			}
			behind = false
			m.blocks[n] = here
			m.add(here, s, told)
			m.age(n, s)
			continue
		}
		b.ambiguous = b.ambiguous || behind && tier == store.GPU && len(e.Tokens) > 0
		if here != nil && !b.ambiguous && (b.seed != here.seed || b.start != here.start || !slices.Equal(b.tokens, here.tokens)) {
			// A tier behind the GPU may leave the salt out.
			b.ambiguous = tier == store.GPU || e.Salt != ""
		}
		m.unseen = m.unseen || b.ambiguous && tier == store.GPU
		if len(e.Tokens) == 0 {
			at = nil
		} else if at, behind = b, b.ambiguous; b.ambiguous {
			at = nil
		}
		if b.slots[s] != (modelCopies{}) && told >= repeated {
			m.ensure(b, s)
			continue
		}
		m.add(b, s, told)
		m.age(n, s)
	}
}

// add counts a copy in a slot of b.
func (m *model) add(b *modelBlock, s modelSlot, told telling) {
	c := b.slots[s]
	if m.reports {
		c = c.certain()
	}
	certain := told != doubtful || c.n == 0
	if !certain {
		c.doubts++
	}
	if certain || !m.reports {
		c.n++
	}
	c.among = c.doubts > 0 && !m.reports
	b.slots[s] = c
}

// present reports whether a block of a layer is in a tier: each group of the layer that
// has stored there has it.
func (m *model) present(n modelName, b *modelBlock, tier store.Tier) bool {
	some := false
	for id, g := range m.groups {
		if g.layer == n.layer && g.tiers[tier] {
			if b.slots[modelSlot{tier, id}].n == 0 {
				return false
			}
			some = true
		}
	}
	return some && !b.ambiguous
}

// covers reports whether the blocks of a layer hold the last index block of tokens.
func (m *model) covers(layer int, tier store.Tier, seed blockkey.Seed, tokens []uint32) bool {
	end := len(tokens)
	covered := make([]bool, m.size)
	for name, b := range m.blocks {
		n := min(end, len(b.tokens))
		if name.layer != layer || n <= end-m.size || b.start >= end {
			continue
		}
		if b.seed != seed || !m.present(name, b, tier) || !slices.Equal(b.tokens[:n], tokens[:n]) {
			continue
		}
		for i := max(b.start, end-m.size); i < n; i++ {
			covered[i-(end-m.size)] = true
		}
	}
	return !slices.Contains(covered, false)
}

// credits are the index blocks that are held: by each layer that has stored in the tier.
func (m *model) credits() map[credit]bool {
	need := map[store.Tier]map[int]bool{}
	for _, g := range m.groups {
		for t := range g.tiers {
			if need[t] == nil {
				need[t] = map[int]bool{}
			}
			need[t][g.layer] = true
		}
	}
	out := map[credit]bool{}
	for _, last := range m.blocks {
		if last.ambiguous {
			continue
		}
		for end := (last.start/m.size + 1) * m.size; end <= len(last.tokens); end += m.size {
			var key blockkey.Key
			for tier, layers := range need {
				all := true
				for layer := range layers {
					all = all && m.covers(layer, tier, last.seed, last.tokens[:end])
				}
				if !all {
					continue
				}
				if key == 0 {
					keys := blockkey.AppendNative(nil, last.tokens[:end], m.size, last.seed)
					key = keys[len(keys)-1]
				}
				out[credit{tier, key}] = true
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
