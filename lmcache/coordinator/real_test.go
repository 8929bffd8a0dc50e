package coordinator

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/lmcachetest"
)

// LMCache 0.5.6's own subscriber and HTTP sink: what its server holds is what the
// directory tells, through losses and a restart.
func TestRealServer056(t *testing.T) {
	s := newStage(t, "mp")
	// It sends no heartbeats here.
	c := s.coordinator(func(c *Config) { c.Lease = time.Hour })
	ts := httptest.NewServer(c)
	defer ts.Close()
	const all = "abcdefghijklmnopqrstuvwxyz"
	start := func(incarnation int) *lmcachetest.Client {
		return lmcachetest.Start(t, lmcachetest.Options{Kind: "mp-0.5.6", Instance: "mp", Model: model, Coordinator: ts.URL, Incarnation: incarnation})
	}
	some := func(rng *rand.Rand) (keys []any) {
		for range 1 + rng.IntN(9) {
			keys = append(keys, strings.Repeat(fmt.Sprintf("%02x", all[rng.IntN(len(all))]), 32))
		}
		return keys
	}
	equal := func(held []json.RawMessage) {
		t.Helper()
		var want []string
		for _, ch := range all {
			letter := "-"
			for _, k := range held {
				if strings.Contains(string(k), strings.Repeat(fmt.Sprintf("%02x", ch), 32)) {
					letter = "d"
				}
			}
			want = append(want, letter)
		}
		eventually.NoError(t, "the directory", func() error {
			if got := holds(t, c, all); got != strings.Join(want, " ") {
				return fmt.Errorf("it has\n%s, want\n%s", got, strings.Join(want, " "))
			}
			return nil
		})
	}
	rng := rand.New(rand.NewPCG(5, 6))
	r := start(100)
	for range 10 {
		r.Do("admit", some(rng)...)
		equal(r.Do("evict", some(rng)...))
	}
	if st := c.Stats(); st.Gaps+st.Refused+st.Skipped+st.Foreign != 0 || st.Applied < 10 {
		t.Errorf("%+v", st)
	}
	// What it drops leaves a hole, after which there is what it stores from then on.
	r.Do("lose", some(rng)...)
	key := strings.Repeat("7a", 32)
	r.Do("admit", key)
	equal([]json.RawMessage{json.RawMessage(key)})
	r.Kill()
	r = start(101)
	equal(r.Do("admit", strings.Repeat("61", 32)))
	r.Do("share", strings.Repeat("62", 32))
	eventually.NoError(t, "the directory", func() error {
		if got := holds(t, c, "ab"); got != "d s" {
			return fmt.Errorf("it has %s", got)
		}
		return nil
	})
}
