package redis

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/internal/redisx"
)

// readOnlyFor is for how long a process whose user may not write leaves to
// others what it would do unasked. Then it tries again, since the user's rights
// may have been changed.
const readOnlyFor = 10 * time.Minute

// readOnly remembers that this process may not write. What is asked of it is
// tried all the same. What it does of its own accord, the retiring of late pods
// and sweeping, is left to others.
type readOnly struct {
	mu    sync.Mutex // protects until and told
	until time.Time
	told  bool
}

// now reports whether there is no point in trying.
func (r *readOnly) now() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.until)
}

// notice takes in how an unasked write went. Result refused is true when the
// user may not make it; news is true when it was otherwise before.
func (r *readOnly) notice(err error) (refused, news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		news = r.told
		r.until, r.told = time.Time{}, false
		return false, news
	}
	if !redisx.RefusedCommand(err) {
		return false, false
	}
	news = !r.told
	r.until, r.told = time.Now().Add(readOnlyFor), true
	return true, news
}

// unasked makes a write that no caller has asked for, and says what came of it.
func (x *Index) unasked(what string, write func() error) error {
	if x.readOnly.now() {
		return nil
	}
	err := write()
	refused, news := x.readOnly.notice(err)
	switch {
	case news && err == nil:
		x.space.Log("this process may write again: it retires late pods and sweeps")
	case news:
		x.space.Log(fmt.Sprintf("this process may only read: late pods are dead to it, and their retirement and sweeping are left to processes that may write (%s: %v)", what, err))
		return nil
	case refused:
		return nil
	}
	return err
}

// retireNoticed retires pods whose leases a load has found to have run out.
func (x *Index) retireNoticed(ctx context.Context, late []string) {
	if len(late) == 0 {
		return
	}
	if err := x.unasked("retiring pods", func() error { return x.retireLate(redisx.Unasked(ctx), late) }); err != nil {
		x.space.Log(fmt.Sprintf("retiring %d pods whose leases have run out: %v", len(late), err))
	}
}
