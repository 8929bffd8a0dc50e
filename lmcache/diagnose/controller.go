package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// judgeController holds the cache workers that are registered against what is asked for.
func (s *Diagnosis) judgeController(add func(check.Finding)) {
	type instance struct {
		part store.PartOf
		name string
	}
	seen := map[instance]map[int]bool{}
	pods := map[string]bool{}
	for i := range s.c.Pods {
		if p := &s.c.Pods[i]; p.PartOf == nil {
			pods[p.Name] = true
		}
	}
	var unasked, orphans []string
	workers := 0
	for i := range s.c.Pods {
		p := &s.c.Pods[i]
		if p.PartOf == nil {
			continue
		}
		workers++
		in := instance{*p.PartOf, strings.TrimSuffix(p.Name, fmt.Sprint(p.PartOf.Worker))}
		in.part.Worker = 0
		if seen[in] == nil {
			seen[in] = map[int]bool{}
		}
		seen[in][p.PartOf.Worker] = true
		if len(s.c.Profiles[p.Model]) == 0 {
			unasked = append(unasked, fmt.Sprintf("%s (model %q)", p.Name, p.Model))
		}
		if !pods[p.PartOf.Pod] {
			orphans = append(orphans, fmt.Sprintf("%s (of %s)", p.Name, p.PartOf.Pod))
		}
	}
	if workers == 0 {
		return
	}
	add(check.Finding{What: "lmcache controller", Found: fmt.Sprintf("%s of %s registered", count(workers, "worker"), count(len(seen), "instance"))})
	warn := func(list []string, found, means, do string) {
		if len(list) > 0 {
			add(check.Finding{
				Level: check.Warn, What: "lmcache controller", Found: fmt.Sprintf(found, len(list), strings.Join(list[:min(shown, len(list))], ", ")), Means: means, Do: do,
			})
		}
	}
	warn(unasked, "%d workers are of models without a profile: %s", "what they hold is never asked for", "add a profile of LMCache for the model")
	warn(orphans, "%d workers are part of pods that are not registered: %s", "what they hold counts for no pod", "register the pods")
	shared, apart := s.sharedIDs()
	warn(shared, "%d ids of workers are used by several processes: %s", "nothing says which of them an operation is of: what they hold counts for no pod", "give each engine an lmcache_instance_id of its own")
	warn(apart, "%d ids of workers are used at several addresses: %s", "each counts for the pod at its address; LMCache's own controller would take them for one", "give each engine an lmcache_instance_id of its own")
	var halves []string
	for in, has := range seen {
		if len(has) < in.part.Workers {
			halves = append(halves, fmt.Sprintf("%s* (%d of %d)", in.name, len(has), in.part.Workers))
		}
	}
	slices.Sort(halves)
	warn(halves, "%d instances lack workers: %s", "a chunk counts when all workers have it, so that nothing of theirs does", "let all workers of a pod reach the controller")
}

// sharedIDs returns the ids of workers that several processes use, with their processes. These are first
// those that cannot be told apart, then those that can, by their addresses.
func (s *Diagnosis) sharedIDs() (shared, apart []string) {
	type id struct {
		instance string
		worker   int
	}
	at := map[id][]string{}
	for i := range s.c.Pods {
		p := &s.c.Pods[i]
		if p.PartOf == nil || p.Labels[feed.LabelInstance] == "" {
			continue
		}
		in := id{p.Labels[feed.LabelInstance], p.PartOf.Worker}
		if by := p.Labels[feed.LabelShared]; by != "" {
			shared = append(shared, fmt.Sprintf("%s/%d by %s", in.instance, in.worker, by))
			continue
		}
		if ip := p.Labels[feed.LabelIP]; ip != "" && !slices.Contains(at[in], ip) {
			at[in] = append(at[in], ip)
		}
	}
	for in, ips := range at {
		if len(ips) > 1 {
			slices.Sort(ips)
			apart = append(apart, fmt.Sprintf("%s/%d at %s", in.instance, in.worker, strings.Join(ips, " and ")))
		}
	}
	slices.Sort(shared)
	slices.Sort(apart)
	return shared, apart
}
