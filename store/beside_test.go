package store_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// TestServing finds the registration of a pod for a model.
func TestServing(t *testing.T) {
	two := must.Get(store.BesideName("a", "two"))(t)
	alone := must.Get(store.BesideName("b", "m/odd?model=x"))(t)
	r := store.NewRegistry(1, []store.Pod{
		{Name: "a", Model: "one", Aliases: []string{"uno"}}, {Name: two, Model: "two", Aliases: []string{"due", "uno"}},
		{Name: "a-other", Model: "two"}, {Name: "ab", Model: "two"}, {Name: alone, Model: "m/odd?model=x"},
	}, nil, nil, time.Time{})
	for _, c := range []struct{ pod, model, want string }{
		{"a", "one", "a"}, {"a", "two", two}, {"a", "three", "a"}, {"a", "uno", "a"}, {"a", "due", two},
		{"ab", "one", "ab"}, {"b", "m/odd?model=x", alone}, {"b", "one", ""}, {"c", "one", ""}, {two, "two", two}, {two, "one", two},
	} {
		got := ""
		if i, known := r.Serving(c.pod, c.model); known {
			got = r.Pods[i].Name
		}
		if got != c.want {
			t.Errorf("%s serves %s under %q, want %q", c.pod, c.model, got, c.want)
		}
	}
	var names []string
	for i := range r.Pods {
		names = append(names, r.PodName(i))
	}
	if want := []string{"a", "a-other", "a", "ab", "b"}; !slices.Equal(names, want) || !r.HasBeside() {
		t.Errorf("%q, want %q", names, want)
	}
	if plain := store.NewRegistry(1, []store.Pod{{Name: "a"}}, nil, nil, time.Time{}); plain.HasBeside() || plain.PodName(0) != "a" || plain.Beside("a") != nil {
		t.Error("one pod stands beside itself")
	}
}

// TestBesideName refuses names that cannot be told apart, or are too long.
func TestBesideName(t *testing.T) {
	name, err := store.BesideName("p", "m")
	if err != nil || store.PlainName(name) != "p" || store.PlainName("p") != "p" || store.PlainName("?model=m") != "?model=m" {
		t.Errorf("%q, %v", name, err)
	}
	for _, c := range [][2]string{{name, "n"}, {"p", strings.Repeat("m", store.MaxPodName-7)}} {
		if _, err := store.BesideName(c[0], c[1]); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%q beside: %v", c, err)
		}
	}
	if _, err := store.BesideName("p", strings.Repeat("m", store.MaxPodName-8)); err != nil {
		t.Error(err)
	}
}
