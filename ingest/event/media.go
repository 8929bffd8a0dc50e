package event

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/store"
)

// media is where engines' words for a medium belong. Keys are upper case.
var media = map[string]store.Tier{
	// vLLM 0.10.2 and later; SGLang 0.5.9 and later; TensorRT-LLM. Engines before
	// them, and Dynamo's publisher, know the GPU alone and send no word.
	"": store.GPU, "GPU": store.GPU, "DEVICE": store.GPU,
	// vLLM's offloading, LMCache ("cpu"), SGLang's HiCache ("CPU_PINNED"), Dynamo.
	"CPU": store.CPU, "CPU_PINNED": store.CPU, "CPU_TIER1": store.CPU,
	"HOST": store.CPU, "HOST_PINNED": store.CPU,
	// vLLM's "STORAGE" and, in 0.26, "FS"; SGLang's "DISK"; Dynamo.
	"STORAGE": store.Disk, "FS": store.Disk, "DISK": store.Disk, "NVME": store.Disk,
	"SSD": store.Disk, "CPU_TIER2": store.Disk,
	// vLLM 0.26's "OBJ"; SGLang's "EXTERNAL"; Dynamo.
	"OBJ": store.Shared, "OBJECT": store.Shared, "EXTERNAL": store.Shared,
	"NETWORK": store.Shared, "REMOTE": store.Shared, "SHARED": store.Shared,
}

// maxMedium is the length of a word above which it is no medium.
const maxMedium = 32

// Media maps engines' words for where blocks are to tiers, without regard to
// case. The zero value and nil have the words that engines are known to use. But for
// UnmarshalText a Media is never changed, and safe for concurrent use.
type Media struct {
	extra map[string]store.Tier
}

// NewMedia returns the known words and those of extra, which go before the known.
func NewMedia(extra map[string]store.Tier) (*Media, error) {
	m := &Media{extra: make(map[string]store.Tier, len(extra))}
	for _, word := range slices.Sorted(maps.Keys(extra)) {
		tier := extra[word]
		upper := strings.ToUpper(word)
		switch _, twice := m.extra[upper]; {
		case len(word) > maxMedium:
			return nil, fmt.Errorf("event: a medium has at most %d bytes, %q has %d", maxMedium, word, len(word))
		case int(tier) >= store.NumTiers:
			return nil, fmt.Errorf("event: medium %q is mapped to tier %d, which is none", word, tier)
		case twice:
			return nil, fmt.Errorf("event: medium %q is mapped twice", upper)
		}
		m.extra[upper] = tier
	}
	return m, nil
}

// UnmarshalText is NewMedia of a list such as "cxl=cpu,tape=disk".
func (m *Media) UnmarshalText(text []byte) error {
	extra := map[string]store.Tier{}
	for entry := range strings.SplitSeq(string(text), ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		word, name, ok := strings.Cut(entry, "=")
		if !ok {
			return fmt.Errorf("event: %q is not of the form word=tier", entry)
		}
		tier, err := store.ParseTier(strings.TrimSpace(name))
		if err != nil {
			return fmt.Errorf("event: %q: %w", entry, err)
		}
		if word = strings.ToUpper(strings.TrimSpace(word)); hasKey(extra, word) {
			return fmt.Errorf("event: medium %q is mapped twice", word)
		}
		extra[word] = tier
	}
	read, err := NewMedia(extra)
	if err != nil {
		return err
	}
	*m = *read
	return nil
}

func hasKey(m map[string]store.Tier, word string) bool {
	_, ok := m[word]
	return ok
}

// MarshalText writes the words that go beyond the known, in order.
func (m *Media) MarshalText() ([]byte, error) {
	var b []byte
	for _, word := range slices.Sorted(maps.Keys(m.extra)) {
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, word...), '='), m.extra[word].String()...)
	}
	return b, nil
}

// String is the text that MarshalText writes.
func (m *Media) String() string {
	b, _ := m.MarshalText() // it cannot fail
	return string(b)
}

// Tier returns where blocks in medium are. Of a word that is not known it returns
// false. Its blocks may be slow to reach or far away, so they must weigh nothing in
// a score until an operator says where they are.
func (m *Media) Tier(medium string) (tier store.Tier, known bool) {
	if len(medium) > maxMedium {
		return 0, false
	}
	var buf [maxMedium]byte
	upper := append(buf[:0], medium...)
	for i, c := range upper {
		if 'a' <= c && c <= 'z' {
			upper[i] = c - 'a' + 'A'
		}
	}
	if m != nil {
		if tier, known = m.extra[string(upper)]; known {
			return tier, true
		}
	}
	tier, known = media[string(upper)]
	return tier, known
}

// TierOf is Tier of the event's medium, in which a disk that the engine calls
// remote is shared. What Cleared means has no medium on the wire of any engine:
// it is the tier of "", the GPU.
func (m *Media) TierOf(e *Event) (tier store.Tier, known bool) {
	tier, known = m.Tier(e.Medium)
	if known && tier == store.Disk && e.Locality == "REMOTE" {
		tier = store.Shared
	}
	return tier, known
}
