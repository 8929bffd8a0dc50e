package access

import (
	"net/netip"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// maxLimited is of how many callers a Limiter knows how often they ask: those that asked last.
const maxLimited = 16384

// Limiter bounds how often each caller asks: a caller with a name by that, others by their
// addresses. It is safe for concurrent use.
type Limiter struct {
	perSecond rate.Limit
	burst     int
	callers   *lru.Cache[string, *rate.Limiter]
}

// NewLimiter allows each caller perSecond requests a second, and as many at once.
func NewLimiter(perSecond int) *Limiter {
	callers, err := lru.New[string, *rate.Limiter](maxLimited)
	if err != nil {
		panic(err) // only for a size below one
	}
	return &Limiter{perSecond: rate.Limit(perSecond), burst: perSecond, callers: callers}
}

// Allow reports whether the caller may ask now, and if not, when it may again. The other end
// of its connection is remote; addresses of one IPv6 network (/64) are one caller.
func (l *Limiter) Allow(caller Caller, remote string, now time.Time) (wait time.Duration, ok bool) {
	key := "name " + caller.Name
	if caller.Name == "" {
		key = clientOf(remote)
	}
	own, known := l.callers.Get(key)
	if !known {
		own = rate.NewLimiter(l.perSecond, l.burst)
		if earlier, found, _ := l.callers.PeekOrAdd(key, own); found {
			own = earlier
		}
	}
	r := own.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
		return wait, false
	}
	return 0, true
}

// clientOf is the part of an address that one client has for itself.
func clientOf(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if net, err := ip.Prefix(64); err == nil {
			return net.String()
		}
	}
	return ip.String()
}
