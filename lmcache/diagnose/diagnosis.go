package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
)

// Config is what entries are held against.
type Config struct {
	// Profiles are how the engines of each model run LMCache, by the model's name in
	// requests; Mode is which entries are read.
	Profiles map[string][]lmcache.Profile
	Mode     lmcache.Mode
	// Pods are the pods that are registered, cache workers among them.
	Pods []store.Pod
	// Owner returns the pod of a model, by its name in requests, that a text in an entry
	// means, "" for none.
	Owner func(model, text string) string
	// Learns says that scorers learn the profiles of models that have none by themselves.
	Learns bool
	// MaxAge is how old an entry with a time may be to count; 0 is for ever.
	MaxAge time.Duration
	// Now is the time.
	Now time.Time
}

// Entry is a key of Redis.
type Entry struct {
	// Name is the key's, Type Redis's word for what it is.
	Name, Type string
	// Aged reports whether it has a time to live.
	Aged bool
	// Text is the value of a string, Fields are those of a hash, when Want asked for it
	// and it was small.
	Text   string
	Fields map[string]string
}

// shape is which of LMCache's parts writes such a key.
type shape uint8

const (
	owner   shape = iota // a worker's chunk, and its pod: up to 0.3.9
	owners               // a chunk, and its pods: the fork
	tensors              // a worker's chunk itself
	object               // the same in MP mode

	numShapes
)

var shapes = [numShapes]string{"a string that names a pod", "a hash that names pods", "tensors", "tensors of MP mode"}

// kind is what the names of a group have in common. Of two kinds at most one is read
// by a given profile.
type kind struct {
	shape   shape
	form    lmcache.Form
	fmt     string
	model   string
	world   int
	dtype   string
	width   int    // of the hash in bytes, 0 for an int
	suffix  string // of tensors
	variant string // layer, tag or salt: what no reader asks for
	group   uint32 // of an object
}

// pattern is the name with * for what differs within the group.
func (k kind) pattern() string {
	hash := "<int>"
	switch {
	case k.width > 0:
		hash = fmt.Sprintf("<%d hex digits>", 2*k.width)
	case k.form == lmcache.FormDecimal:
		hash = "<decimal>"
	}
	var parts []string
	switch k.shape {
	case owners:
		return k.model + "@" + hash
	case object:
		parts = []string{k.model, fmt.Sprintf("%02x......", k.world), strconv.FormatUint(uint64(k.group), 16), hash}
	default:
		if k.fmt != "" {
			parts = append(parts, k.fmt)
		}
		parts = append(parts, k.model, strconv.Itoa(k.world), "*", hash)
		if k.dtype != "" {
			parts = append(parts, k.dtype)
		}
	}
	if k.variant != "" {
		parts = append(parts, k.variant)
	}
	return strings.Join(parts, "@") + k.suffix
}

// suffixes are what the redis:// store puts behind a key.
var suffixes = []string{"metadata", "kv_bytes"}

// parsed is a name taken apart.
type parsed struct {
	kind
	worker int
	hash   lmcache.Hash
	digits bool // the hash may be decimal or hex
}

// parse takes a name apart; ok is false for a name that is not LMCache's.
func parse(name string) (p parsed, ok bool) {
	for _, suffix := range suffixes {
		bare, found := strings.CutSuffix(name, suffix)
		if !found {
			continue
		}
		if p, ok = parse(bare); ok && p.suffix == "" && p.shape != owners && p.shape != object {
			p.shape, p.suffix = tensors, suffix
			return p, true
		}
	}
	key, err := lmcache.Parse(name)
	switch {
	case err != nil:
		return p, false
	case key.Fork != nil:
		h, err := lmcache.BytesHash(key.Fork.Hash[:])
		return parsed{kind: kind{shape: owners, model: key.Fork.Model, width: len(key.Fork.Hash)}, hash: h}, err == nil
	case key.Object != nil:
		o := key.Object
		b, _ := o.Hash.Bytes()
		p = parsed{kind: kind{shape: object, model: o.Model, world: o.Rank.WorldSize(), width: len(b), group: o.Group}, worker: o.Rank.Rank(), hash: o.Hash}
		if o.Salt != "" {
			p.variant = "<salt>"
		}
		return p, true
	}
	k := key.Key
	b, isBytes := k.Hash.Bytes()
	p = parsed{
		kind:   kind{shape: owner, form: k.Form, fmt: k.Fmt, model: k.Model, world: k.WorldSize, dtype: k.DType, width: len(b)},
		worker: k.WorkerID, hash: k.Hash,
	}
	if k.Form == lmcache.FormDType || k.Form == lmcache.FormModel {
		p.shape = tensors // these versions have no lookup server
	}
	switch {
	case k.HasLayer && len(k.Tags) > 0:
		p.variant = "<layer>@<tag>"
	case k.HasLayer:
		p.variant = "<layer>"
	case len(k.Tags) > 0:
		p.variant = "<tag>"
	}
	p.digits = !isBytes && k.Form == lmcache.FormHex && strings.Trim(k.Hash.String(), "-0123456789") == ""
	return p, true
}

// group is what was seen of a kind.
type group struct {
	kind
	entries   int
	chunks    map[lmcache.Hash][]bool // which workers have it
	letters   bool                    // some hash is surely not decimal
	aged      int
	old       int // fields with a time before MaxAge
	timed     int
	newest    time.Time
	wrong     map[string]int // by type, of those whose type is not the shape's
	sample    string
	owners    map[string]int // texts and how often
	chunkless int            // chunks beyond the limit of those remembered
}

// The bounds of what is remembered.
const (
	maxGroups = 256
	maxChunks = 20_000 // of a group
	maxOwners = 1_000  // of a group
	maxWorld  = 1_024
)

// Diagnosis takes entries in.
type Diagnosis struct {
	c      Config
	groups map[kind]*group
	passed int // entries of groups beyond maxGroups
	other  int // names that are not LMCache's
	reads  []read
	broken []error // profiles that no reader can be made of
	// profiles are those of Config that a reader can be made of.
	profiles map[string][]lmcache.Profile
}

// read is a name that a profile reads.
type read struct {
	model   string
	profile lmcache.Profile
	parsed
}

// New returns a diagnosis that has seen nothing.
func New(c Config) *Diagnosis {
	s := &Diagnosis{c: c, groups: map[kind]*group{}, profiles: map[string][]lmcache.Profile{}}
	if s.c.Owner == nil {
		s.c.Owner = func(string, string) string { return "" }
	}
	for _, model := range slices.Sorted(maps.Keys(c.Profiles)) {
		for _, p := range c.Profiles[model] {
			r, err := lmcache.NewReader(model, c.Mode, p)
			if err != nil {
				s.broken = append(s.broken, err)
				continue
			}
			s.profiles[model] = append(s.profiles[model], p)
			s.addReader(model, p, r)
		}
	}
	return s
}

// addReader finds out which kinds of names a reader asks for.
func (s *Diagnosis) addReader(model string, p lmcache.Profile, r *lmcache.Reader) {
	for _, k := range kinds(p, r) {
		s.reads = append(s.reads, read{model, p, k})
	}
}

// kinds are those of the names that a reader of the profile asks for.
func kinds(p lmcache.Profile, r *lmcache.Reader) (out []parsed) {
	for _, g := range r.Groups() {
		hashes := g.Hasher.Append(nil, make([]uint32, g.Hasher.ChunkSize()))
		for i := range g.Entries {
			names := g.Entries[i].AppendNames(nil, hashes[:1])
			for _, name := range names[:min(1, len(names))] {
				got, ok := parse(name)
				if !ok {
					continue // a model whose name makes a key ambiguous
				}
				if p.Version.Form() == lmcache.FormDecimal && got.shape == owner {
					got.form = lmcache.FormDecimal // whatever this one hash looks like
				}
				switch g.Entries[i].Kind {
				case lmcache.Tensors:
					if got.shape == owner {
						got.shape = tensors
					}
				case lmcache.OwnerString, lmcache.OwnerHash:
				}
				out = append(out, got)
			}
		}
	}
	return out
}

// Want reports whether Add needs a key of this name, and whether its value is
// needed. Keys that may hold tensors are never to be read.
func (s *Diagnosis) Want(name string) (tell, read bool) {
	p, ok := parse(name)
	if !ok {
		s.other++
		return false, false
	}
	return true, p.shape == owner || p.shape == owners
}

// Add takes a key in. Each is to be added once.
func (s *Diagnosis) Add(e Entry) {
	p, ok := parse(e.Name)
	if !ok {
		return
	}
	g := s.groups[p.kind]
	if g == nil {
		if len(s.groups) >= maxGroups {
			s.passed++
			return
		}
		g = &group{kind: p.kind, sample: e.Name, chunks: map[lmcache.Hash][]bool{}, wrong: map[string]int{}, owners: map[string]int{}}
		s.groups[p.kind] = g
	}
	g.entries++
	g.letters = g.letters || !p.digits
	if e.Aged {
		g.aged++
	}
	workers, known := g.chunks[p.hash]
	switch {
	case !known && len(g.chunks) >= maxChunks:
		g.chunkless++
	case p.world <= maxWorld:
		if workers == nil {
			workers = make([]bool, max(1, p.world))
			g.chunks[p.hash] = workers
		}
		if p.worker < len(workers) {
			workers[p.worker] = true
		}
	}
	want := "string"
	if p.shape == owners {
		want = "hash"
	}
	if e.Type != want {
		g.wrong[e.Type]++
		return
	}
	if p.shape == owner && e.Text != "" {
		g.own(e.Text)
	}
	for field, meta := range e.Fields {
		g.own(field)
		if t, ok := stamp(meta); ok {
			g.timed++
			if t.After(g.newest) {
				g.newest = t
			}
			if s.c.MaxAge > 0 && s.c.Now.Sub(t) > s.c.MaxAge {
				g.old++
			}
		}
	}
}

func (g *group) own(text string) {
	if _, known := g.owners[text]; known || len(g.owners) < maxOwners {
		g.owners[text]++
	}
}

// stamp reads the time in the value of a field, fmt@world_size@worker_id@seconds.
func stamp(meta string) (time.Time, bool) {
	i := strings.LastIndexByte(meta, '@')
	if i < 0 {
		return time.Time{}, false
	}
	sec, err := strconv.ParseFloat(meta[i+1:], 64)
	if err != nil || sec <= 0 || sec > 1e11 {
		return time.Time{}, false
	}
	return time.Unix(0, int64(sec*1e9)), true
}

// merge makes one group of hex hashes without a letter and the decimal ones that they
// are among.
func (s *Diagnosis) merge() {
	for k, g := range s.groups {
		if k.form != lmcache.FormHex || k.width > 0 || g.letters {
			continue
		}
		to := k
		to.form = lmcache.FormDecimal
		d := s.groups[to]
		if d == nil {
			continue
		}
		d.entries += g.entries
		d.aged += g.aged
		for t, n := range g.wrong {
			d.wrong[t] += n
		}
		for t, n := range g.owners {
			d.owners[t] += n
		}
		d.chunkless += len(g.chunks) // their workers stand apart; they are few
		delete(s.groups, k)
	}
}

// sorted are the groups, the same order each time.
func (s *Diagnosis) sorted() []*group {
	s.merge()
	return slices.SortedFunc(maps.Values(s.groups), func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.shape, b.shape), strings.Compare(a.model, b.model), strings.Compare(a.pattern(), b.pattern()))
	})
}
