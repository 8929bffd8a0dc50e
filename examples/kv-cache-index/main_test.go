package main

import (
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestRun(t *testing.T) {
	var out strings.Builder
	must.OK(t, run(t.Context(), &out))
	const want = `both engines have worked on this prompt:
  10.0.0.1:8000  score 3.0  48 of 70 tokens  [{gpu 3}]
  10.0.0.2:8000  score 2.0  32 of 70 tokens  [{gpu 2}]
  best: 10.0.0.1:8000
the first has evicted its second block:
  10.0.0.2:8000  score 2.0  32 of 70 tokens  [{gpu 2}]
  10.0.0.1:8000  score 1.0  16 of 70 tokens  [{gpu 1}]
  best: 10.0.0.2:8000
the second is gone:
  10.0.0.1:8000  score 1.0  16 of 70 tokens  [{gpu 1}]
  best: 10.0.0.1:8000
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}
