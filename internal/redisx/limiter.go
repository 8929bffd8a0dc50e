package redisx

import "time"

// limiter lets a line of each kind pass once a minute. It is not safe for concurrent use.
type limiter struct {
	kinds map[string]*kind
}

// kind is what there is to know of lines of one kind.
type kind struct {
	next    time.Time
	dropped int
}

// pass reports whether a line of the kind may pass, and how many have not since the last
// that has. Kinds are few, such as the formats of messages in a program's source.
func (l *limiter) pass(name string, now time.Time) (dropped int, ok bool) {
	if l.kinds == nil {
		l.kinds = map[string]*kind{}
	}
	k := l.kinds[name]
	if k == nil {
		k = &kind{}
		l.kinds[name] = k
	}
	if now.Before(k.next) {
		k.dropped++
		return 0, false
	}
	dropped, k.dropped, k.next = k.dropped, 0, now.Add(dialAgain)
	return dropped, true
}
