package defaults

import (
	"testing"
	"time"
)

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		is, want time.Duration
		says     string
	}{
		{0, time.Second, ""}, {time.Minute, time.Minute, ""}, {time.Millisecond, time.Millisecond, ""},
		{time.Hour, time.Hour, "Wait is 1h0m0s, it can be 1ms to 1m0s"}, {-1, -1, "Wait is -1ns, it can be 1ms to 1m0s"},
	} {
		is := c.is
		err := Within("Wait", &is, time.Second, time.Millisecond, time.Minute)
		if is != c.want || (err == nil) != (c.says == "") || err != nil && err.Error() != c.says {
			t.Errorf("%v becomes %v: %v; want %v, %q", c.is, is, err, c.want, c.says)
		}
	}
}

func TestAtLeast(t *testing.T) {
	none, few, many := 0, 3, 1<<40
	for _, n := range []*int{&none, &many} {
		if err := AtLeast("Keep", n, 10, 5); err != nil {
			t.Error(err)
		}
	}
	if err := AtLeast("Keep", &few, 10, 5); err == nil || err.Error() != "Keep is 3, the least is 5" || none != 10 {
		t.Errorf("%v, and none is %d", err, none)
	}
}

func TestFuncs(t *testing.T) {
	var told int
	o := struct {
		Name string
		A    func(n int)
		B    func(name string, err error)
	}{A: func(n int) { told = n }}
	Funcs(&o)
	o.B("x", nil)
	if o.A(7); told != 7 {
		t.Errorf("what was set is called with %d", told)
	}
}
