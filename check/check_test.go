package check

import (
	"encoding/json"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestLevels(t *testing.T) {
	for l, want := range map[Level]string{OK: "ok", Info: "info", Warn: "warn", Fail: "fail", 9: "Level(9)"} {
		if l.String() != want {
			t.Errorf("got %q, want %q", l, want)
		}
	}
	in := []Finding{{Level: Info, What: "a", Found: "b"}, {Level: Fail, What: "c", Where: "d", Found: "e", Means: "f", Do: "g"}, {Level: Warn}}
	b := must.Get(json.Marshal(in))(t)
	var out []Finding
	if err := json.Unmarshal(b, &out); err != nil || len(out) != 3 || out[1] != in[1] {
		t.Errorf("%s reads as %+v, %v", b, out, err)
	}
	if err := json.Unmarshal([]byte(`{"level":"bad"}`), &out[0]); err == nil {
		t.Error("an unknown level is read")
	}
	if Worst(in) != Fail || Worst(in[:1]) != Info || Worst(nil) != OK {
		t.Errorf("the worst are %v, %v, %v", Worst(in), Worst(in[:1]), Worst(nil))
	}
}
