package telemetry

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/fleet"
	"github.com/kvatlas/kvatlas/internal/must"
)

// TestCaseSmallOnesUnderAttackLabels reads more ranks than may have series. Those that have
// them keep them, whatever names come later, and their room is given on when they are gone.
func TestCaseSmallOnesUnderAttackLabels(t *testing.T) {
	var stats ingest.Stats
	m := NewMetrics()
	must.OK(t, m.Ingest(func() ingest.Stats { return stats }, func() fleet.Stats { return fleet.Stats{} }, func() int64 { return 0 }))
	read := func(names ...string) {
		stats.Ranks = nil
		for _, n := range names {
			stats.Ranks = append(stats.Ranks, ingest.RankStats{Pod: n})
		}
	}
	const each = 20 // series of a rank at least
	check := func(shown, hidden int, has, hasNot string) {
		t.Helper()
		families := must.Get(m.registry.Gather())(t)
		pods, series := map[string]bool{}, 0
		for _, f := range families {
			if f.GetName() == "kvatlas_ingest_hidden_ranks" && f.Metric[0].Gauge.GetValue() != float64(hidden) {
				t.Errorf("%v ranks are hidden, want %d", f.Metric[0].Gauge.GetValue(), hidden)
			}
			for _, s := range f.Metric {
				for _, l := range s.Label {
					if l.GetName() == "pod" {
						pods[l.GetValue()] = true
						series++
					}
				}
			}
		}
		if len(pods) != shown || series > shown*each*2 || !pods[has] || pods[hasNot] {
			t.Errorf("%d pods have %d series, want %d; %s %v, %s %v", len(pods), series, shown, has, pods[has], hasNot, pods[hasNot])
		}
	}
	var flood []string
	for i := range 3 * maxShownRanks {
		flood = append(flood, fmt.Sprintf("a%05d", i)) // before the engine's name in the order
	}
	read("engine")
	check(1, 0, "engine", "a00000")
	read(append(flood, "engine")...)
	check(maxShownRanks, 2*maxShownRanks+1, "engine", flood[maxShownRanks-1])
	read(flood...)
	check(maxShownRanks, 2*maxShownRanks, flood[maxShownRanks-1], "engine")
}
