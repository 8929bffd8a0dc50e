package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/lmcache"
)

// What Explain tries beside what is configured.
var (
	triedSizes = []int{256, 16, 32, 64, 128, 512, 1024}
	triedSeeds = []string{"0", "42", "1", "1234"}
	// Python 3.10 and 3.12 stand for those before and after strings got another hash.
	triedPythons = []int{12, 10}
)

const (
	maxAsked        = 50_000 // names that Explain asks about
	maxAskedWorkers = 8      // of a chunk
)

// Chain is a way to hash, and the hash of a prompt's first chunk by it.
type Chain struct {
	Config lmcache.Config
	Hash   lmcache.Hash
	// Configured says that it is a profile's.
	Configured bool
}

// Explanation is the search for the chain by which a prompt is filed.
type Explanation struct {
	s      *Diagnosis
	model  string
	tokens []uint32
	chains []Chain
	names  []string
	of     []int    // of each name, the chain
	in     []*group // and the names that it is like
}

// Explain begins a search for how the first chunk of a model's prompt is filed. Ask the
// index about Keys and Redis about Names, and give the answers to Findings. Entries have
// to be added before.
func (s *Diagnosis) Explain(model string, tokens []uint32) *Explanation {
	e := &Explanation{s: s, model: model, tokens: tokens, chains: chainsOf(tokens, s.profiles[model])}
	for _, g := range s.sorted() {
		if g.variant != "" || g.suffix == "kv_bytes" {
			continue
		}
		for i, c := range e.chains {
			b, _ := c.Hash.Bytes()
			if len(b) != g.width {
				continue
			}
			for worker := range min(max(1, g.world), maxAskedWorkers) {
				if len(e.names) == maxAsked {
					return e
				}
				if name := g.name(c.Hash, worker); name != "" {
					e.names = append(e.names, name)
					e.of = append(e.of, i)
					e.in = append(e.in, g)
				}
			}
		}
	}
	return e
}

// name is the name of a worker's chunk; "" when it has none.
func (k kind) name(h lmcache.Hash, worker int) string {
	switch k.shape {
	case owners:
		d, ok := h.Digest()
		if !ok {
			return ""
		}
		return lmcache.ForkKey{Model: k.model, Hash: d}.String()
	case object:
		rank, err := lmcache.NewKVRank(k.world, worker, k.world, worker)
		if err != nil {
			return ""
		}
		return lmcache.ObjectKey{Model: k.model, Rank: rank, Group: k.group, Hash: h}.String()
	default:
		return lmcache.Key{Form: k.form, Fmt: k.fmt, Model: k.model, WorldSize: k.world, WorkerID: worker, Hash: h, DType: k.dtype}.String() + k.suffix
	}
}

// chainsOf are the ways to hash that there are, those of the profiles first. Of ways
// that give one hash the one that is most like a profile stands for all.
func chainsOf(tokens []uint32, profiles []lmcache.Profile) []Chain {
	var out []Chain
	at := map[lmcache.Hash]int{}
	try := func(c lmcache.Config, configured bool) {
		h, err := lmcache.New(c)
		if err != nil || len(tokens) < h.ChunkSize() {
			return
		}
		hash := h.Append(nil, tokens[:h.ChunkSize()])[0]
		c.ChunkSize = h.ChunkSize()
		i, known := at[hash]
		switch {
		case !known:
			at[hash] = len(out)
			out = append(out, Chain{c, hash, configured})
		case !out[i].Configured && distance(c, profiles) < distance(out[i].Config, profiles):
			out[i].Config = c
		}
	}
	sizes, seeds := slices.Clone(triedSizes), slices.Clone(triedSeeds)
	for _, p := range profiles {
		try(p.Config, true)
		if p.ChunkSize != 0 && !slices.Contains(sizes, p.ChunkSize) {
			sizes = append(sizes, p.ChunkSize)
		}
		if p.Seed != "" && !slices.Contains(seeds, p.Seed) {
			seeds = append(seeds, p.Seed)
		}
	}
	for _, size := range sizes {
		// The fork's chain is the same, and few have it.
		try(lmcache.Config{Version: lmcache.V031, ChunkSize: size}, false)
		for v := lmcache.V01; v <= lmcache.V046; v++ {
			if v <= lmcache.V031 { // neither algorithm nor seed
				try(lmcache.Config{Version: v, ChunkSize: size}, false)
				continue
			}
			for _, python := range triedPythons {
				try(lmcache.Config{Version: v, ChunkSize: size, Python: python}, false)
				for a := lmcache.Builtin; a <= lmcache.XXHashCBOR; a++ {
					for _, seed := range seeds {
						c := lmcache.Config{Version: v, Algorithm: a, VLLM: true, Seed: seed, ChunkSize: size, Python: python}
						try(c, false)
						c.MP = true
						try(c, false)
					}
				}
			}
			try(lmcache.Config{Version: v, MP: true, ChunkSize: size}, false)
		}
	}
	return out
}

// Keys are the keys of the chains in the index, in their order.
func (e *Explanation) Keys() []blockkey.Key {
	keys := make([]blockkey.Key, len(e.chains))
	for i, c := range e.chains {
		keys[i] = c.Hash.ChunkKey()
	}
	return keys
}

// Names are the names of keys in Redis that would be there.
func (e *Explanation) Names() []string { return e.names }

// place is where a chain has been found: under a name, or in the index.
type place struct {
	text string
	in   *group // nil is the index
}

// LeastTokens is how many tokens the smallest chunk has that Explain tries.
const LeastTokens = 16

// OwnNames are those of Names that are of keys for the model itself, and of no other one.
// What another model has filed of the same tokens is not its own.
func (e *Explanation) OwnNames() (names []string) {
	for i, name := range e.names {
		if e.in[i].model == e.model {
			names = append(names, name)
		}
	}
	return names
}

// Profiles returns the profiles by which the prompt is found under the model's own names:
// there says which of OwnNames, names, there are.
func (e *Explanation) Profiles(names []string, there []bool) (out []lmcache.Profile) {
	at := map[string]bool{}
	for i, ok := range there {
		at[names[i]] = ok
	}
	type pair struct {
		chain int
		in    kind
	}
	seen := map[pair]bool{}
	for i, name := range e.names {
		k := pair{e.of[i], e.in[i].kind}
		if e.in[i].model != e.model || !at[name] || seen[k] {
			continue
		}
		seen[k] = true
		p := e.fit(e.chains[e.of[i]], []place{{name, e.in[i]}})
		if _, err := lmcache.NewReader(e.model, lmcache.AutoEntries, p); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// Findings says which chain the prompt is filed by. held says which of Keys have a holder, there which of
// Names exist.
func (e *Explanation) Findings(held, there []bool) []check.Finding {
	found := map[int][]place{} // by chain
	for i, ok := range held {
		if ok && i < len(e.chains) {
			found[i] = append(found[i], place{text: "the index, by a cache worker"})
		}
	}
	for i, ok := range there {
		if ok && i < len(e.of) {
			n := e.of[i]
			found[n] = append(found[n], place{e.names[i], e.in[i]})
		}
	}
	f := check.Finding{What: "lmcache chain", Where: e.model}
	if len(e.chains) == 0 {
		f.Level, f.Found = check.Info, fmt.Sprintf("%d tokens are less than the smallest chunk that is tried", len(e.tokens))
		f.Do = "give a prompt of at least a chunk, usually 256 tokens"
		return []check.Finding{f}
	}
	if len(found) == 0 {
		f.Level, f.Found = check.Info, fmt.Sprintf("no engine has filed these tokens by any of %d chains that were tried", len(e.chains))
		f.Means = "no engine holds the prompt; or its seed is random (PYTHONHASHSEED not set) or another one; or it has seen other tokens: another tokenizer, chat template or special tokens"
		f.Do = "send the prompt to an engine and try again; then set PYTHONHASHSEED at all engines and in the profile"
		return []check.Finding{f}
	}
	mine := slices.ContainsFunc(slices.Collect(maps.Keys(found)), func(i int) bool { return e.chains[i].Configured })
	var out []check.Finding
	for _, i := range slices.Sorted(maps.Keys(found)) {
		f := f
		p := e.fit(e.chains[i], found[i])
		f.Found = fmt.Sprintf("%s: in %s", describe(p.Config), found[i][0].text)
		if n := len(found[i]); n > 1 {
			f.Found += fmt.Sprintf(" and %d more", n-1)
		}
		e.judge(&f, e.chains[i].Configured, p, found[i], mine)
		out = append(out, f)
	}
	return out
}

// judge says what it means that a chain, configured or not, has been found in these places,
// which the profile has reads. Whether a configured one has been found is mine.
func (e *Explanation) judge(f *check.Finding, configured bool, has lmcache.Profile, places []place, mine bool) {
	spelled, profiles := Spell(e.model, has), e.s.profiles[e.model]
	switch {
	case len(profiles) == 0 && len(e.s.c.Profiles[e.model]) > 0:
		f.Level, f.Means = check.Warn, "the model's profile is refused, so that it is never asked for"
		f.Do = "correct the profile: " + spelled
	case len(profiles) == 0 && e.s.c.Learns && slices.ContainsFunc(places, func(p place) bool { return p.in != nil && p.in.model == e.model }):
		f.Found += ", as learnt from the entries"
		f.Means = "scorers learn it too, from prompts that they are asked for (lmcache: auto): " + spelled
	case len(profiles) == 0:
		f.Level, f.Means = check.Warn, "no profile is configured for the model, so that it is never asked for"
		f.Do = "configure this one: " + spelled
	case configured:
		f.Found += ", as configured"
		if slices.ContainsFunc(places, e.read) {
			return
		}
		f.Level, f.Means = check.Fail, "the profile's hashes are right, and the names never match"
		if diff := e.s.nearestRead(places[0].in.kind, e.model); diff != nil {
			f.Means += ": " + strings.Join(diff, "; ")
			f.Do = "set the profile to what the engines have: " + spelled
			return
		}
		why := e.s.whyUnread(places[0].in)
		f.Level, f.Means, f.Do = why.Level, "the profile's hashes are right, and "+why.Means, why.Do
	default:
		f.Level, f.Means = check.Fail, "the profile's hashes never match"
		if mine {
			f.Level, f.Means = check.Warn, "these engines hash otherwise than the others, and what they hold is not found"
		}
		_, p := nearest(has.Config, profiles)
		diff := differences(has.Config, p)
		if name := e.otherName(places); name != "" {
			diff = append(diff, fmt.Sprintf("the model name differs: theirs is %q, the profile's %q", name, cmp.Or(profiles[0].Model, e.model)))
		}
		f.Means += ": " + strings.Join(diff, "; ")
		f.Do = "set the profile to what the engines have, or add another one to it: " + spelled
	}
}

// read reports whether scoring of the model looks at a place.
func (e *Explanation) read(p place) bool {
	return p.in == nil || slices.ContainsFunc(e.s.readers(p.in.kind), func(r read) bool { return r.model == e.model })
}

// fit is the profile that reads what was found: of the lines of releases that hash alike,
// the one that has such names.
func (e *Explanation) fit(c Chain, places []place) lmcache.Profile {
	p := lmcache.Profile{Config: c.Config}
	i := slices.IndexFunc(places, func(p place) bool { return p.in != nil })
	if i < 0 {
		return p
	}
	k := places[i].in.kind
	k.suffix = ""
	if k.model != e.model {
		p.Model = k.model
	}
	if k.fmt != "vllm" {
		p.Fmt = k.fmt
	}
	p.DType = k.dtype
	if k.world > 1 {
		p.WorldSizes = []int{k.world}
	}
	switch {
	case k.shape == object, k.shape == tensors && places[i].in.suffix == "":
		p.Remote = lmcache.RemoteRESP
	case k.shape == tensors:
		p.Remote = lmcache.RemoteRedis
	}
	for v := lmcache.V046; ; v-- {
		q := p
		q.Version, q.MP = v, k.shape == object
		if r, err := lmcache.NewReader(e.model, lmcache.AutoEntries, q); err == nil && e.hashes(q.Config, c.Hash) && slices.ContainsFunc(kinds(q, r), func(n parsed) bool {
			n.suffix = ""
			return n.kind == k
		}) {
			return q
		}
		if v == lmcache.V01 {
			return p
		}
	}
}

// hashes reports whether the first chunk of the prompt has this hash.
func (e *Explanation) hashes(c lmcache.Config, want lmcache.Hash) bool {
	h, err := lmcache.New(c)
	return err == nil && len(e.tokens) >= h.ChunkSize() && h.Append(nil, e.tokens[:h.ChunkSize()])[0] == want
}

// otherName is the model's name in the names of the places, "" when one of them has a
// profile's, or when they have none.
func (e *Explanation) otherName(places []place) string {
	name := ""
	for _, p := range places {
		if p.in == nil || slices.ContainsFunc(e.s.c.Profiles[e.model], func(q lmcache.Profile) bool { return cmp.Or(q.Model, e.model) == p.in.model }) {
			return ""
		}
		name = cmp.Or(name, p.in.model)
	}
	return name
}

// differences says in what the engines are set otherwise than a profile.
func differences(has, mine lmcache.Config) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if a, b := algorithm(has), algorithm(mine); a != b {
		say("your algorithm differs: theirs is %s, the profile's %s", a, b)
	}
	// Where one algorithm has a seed and the other has none, only theirs is to be set.
	switch alike := algorithm(has) == algorithm(mine); {
	case seeded(has) && seeded(mine) && has.Seed != mine.Seed:
		say("your seed differs: theirs is %s, the profile's %s", has.Seed, mine.Seed)
	case seeded(has) && !seeded(mine) && alike:
		say("theirs runs inside vLLM, where hashes begin with PYTHONHASHSEED, which is %s, and the profile's does not (vllm=false)", has.Seed)
	case seeded(has) && !seeded(mine):
		say("theirs has a seed, %s, and the profile's algorithm has none", has.Seed)
	case seeded(mine) && alike:
		say("theirs does not run inside vLLM (vllm=false), where hashes begin with 0 whatever PYTHONHASHSEED is, and the profile's does")
	}
	if a, b := cmp.Or(has.ChunkSize, blockkey.DefaultChunkSize), cmp.Or(mine.ChunkSize, blockkey.DefaultChunkSize); a != b {
		say("your chunk size differs: theirs is %d, the profile's %d", a, b)
	}
	if has.MP != mine.MP {
		say("theirs is MP mode: %t, the profile's: %t", has.MP, mine.MP)
	}
	if has.Version != mine.Version {
		say("your version differs: theirs hashes as %s, and the profile's is of %s", line(has.Version), line(mine.Version))
	}
	if seeded(has) && seeded(mine) && has.Algorithm == lmcache.Builtin && (has.Python >= 11) != (mine.Python >= 11) {
		say("your Python differs: theirs hashes as 3.%d, the profile's is 3.%d", has.Python, mine.Python)
	}
	return out
}

// distance is how much a config differs from the nearest profile.
func distance(c lmcache.Config, profiles []lmcache.Profile) int {
	n, _ := nearest(c, profiles)
	return n
}

func nearest(c lmcache.Config, profiles []lmcache.Profile) (n int, p lmcache.Config) {
	if len(profiles) == 0 {
		return 0, c
	}
	n = -1
	for i := range profiles {
		if d := len(differences(c, profiles[i].Config)); n < 0 || d < n {
			n, p = d, profiles[i].Config
		}
	}
	return n, p
}
