package redisx

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// logs passes on what go-redis logs, a line of each kind once a minute. Its logger
// is one for the whole process and does not say which client speaks, so that every
// open connection hears it. Of dials that fail each connection's dialer tells instead.
var logs = logRouter{to: map[*Conn]func(string){}}

type logRouter struct {
	once sync.Once
	mu   sync.Mutex // protects to and said
	to   map[*Conn]func(string)
	said limiter
}

// add makes the connection hear. A nil log is deaf, and still keeps go-redis from
// writing to stderr.
func (l *logRouter) add(c *Conn, log func(string)) {
	l.once.Do(func() { redis.SetLogger(l) })
	if log == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to[c] = log
}

func (l *logRouter) remove(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.to, c)
}

// Printf implements go-redis's logger.
func (l *logRouter) Printf(_ context.Context, format string, v ...any) {
	for _, arg := range v {
		if err, ok := arg.(error); ok {
			if _, told := errors.AsType[dialError](err); told {
				return
			}
		}
	}
	msg := fmt.Sprintf(format, v...)
	l.mu.Lock()
	dropped, ok := l.said.pass(format, time.Now())
	if !ok {
		l.mu.Unlock()
		return
	}
	if dropped > 0 {
		msg += fmt.Sprintf(" (and %d more like it since the last)", dropped)
	}
	to := make([]func(string), 0, len(l.to))
	for _, f := range l.to {
		to = append(to, f)
	}
	l.mu.Unlock()
	for _, f := range to {
		f("redis client: " + msg)
	}
}
