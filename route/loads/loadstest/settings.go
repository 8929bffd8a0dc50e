package loadstest

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
)

func models(t *testing.T, open Open) {
	s := open(t, NewClock())
	a := pod("a", 0)
	book(t, s, call("r", nil, a))
	c := call("r", nil, a)
	c.Model = "n"
	equal(t, false, book(t, s, c).Again)
	p := must.Get(s.Loads(ctx, "n"))(t)
	equal(t, 1, p.Loads[a].Requests)
	end(t, s, "r")
	p = must.Get(s.Loads(ctx, "n"))(t)
	equal(t, 1, p.Loads[a].Requests)
	p = must.Get(s.Loads(ctx, "nobody's"))(t)
	equal(t, 0, len(p.Loads))
	equal(t, true, p.Now != 0)
}

func settings(t *testing.T, open Open) {
	s := open(t, NewClock())
	a := pod("a", 0)
	p := must.Get(s.Loads(ctx, "m"))(t)
	equal(t, "0 ", fmt.Sprintf("%d %s", p.Version, p.Settings))
	book(t, s, call("r", nil, a))
	for i := range 2 {
		must.OK(t, s.PutSettings(ctx, "m", fmt.Appendf(nil, "zero \x00 %d", i)))
		p = must.Get(s.Loads(ctx, "m"))(t)
		equal(t, fmt.Sprintf("%d zero \x00 %d", i+1, i), fmt.Sprintf("%d %s", p.Version, p.Settings))
	}
	c := call("q", nil, a)
	c.Settings = 1
	_, err := s.Book(ctx, c)
	equal(t, true, errors.Is(err, loads.ErrSettings))
	c.Settings = 2
	book(t, s, c)
	c = call("q", nil, a)
	equal(t, true, book(t, s, c).Again, "what is booked is booked, whatever the settings")
	equal(t, 2, load(t, s, a).Requests)
	equal(t, true, errors.Is(s.PutSettings(ctx, "m", make([]byte, loads.MaxSettings+1)), loads.ErrInvalid))
	p = must.Get(s.Loads(ctx, "n"))(t)
	equal(t, 0, p.Version)
}

func refuses(t *testing.T, open Open) {
	s := open(t, NewClock())
	for name, spoil := range map[string]func(*loads.Call){
		"no id":         func(c *loads.Call) { c.ID = "" },
		"a long id":     func(c *loads.Call) { c.ID = string(make([]byte, 200)) },
		"a control":     func(c *loads.Call) { c.ID = "a\nb" },
		"no candidate":  func(c *loads.Call) { c.Candidates = nil },
		"many":          func(c *loads.Call) { c.Candidates = make([]loads.Candidate, 65) },
		"no lease":      func(c *loads.Call) { c.Lease = 0 },
		"a long lease":  func(c *loads.Call) { c.Lease = 25 * time.Hour },
		"tokens":        func(c *loads.Call) { c.Tokens = -1 },
		"blocks":        func(c *loads.Call) { c.Keys = chain(1, 1, 0, 100) },
		"no block size": func(c *loads.Call) { c.BlockSize = 0 },
		"NaN":           func(c *loads.Call) { c.Candidates[0].Base = math.NaN() },
		"infinite":      func(c *loads.Call) { c.Weights.Wait = math.Inf(1) },
		"draw":          func(c *loads.Call) { c.Draw = 1 },
		"temperature":   func(c *loads.Call) { c.Temperature = math.NaN() },
		"no pod":        func(c *loads.Call) { c.Candidates[0].Pod = "" },
		"a rank":        func(c *loads.Call) { c.Candidates[0].Rank = -1 },
		"work":          func(c *loads.Call) { c.Candidates[0].Work = -1 },
		"uncached":      func(c *loads.Call) { c.Candidates[0].Uncached = -1 },
		"expected":      func(c *loads.Call) { c.Expected = -1 },
	} {
		c := call("r", nil, pod("a", 0))
		spoil(c)
		_, err := s.Book(ctx, c)
		equal(t, true, errors.Is(err, loads.ErrInvalid), name)
	}
	_, err := s.Output(ctx, "m", "r", -1)
	equal(t, true, errors.Is(err, loads.ErrInvalid))
	_, err = s.End(ctx, "m", "")
	equal(t, true, errors.Is(err, loads.ErrInvalid))
	p := must.Get(s.Loads(ctx, "m"))(t)
	equal(t, 0, len(p.Loads))
}
