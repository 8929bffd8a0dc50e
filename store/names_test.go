package store

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestRegistryReadsNames(t *testing.T) {
	r := NewRegistry(1, []Pod{
		{Name: "a", Model: "base", Aliases: []string{"nick", "both", "split"}, Adapters: []string{"sql"}},
		{Name: "b", Model: "base", Aliases: []string{"nick"}, Adapters: []string{"sql", "base2", "tie"}},
		{Name: "c", Model: "base2", Aliases: []string{"split", "tie"}, Adapters: []string{"both"}},
		{Name: "d", Model: "base2", Aliases: []string{"split"}},
		{Name: "w", Model: "worker", Aliases: []string{"nick", "hidden"}, PartOf: &PartOf{Pod: "a", Workers: 1}},
		{Name: "guest", Aliases: []string{"nobody"}},
	}, nil, nil, time.Time{})
	for name, want := range map[string]Reading{
		"base": {"base", ""}, "nick": {"base", ""}, "sql": {"base", "sql"},
		"base2": {"base2", ""},                        // its own pods know best
		"split": {"base2", ""},                        // two of three
		"both":  {"base", ""}, "tie": {"base", "tie"}, // equally many: the first model
		"worker": {}, "hidden": {}, "nobody": {}, "": {}, "other": {},
	} {
		if got, known := r.Read(name); got != want || known != (want != Reading{}) {
			t.Errorf("%q is %+v, %v; want %+v", name, got, known, want)
		}
	}
	if _, known := (&Registry{}).Read("m"); known {
		t.Error("an empty registry knows a name")
	}
}

func TestNamesOfPods(t *testing.T) {
	var many []string
	for i := range MaxNames {
		many = append(many, fmt.Sprint(i))
	}
	for name, c := range map[string]struct {
		pod Pod
		ok  bool
	}{
		"as many as can be": {Pod{Aliases: many}, true},
		"one more":          {Pod{Aliases: many, Adapters: []string{"a"}}, false},
		"empty":             {Pod{Adapters: []string{""}}, false},
		"control":           {Pod{Aliases: []string{"a\n"}}, false},
		"both":              {Pod{Aliases: []string{"x"}, Adapters: []string{"x"}}, false},
	} {
		c.pod.Name, c.pod.Model = "p", "m"
		if err := c.pod.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
