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

func (w *watched) Cleanup(f func())  { f() }
func (w *watched) Error(args ...any) { w.ended = append(w.ended, args...) }
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
	End(w, func() error { return nil })
	End(w, func() error { return err })
	if !slices.Equal(w.ended, []any{err, err, err}) {
		t.Errorf("ended with %v", w.ended)
	}
}

// Where there is no test a step that fails ends the program, and says why.
func TestWithoutTest(t *testing.T) {
	OK(nil, nil)
	if got := Get(strconv.Atoi("7"))(nil); got != 7 {
		t.Error(got)
	}
	err := errors.New("no")
	defer func() {
		if got, _ := recover().(error); !errors.Is(got, err) {
			t.Errorf("it panics with %v", got)
		}
	}()
	Get(0, err)(nil)
}
