// Package must ends a test at the first step that fails and without which the rest of it
// says nothing. It stands where four lines would call Fatal with an error.
//
//	index := must.Get(redis.Open(config))(t)
//	must.OK(t, index.Ping(ctx))
package must

// TB is what it needs of a *testing.T, a *testing.B and a *rapid.T.
type TB interface {
	Helper()
	Fatal(args ...any)
}

// OK ends the test with the first of errs that is not nil. Like Fatal, it is for the test's
// own goroutine. Without a test, as in a TestMain, tb is nil, and OK panics instead.
//
// Helper walks the stack, so it is called for a failure only: loops of benchmarks call OK.
func OK(tb TB, errs ...error) {
	for _, err := range errs {
		switch {
		case err == nil:
		case tb == nil:
			panic(err)
		default:
			tb.Helper()
			tb.Fatal(err)
		}
	}
}

// Get takes the results of a call, and returns a func that returns the value. If there is an
// error, the func ends the test with it instead.
func Get[T any](v T, err error) func(TB) T {
	return func(tb TB) T {
		if err != nil && tb != nil {
			tb.Helper()
		}
		OK(tb, err)
		return v
	}
}

// Ender is what End needs of a *testing.T or a *testing.B.
type Ender interface {
	Helper()
	Cleanup(f func())
	Error(args ...any)
}

// End has end called when the test is over. Its error fails the test.
//
//	must.End(t, index.Close)
func End(tb Ender, end func() error) {
	tb.Helper()
	tb.Cleanup(func() {
		tb.Helper()
		if err := end(); err != nil {
			tb.Error(err)
		}
	})
}
