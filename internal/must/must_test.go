package must

import (
	"errors"
	"slices"
	"strconv"
	"testing"
)

// watched notes what a test is ended with.
type watched struct {
	testing.TB
	ended []any
}

func (w *watched) Helper()           {}
func (w *watched) Fatal(args ...any) { w.ended = append(w.ended, args...) }

func TestMust(t *testing.T) {
	w := &watched{}
	OK(w, nil)
	if got := Get(strconv.Atoi("7"))(w); got != 7 || w.ended != nil {
		t.Errorf("%d, ended with %v", got, w.ended)
	}
	err := errors.New("no")
	OK(w, err)
	Get(0, err)(w)
	if !slices.Equal(w.ended, []any{err, err}) {
		t.Errorf("ended with %v", w.ended)
	}
}
