package redistest

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/must"
)

// TestProxy holds up a command until its client has given it up: it is done all the same.
func TestProxy(t *testing.T) {
	s := Start(t)
	p := StartProxy(t, s.Addr)
	c := redis.NewClient(&redis.Options{Addr: p.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	plain := s.Client()
	ctx := t.Context()
	must.OK(t, c.Set(ctx, "k", "1", 0).Err())
	p.Hold()
	sent := make(chan error)
	go func() { sent <- c.Incr(ctx, "k").Err() }()
	for len(p.Held()) == 0 {
		select {
		case err := <-sent:
			t.Fatal("a command that is held up has been answered", err)
		default:
		}
	}
	if got := plain.Get(ctx, "k").Val(); got != "1" {
		t.Errorf("a command that is held up has been done: %s", got)
	}
	_ = c.Close()
	if err := <-sent; err == nil {
		t.Error("a command that is held up has been answered")
	}
	p.Release()
	if got := plain.Get(ctx, "k").Val(); got != "2" {
		t.Errorf("k is %s after the release, want 2", got)
	}
}
