package store

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// besideMark stands between a pod's name and the model in the name of a further
// registration of it.
const besideMark = "?model="

// BesideName is the name of the registration of a further model of a pod, which stands
// beside the one under the pod's plain name. An index takes both for pods of their own:
// lives, streams, leases and loads of the two are apart. Use PlainName to show it.
// It is ErrInvalid where it would be too long, or pod is such a name already.
func BesideName(pod, model string) (string, error) {
	if strings.Contains(pod, besideMark) {
		return "", fmt.Errorf("%w: the pod name contains %q, so that no model can stand beside its own", ErrInvalid, besideMark)
	}
	name := pod + besideMark + model
	if len(name) > MaxPodName {
		return "", fmt.Errorf("%w: pod name and model have %d bytes, with a model beside another the limit is %d", ErrInvalid,
			len(pod)+len(model), MaxPodName-len(besideMark))
	}
	return name, nil
}

// PlainName is the name of the pod that a registration is of: what stands before the model
// in a BesideName, and any other name itself.
func PlainName(name string) string {
	plain, _, _ := strings.Cut(name, besideMark)
	if plain == "" {
		return name
	}
	return plain
}

// Serving finds the registration of a pod for a model. It is the one for that model, else
// the one that has its name among its aliases, else the one under the pod's plain name.
func (r *Registry) Serving(pod, model string) (i int, known bool) {
	plain, known := r.PodIndex(pod)
	if known && r.Pods[plain].Model == model {
		return plain, true
	}
	others := r.Beside(pod)
	for _, i := range others {
		if r.Pods[i].Model == model {
			return i, true
		}
	}
	if known {
		others = append([]int{plain}, others...)
	}
	for _, i := range others {
		if slices.Contains(r.Pods[i].Aliases, model) {
			return i, true
		}
	}
	return plain, known
}

// Beside returns the registrations of further models of a pod, by model.
func (r *Registry) Beside(pod string) (found []int) {
	prefix := pod + besideMark
	first := sort.Search(len(r.Pods), func(i int) bool { return r.Pods[i].Name >= prefix })
	for i := first; i < len(r.Pods) && strings.HasPrefix(r.Pods[i].Name, prefix); i++ {
		found = append(found, i)
	}
	return found
}

// findBeside notes the plain names of registrations of further models.
func (r *Registry) findBeside() {
	for i := range r.Pods {
		plain := PlainName(r.Pods[i].Name)
		if plain == r.Pods[i].Name {
			continue
		}
		if r.plain == nil {
			r.plain = map[int]string{}
		}
		r.plain[i] = plain
	}
}

// HasBeside reports whether any registration is of a further model of a pod, so that two
// can have one plain name.
func (r *Registry) HasBeside() bool { return r.plain != nil }

// PodName is the plain name of the pod that the i-th registration is of.
func (r *Registry) PodName(i int) string {
	if name, beside := r.plain[i]; beside {
		return name
	}
	return r.Pods[i].Name
}
