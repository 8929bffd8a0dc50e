package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/check"
)

// Names are the names of all findings of this package, in the order in which they
// are told.
var Names = []string{
	"lmcache profile", "lmcache entries", "lmcache model", "lmcache owners", "lmcache workers", "lmcache age", "lmcache tensors",
	"lmcache controller", "lmcache chain",
}

// shown is how many examples a finding has.
const shown = 3

// Findings says what was found. all reports whether these were all keys that there are.
func (s *Diagnosis) Findings(all bool) []check.Finding {
	var out []check.Finding
	add := func(f check.Finding) { out = append(out, f) }
	for _, err := range s.broken {
		add(check.Finding{
			Level: check.Fail, What: "lmcache profile", Found: strings.TrimPrefix(err.Error(), "lmcache: "),
			Means: "kvatlas serve does not start with it", Do: "correct the profile",
		})
	}
	groups := s.sorted()
	if len(groups) == 0 {
		f := check.Finding{Level: check.Info, What: "lmcache entries", Found: fmt.Sprintf("none, among %d names", s.other)}
		if !all {
			f.Found += " that were looked at"
		}
		f.Means = "LMCache from 0.3.7 on files nothing in Redis but the tensors of a redis:// or resp:// store; what its workers hold is told to a controller, by events, or to a coordinator"
		add(f)
	}
	for _, g := range groups {
		add(s.judgeEntries(g, all))
	}
	if s.passed > 0 {
		add(check.Finding{Level: check.Info, What: "lmcache entries", Found: fmt.Sprintf("%d more of other patterns", s.passed), Means: fmt.Sprintf("no more than %d patterns are looked at", maxGroups)})
	}
	s.judgeModels(groups, add)
	for _, g := range groups {
		s.judgeOwners(g, add)
		s.judgeWorkers(g, add, all)
		s.judgeAge(g, add)
	}
	s.judgeTensors(groups, add)
	s.judgeController(add)
	order := func(f check.Finding) int { return slices.Index(Names, f.What) }
	slices.SortStableFunc(out, func(a, b check.Finding) int { return cmp.Compare(order(a), order(b)) })
	return out
}

// readers are the names that are read of a group's kind.
func (s *Diagnosis) readers(k kind) (out []read) {
	for _, r := range s.reads {
		r.suffix, k.suffix = "", ""
		if r.kind == k {
			out = append(out, r)
		}
	}
	return out
}

func (s *Diagnosis) judgeEntries(g *group, all bool) check.Finding {
	f := check.Finding{What: "lmcache entries", Where: g.pattern()}
	n := len(g.chunks) + g.chunkless
	f.Found = fmt.Sprintf("%s of %s, each %s", count(g.entries, "entry"), count(n, "chunk"), shapes[g.shape])
	if !all {
		f.Found += "; there are more keys than were looked at"
	}
	if bad := sum(g.wrong); bad > 0 {
		f.Level = check.Warn
		f.Found += fmt.Sprintf("; %d are of another type, such as %s", bad, slices.Sorted(maps.Keys(g.wrong))[0])
		f.Means, f.Do = "those are passed over, and count as held by no pod", "find out what writes them"
	}
	if len(s.readers(g.kind)) > 0 {
		return f
	}
	why := s.whyUnread(g)
	f.Level = max(f.Level, why.Level)
	f.Means = join(why.Means, f.Means)
	f.Do = join(why.Do, f.Do)
	return f
}

// judgeModels holds the models of entries against those that requests may name.
func (s *Diagnosis) judgeModels(groups []*group, add func(check.Finding)) {
	entries := map[string]int{}
	for _, g := range groups {
		entries[g.model] += g.entries
	}
	known := map[string]bool{} // as entries have them
	names := map[string]bool{} // as requests have them
	for model, profiles := range s.c.Profiles {
		names[model] = true
		for _, p := range profiles {
			known[cmp.Or(p.Model, model)] = true
		}
	}
	for i := range s.c.Pods {
		if p := &s.c.Pods[i]; p.PartOf == nil {
			names[p.Model] = true
		}
	}
	for _, model := range slices.Sorted(maps.Keys(entries)) {
		f := check.Finding{What: "lmcache model", Where: model, Found: count(entries[model], "entry")}
		if known[model] {
			add(f)
			continue
		}
		near := ""
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if alike(model, name) {
				near = name
				break
			}
		}
		f.Level, f.Means = check.Warn, "no profile has this name, so that they never match"
		switch {
		case s.c.Learns && (names[model] || near == ""):
			f.Level, f.Means = check.Info, "no profile has this name: scorers learn it when they are asked for the model"
		case names[model]:
			f.Do = "add a profile of LMCache for this model"
		case near != "":
			f.Means += fmt.Sprintf("; requests and pods call it %q", near)
			f.Do = fmt.Sprintf("give the profile of %q the model name %q for its keys, or start the engines with one name", near, model)
		default:
			f.Means += ", and no pod is registered for it"
			f.Do = "add a profile of LMCache for the model, and register its pods; or the entries are of another fleet"
		}
		add(f)
	}
}

// alike reports whether two names may be of one model. They may differ in case, in the
// folders before the name, or in the way in which a hub's cache writes it.
func alike(a, b string) bool {
	return strings.EqualFold(a, b) || strings.EqualFold(last(a), last(b))
}

// last is the last part of a model's name or path.
func last(name string) string {
	name = strings.TrimRight(name, "/")
	for part := range strings.SplitSeq(name, "/") {
		// .cache/huggingface/hub/models--org--model/snapshots/revision
		if repo, ok := strings.CutPrefix(part, "models--"); ok {
			name = strings.ReplaceAll(repo, "--", "/")
		}
	}
	return path.Base(name)
}

// judgeOwners compares the holders that entries name with the registry.
func (s *Diagnosis) judgeOwners(g *group, add func(check.Finding)) {
	if g.shape != owner && g.shape != owners {
		return
	}
	if len(g.owners) == 0 {
		add(check.Finding{
			Level: check.Warn, What: "lmcache owners", Where: g.pattern(), Found: fmt.Sprintf("none of %s names a pod", count(g.entries, "entry")),
			Means: "those entries count for no pod; they are empty, of another type, longer than what is read, or this user may not read them", Do: "look at one, such as " + g.sample,
		})
		return
	}
	var lost []string
	pods, n := map[string]bool{}, 0
	model := s.requested(g.kind)
	for _, text := range slices.Sorted(maps.Keys(g.owners)) {
		if pod := s.c.Owner(model, text); pod != "" {
			pods[pod] = true
			continue
		}
		n += g.owners[text]
		lost = append(lost, text)
	}
	f := check.Finding{What: "lmcache owners", Where: g.pattern(), Found: fmt.Sprintf("%s named", count(len(pods), "registered pod"))}
	if len(lost) > 0 {
		f.Level = check.Warn
		f.Found += fmt.Sprintf("; %s of %s name no registered pod", count(len(lost), "text"), count(n, "entry"))
		var why []string
		for _, text := range lost[:min(shown, len(lost))] {
			why = append(why, fmt.Sprintf("%q (%s)", text, s.whyNobody(model, text)))
		}
		f.Found += ": " + strings.Join(why, ", ")
		f.Means = "those entries count for no pod"
		f.Do = "register the pods with these addresses, or give LMCache's distributed_url the host, or the host and port, that pods are registered with"
	}
	add(f)
}

// requested is the name that requests have for the model of a kind.
func (s *Diagnosis) requested(k kind) string {
	for _, r := range s.readers(k) {
		return r.model
	}
	for _, model := range slices.Sorted(maps.Keys(s.c.Profiles)) {
		for _, p := range s.c.Profiles[model] {
			if cmp.Or(p.Model, model) == k.model {
				return model
			}
		}
	}
	return k.model
}

// whyNobody says why a text names no pod.
func (s *Diagnosis) whyNobody(model, text string) string {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), ""
	}
	if text == "" || host == "" {
		return "no host"
	}
	var there []string
	for i := range s.c.Pods {
		p := &s.c.Pods[i]
		if p.PartOf == nil && p.Model == model && (hostOf(p.Name) == host || hostOf(p.Address) == host) {
			there = append(there, p.Name)
		}
	}
	switch {
	case len(there) > 1 && port == "":
		return fmt.Sprintf("a host of %d pods, %s among them, and no port says which", len(there), there[0])
	case len(there) > 1:
		return fmt.Sprintf("a host of %d pods, none at this port, %s among them", len(there), there[0])
	case len(there) == 1:
		return "at this host there is " + there[0] + ", and it is not of a form that is read"
	case strings.Count(text, ":") > 1 && err != nil:
		return "IPv6 without a port; a pod at [" + host + "]:port would be meant"
	}
	return "no pod is registered at this host"
}

func hostOf(address string) string {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address, _, _ = strings.Cut(rest, "/")
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
	}
	return host
}

// judgeWorkers says which workers' halves of chunks are missing.
func (s *Diagnosis) judgeWorkers(g *group, add func(check.Finding), all bool) {
	if g.shape == owners || g.world < 2 || g.world > maxWorld || g.suffix == "kv_bytes" || g.variant != "" {
		return
	}
	whole, missing := 0, make([]int, g.world)
	for _, has := range g.chunks {
		n := 0
		for worker, there := range has {
			if there {
				n++
			} else {
				missing[worker]++
			}
		}
		if n == g.world {
			whole++
		}
	}
	f := check.Finding{What: "lmcache workers", Where: g.pattern(), Found: fmt.Sprintf("%d of %s are there of all %d workers", whole, count(len(g.chunks), "chunk"), g.world)}
	if broken := len(g.chunks) - whole; broken > 0 && all {
		most := 0
		for worker := range missing {
			if missing[worker] > missing[most] {
				most = worker
			}
		}
		f.Level = check.Info
		f.Means = fmt.Sprintf("a chunk counts when all workers of a pod have it; worker %d lacks most, %d", most, missing[most])
		if whole == 0 {
			f.Level, f.Do = check.Warn, fmt.Sprintf("let all workers write to this Redis; with save_only_first_rank (MLA) the world size in the keys is 1, not %d", g.world)
		}
	}
	add(f)
}

// judgeAge says how old entries are, and whether they can grow old.
func (s *Diagnosis) judgeAge(g *group, add func(check.Finding)) {
	if g.shape != owner && g.shape != owners {
		return
	}
	f := check.Finding{What: "lmcache age", Where: g.pattern()}
	switch {
	case g.timed > 0:
		f.Found = fmt.Sprintf("the newest is %v old", s.c.Now.Sub(g.newest).Round(time.Second))
		if g.old > 0 {
			f.Level = check.Info
			f.Found += fmt.Sprintf("; %d of %s are older than %v", g.old, count(g.timed, "field"), s.c.MaxAge)
			f.Means, f.Do = "those count for no pod: their writer may have lost the chunk long since", "a longer maximum age lets them count"
		}
	case g.aged == g.entries:
		f.Found = "all have a time to live"
	default:
		f.Level, f.Found = check.Info, fmt.Sprintf("%s without a time, and without a time to live", count(g.entries-g.aged, "entry"))
		f.Means = "LMCache leaves entries behind when an engine dies and when a request's tokens are cleared; they count until their pod is gone"
		f.Do = "register pods with a lease, or give the keys a time to live from outside"
	}
	add(f)
}

// judgeTensors says what tensors prove.
func (s *Diagnosis) judgeTensors(groups []*group, add func(check.Finding)) {
	n, read := 0, 0
	for _, g := range groups {
		if g.shape == tensors || g.shape == object {
			n += g.entries
			if len(s.readers(g.kind)) > 0 {
				read += g.entries
			}
		}
	}
	if n == 0 {
		return
	}
	add(check.Finding{
		What: "lmcache tensors", Found: fmt.Sprintf("%s hold tensors; of %d of them scoring asks whether they are there", count(n, "key"), read),
		Means: "they show that a chunk is in the shared tier, and not which pod has it; they have not been read, and never are",
	})
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// count is a number and a word.
func count(n int, word string) string {
	switch {
	case n == 1:
		return "1 " + word
	case strings.HasSuffix(word, "ry"): // entry, not key
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(word, "y"))
	}
	return fmt.Sprintf("%d %ss", n, word)
}
