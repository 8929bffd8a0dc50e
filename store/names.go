package store

import (
	"cmp"
	"fmt"
	"slices"
)

// MaxNames is how many aliases and adapters a pod can have together.
const MaxNames = 1024

// Reading is what the name of a model in a request means.
type Reading struct {
	// Model is the model that pods are registered for, under which blocks are indexed.
	Model string
	// LoRA is the adapter; "" means none.
	LoRA string
}

// validateNames checks what a pod's engine has names for.
func (p *Pod) validateNames() error {
	if n := len(p.Aliases) + len(p.Adapters); n > MaxNames {
		return fmt.Errorf("%w: %d aliases and adapters, the limit is %d", ErrInvalid, n, MaxNames)
	}
	for _, list := range []struct {
		what  string
		names []string
	}{{"aliases", p.Aliases}, {"adapters", p.Adapters}} {
		for _, name := range list.names {
			if err := checkName("a name of "+list.what, name, MaxModelName); err != nil {
				return err
			}
		}
	}
	for _, name := range p.Adapters {
		if slices.Contains(p.Aliases, name) {
			return fmt.Errorf("%w: %s is among aliases and adapters", ErrInvalid, name)
		}
	}
	return nil
}

// Read returns what a model's name in a request means by the registrations of the pods that
// serve requests. It reports whether any of them has the name. A name that a pod is
// registered for is that model. Else it is what most pods say, and of two that equally many
// say the first by name. What the others hold under their reading is not found by this
// name.
func (r *Registry) Read(name string) (reading Reading, known bool) {
	if r.readings == nil {
		return Reading{}, false
	}
	reading, known = r.readings()[name]
	return reading, known
}

// readNames makes the readings of all names.
func readNames(pods []Pod) map[string]Reading {
	type said struct {
		name string
		Reading
	}
	out, votes := map[string]Reading{}, map[said]int{}
	for i := range pods {
		p := &pods[i]
		if p.PartOf != nil || p.Model == "" {
			continue
		}
		out[p.Model] = Reading{Model: p.Model}
		for _, name := range p.Aliases {
			votes[said{name, Reading{Model: p.Model}}]++
		}
		for _, name := range p.Adapters {
			votes[said{name, Reading{Model: p.Model, LoRA: name}}]++
		}
	}
	best := map[string]said{}
	for s, n := range votes {
		if is, exact := out[s.name]; exact && is.Model == s.name {
			continue
		}
		b, rival := best[s.name]
		if !rival || cmp.Or(cmp.Compare(votes[b], n), cmp.Compare(s.Model, b.Model), cmp.Compare(s.LoRA, b.LoRA)) < 0 {
			best[s.name] = s
		}
	}
	for name, s := range best {
		out[name] = s.Reading
	}
	return out
}
