package server

import (
	"cmp"
	"context"
	"net/http"

	"github.com/kvatlas/kvatlas/server/answer"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/store"
)

// podAnswer is a registration as clients see it, by the plain name of its pod.
type podAnswer struct {
	store.Pod
	// Beside says that it is of a further model of the pod.
	Beside bool `json:"beside,omitempty"`
}

func answerOfPod(p *store.Pod) podAnswer {
	a := podAnswer{*p, false}
	if plain := store.PlainName(p.Name); plain != p.Name {
		a.Address = answer.AddressOf(p.Name, p.Address)
		a.Name, a.Beside = plain, true
	}
	return a
}

// registrations are those of a pod: the one of this name, and those beside it.
func registrations(reg *store.Registry, name string) (all []int) {
	if i, known := reg.PodIndex(name); known {
		all = append(all, i)
	}
	return append(all, reg.Beside(name)...)
}

// standBeside gives the registration of a further model of a pod its name and address.
func (s *Server) standBeside(ctx context.Context, q *podRequest) error {
	if !q.beside {
		if plain := store.PlainName(q.Name); plain != q.Name {
			return refusal.Invalid("name", "name is that of a further model of %s: give the pod's own name, and beside", refusal.Clip(plain))
		}
		return nil
	}
	if q.PartOf != nil {
		return refusal.Invalid("beside", "a cache worker, which is part_of a pod, stands beside no model")
	}
	name, err := store.BesideName(q.Name, q.Model)
	if err != nil {
		return refusal.Invalid("name", "%s", refusal.Plain(err, store.ErrInvalid))
	}
	reg, err := s.cfg.Index.Registry(ctx)
	if err != nil {
		return err
	}
	if i, known := reg.PodIndex(q.Name); known && reg.Pods[i].Model == q.Model {
		return &refusal.Error{Status: http.StatusConflict, Code: "model_conflict", Param: "model", Message: "the pod is registered for this model already, by its plain name: leave beside out to renew that"}
	}
	for _, i := range registrations(reg, q.Name) {
		if p := &reg.Pods[i]; q.Events != "" && q.Events == p.Events && p.Model != q.Model {
			return refusal.Invalid("events", "the pod's model %s is read there: events of one endpoint are of one model", refusal.Clip(p.Model))
		}
	}
	q.Address = cmp.Or(q.Address, q.Name)
	q.Name = name
	return nil
}

// joinBeside ends the registration beside a pod for the model that the pod itself is
// registered for by now.
func (s *Server) joinBeside(ctx context.Context, p *store.Pod) error {
	name, invalid := store.BesideName(p.Name, p.Model)
	if invalid != nil { // no model stands beside this one
		return nil //nolint:nilerr // the name is none that could be registered
	}
	reg, err := s.cfg.Index.Registry(ctx)
	if err != nil {
		return err
	}
	if _, known := reg.PodIndex(name); !known {
		return nil
	}
	_, err = s.cfg.Index.Retire(ctx, name)
	return err
}

// checkPod refuses the name of a further registration for another model than that.
func checkPod(param, pod, model string) error {
	plain := store.PlainName(pod)
	if plain == pod {
		return nil
	}
	if of, err := store.BesideName(plain, model); err == nil && of == pod {
		return nil
	}
	return refusal.Invalid(param, "pod is the name of %s for another model: give the pod's own name", refusal.Clip(plain))
}
