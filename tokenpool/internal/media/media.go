// Package media places the media of chats in their tokens. It replaces what stands for an
// image, an audio or a video by the tokens that the engine's processor puts there. It is
// pure; plans are for one user at a time, rules for any number.
//
// A medium stands in a rendered chat as the marker that the template puts for it. The
// engine's processor puts as many tokens there as the medium has, and its hash goes into
// the block keys. Rules say what belongs where. They are data: media.json, and the file of
// that name that a model may have beside its tokenizer. The caller knows how many tokens a
// medium has, and its hash.
package media

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

// Err says that what a caller reports a chat's media cannot be: the chat has others.
var Err = errors.New("tokenpool: media")

// MaxTokens bounds the tokens of all media of a chat.
const MaxTokens = 1 << 22

// File is the file beside a tokenizer that has a model's own rules: an array like that of
// media.json, without "models". It has MaxFileBytes at most.
const (
	File         = "media.json"
	MaxFileBytes = 64 << 10
)

//go:embed media.json
var builtIn []byte

// rule is an element of media.json.
type rule struct {
	// Kind is the kind of medium. The first rule of a kind counts whose tokens the
	// tokenizer has.
	Kind string `json:"kind"`
	// Target is what the template puts: added tokens of the tokenizer, all of which is
	// replaced. Before comes first, then Repeat as often as the medium has tokens (less
	// those of Before and After), then After. Repeat is one token.
	Target string `json:"target"`
	Before string `json:"before"`
	Repeat string `json:"repeat"`
	After  string `json:"after"`
	// Models is for people.
	Models string `json:"models"`
}

// Rules are the rules that a tokenizer can follow, by kind.
type Rules map[string]placing

// placing is a rule in the tokens of a tokenizer.
type placing struct {
	text          string // of target
	target        []uint32
	before, after []uint32
	repeat        uint32
}

// kinds are the kinds that package chat knows.
var kinds = []string{"image", "audio", "video"}

// NewRules returns the rules of a tokenizer with these added tokens, of which encode gives
// the tokens of a text. An own file must be right; built-in rules of other models are
// passed over.
func NewRules(own []byte, added map[string]uint32, encode func(text string) []uint32) (Rules, error) {
	out := Rules{}
	for _, file := range [][]byte{own, builtIn} {
		if file == nil {
			continue
		}
		var rules []rule
		if err := json.Unmarshal(file, &rules); err != nil {
			return nil, fmt.Errorf("%s: %w", File, err)
		}
		for i, r := range rules {
			p, err := r.placing(added, encode)
			if err != nil && len(own) > 0 && &file[0] == &own[0] {
				return nil, fmt.Errorf("%s: rule %d: %w", File, i, err)
			}
			if _, have := out[r.Kind]; err == nil && !have {
				out[r.Kind] = p
			}
		}
	}
	return out, nil
}

func (r rule) placing(added map[string]uint32, encode func(text string) []uint32) (p placing, err error) {
	if !slices.Contains(kinds, r.Kind) {
		return p, fmt.Errorf("kind is %q, none of %s", r.Kind, strings.Join(kinds, ", "))
	}
	for rest := r.Target; rest != ""; {
		longest := ""
		for token := range added {
			if len(token) > len(longest) && strings.HasPrefix(rest, token) {
				longest = token
			}
		}
		if longest == "" {
			return p, fmt.Errorf("target: %q begins with no added token of the tokenizer", rest)
		}
		p.target, rest = append(p.target, added[longest]), rest[len(longest):]
	}
	if p.text = r.Target; p.text == "" {
		return p, errors.New("target is empty")
	}
	repeat := encode(r.Repeat)
	if len(repeat) != 1 {
		return p, fmt.Errorf("repeat: %q is %d tokens, not one", r.Repeat, len(repeat))
	}
	p.repeat, p.before, p.after = repeat[0], encode(r.Before), encode(r.After)
	return p, nil
}

// fill is what stands in the place of a medium. It is nil for one that is not known.
func (p placing) fill(m prompt.Medium) []uint32 {
	if m.Hash == "" {
		return nil
	}
	if len(m.TokenIDs) > 0 {
		return m.TokenIDs
	}
	n := m.Tokens - len(p.before) - len(p.after)
	if n < 1 {
		return nil
	}
	return slices.Concat(p.before, slices.Repeat([]uint32{p.repeat}, n), p.after)
}

// Plan is what is to be done about the media of one chat.
type Plan struct {
	rules Rules
	// items are the media by kind, in their order.
	items map[string][]prompt.Medium
}

// NewPlan holds what a caller knows against the parts that the chat has; an error wraps
// Err. The plan is nil when a kind has no rule, or the template has not put its markers.
func NewPlan(rules Rules, known []prompt.Medium, rendered chat.Prompt) (*Plan, error) {
	if len(known) > len(rendered.Media) {
		return nil, fmt.Errorf("%w: %d are described, the chat has %d", Err, len(known), len(rendered.Media))
	}
	plan := &Plan{rules: rules, items: map[string][]prompt.Medium{}}
	total, ruled := 0, true
	for i, kind := range rendered.Media {
		m := prompt.Medium{Kind: kind}
		if i < len(known) {
			m = known[i]
		}
		if m.Kind != "" && m.Kind != kind {
			return nil, fmt.Errorf("%w: number %d is described as %q, the chat has %q there", Err, i, m.Kind, kind)
		}
		if m.Hash == "" && i < len(rendered.MediaIDs) {
			m.Hash = rendered.MediaIDs[i]
		}
		if n := max(m.Tokens, len(m.TokenIDs)); m.Tokens < 0 || n > MaxTokens-total {
			return nil, fmt.Errorf("%w: number %d has %d tokens; all can have 0 to %d", Err, i, cmp.Or(len(m.TokenIDs), m.Tokens), MaxTokens)
		}
		total += max(m.Tokens, len(m.TokenIDs))
		if _, ok := rules[kind]; !ok {
			ruled = false
		}
		plan.items[kind] = append(plan.items[kind], m)
	}
	for kind, items := range plan.items {
		ruled = ruled && strings.Count(rendered.Text, rules[kind].text) >= len(items)
	}
	if !ruled {
		return nil, nil
	}
	return plan, nil
}

// Apply puts the media into the tokens of a rendered chat. Like vLLM it takes the
// first markers of a kind, in their order, for its media. It reports whether all have
// been placed; if not, the tokens end before the first that is not known. Result
// found is false when the whole text has fewer markers than media.
func (p *Plan) Apply(ids []uint32) (out []uint32, placed []prompt.PlacedMedium, all, found bool) {
	out = make([]uint32, 0, len(ids))
	next := map[string]int{}
	left := 0
	for _, items := range p.items {
		left += len(items)
	}
	for i := 0; i < len(ids); {
		kind, rule, ok := p.at(ids[i:], next)
		if !ok {
			out = append(out, ids[i])
			i++
			continue
		}
		m := p.items[kind][next[kind]]
		fill := rule.fill(m)
		if fill == nil {
			return out, placed, false, true
		}
		placed = append(placed, prompt.PlacedMedium{Kind: kind, Hash: m.Hash, Offset: len(out), Length: len(fill)})
		out = append(out, fill...)
		i += len(rule.target)
		next[kind]++
		left--
	}
	return out, placed, left == 0, left == 0
}

// at finds the kind of which a medium is to be placed where ids begin.
func (p *Plan) at(ids []uint32, next map[string]int) (string, placing, bool) {
	for _, kind := range kinds {
		rule, ok := p.rules[kind]
		if ok && next[kind] < len(p.items[kind]) && len(ids) >= len(rule.target) && slices.Equal(ids[:len(rule.target)], rule.target) {
			return kind, rule, true
		}
	}
	return "", placing{}, false
}
