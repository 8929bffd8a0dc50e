package answer

import (
	"bytes"
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/store"
)

// TestAppendRouted holds the answers that are appended by hand to what encoding/json makes of them.
func TestAppendRouted(t *testing.T) {
	place := rapid.Custom(func(t *rapid.T) store.RankRef {
		return store.RankRef{Pod: rapid.StringMatching(`[a-z0-9.:"\\<é]{1,12}`).Draw(t, "pod"), Rank: rapid.IntRange(0, 9).Draw(t, "rank")}
	})
	tokens := rapid.IntRange(0, 1<<20)
	held := rapid.Custom(func(t *rapid.T) (out [store.NumTiers]int) {
		for i := range out {
			out[i] = rapid.OneOf(rapid.Just(0), tokens).Draw(t, "held")
		}
		return out
	})
	rapid.Check(t, func(t *rapid.T) {
		text := func(what string) string { return rapid.StringN(0, 8, -1).Draw(t, what) }
		seldom := func(what string) bool { return rapid.IntRange(0, 9).Draw(t, what) == 0 }
		q := &request.Route{}
		d := &route.Decision{
			RankRef: place.Draw(t, "place"), Address: text("address"), Fallbacks: rapid.SliceOfN(place, 0, 8).Draw(t, "fallbacks"), Policy: text("policy"),
			Held: held.Draw(t, "tiers"), Predicted: rapid.IntRange(0, 3).Draw(t, "predicted"), Best: tokens.Draw(t, "best"), Reservation: text("id"),
			Again: rapid.Bool().Draw(t, "again"), Local: seldom("local"), Tokens: tokens.Draw(t, "tokens"), Estimated: rapid.Bool().Draw(t, "estimated"),
		}
		if seldom("resolved") {
			q.Resolved, q.Model, q.LoRA = true, text("model"), text("lora")
		}
		if seldom("costs") {
			q.Explain = true
			d.Costs = []route.PlaceCost{{RankRef: place.Draw(t, "of"), Total: 1.5e-9, Terms: []route.Term{{Name: text("term"), Value: 1e22}}, Load: loads.Load{Requests: 3}, Held: held.Draw(t, "its")}}
		}
		if seldom("pair") {
			d.Prefill = &route.Half{RankRef: place.Draw(t, "prefill"), Held: held.Draw(t, "its")}
		} else if seldom("local prefill") {
			d.Prefills = route.Local(text("why"))
		}
		if seldom("pull") {
			d.Pull = &route.Source{RankRef: place.Draw(t, "source"), Tokens: 3, MS: 0.1}
		}
		if seldom("session") {
			was := place.Draw(t, "was")
			d.Session = &route.Session{State: route.SessionKept, Was: &was}
		}
		a := Route(q, d)
		got := must.Get(a.Append([]byte("before")))(t)
		var want bytes.Buffer
		want.WriteString("before")
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		must.OK(t, enc.Encode(a))
		if bytes.Equal(got, want.Bytes()) {
			return
		}
		// Characters that need no escape may have one there.
		var x, y any
		if json.Unmarshal(got[len("before"):], &x) != nil || json.Unmarshal(want.Bytes()[len("before"):], &y) != nil {
			t.Fatalf("%s\n%s", got, want.Bytes())
		}
		a1, _ := json.Marshal(x)
		b1, _ := json.Marshal(y)
		if !bytes.Equal(a1, b1) || bytes.Count(got, []byte("\n")) != 1 {
			t.Fatalf("%s\n%s", got, want.Bytes())
		}
	})
}
