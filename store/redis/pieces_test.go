package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

func TestPieces(t *testing.T) {
	alone := redistest.Start(t)
	for name, url := range map[string]string{"single": alone.URL(), "cluster": redistest.StartCluster(t, 3, false).URL()} {
		t.Run(name, func(t *testing.T) {
			x := open(t, Config{URL: url, NoSweep: true})
			p := x.Pieces(time.Hour)
			var names []string
			var values [][]byte
			for i := range 100 {
				names = append(names, fmt.Sprintf("%016d", i))
				values = append(values, []byte{byte(i), 0, 255})
			}
			eventually.NoError(t, "put", func() error { return p.PutPieces(t.Context(), names[:90], values[:90]) })
			must.OK(t, x.space.Client.RPush(t.Context(), p.key(names[95]), "x").Err())
			got, err := p.GetPieces(t.Context(), names)
			if err != nil || len(got) != 100 {
				t.Fatalf("%d values, %v", len(got), err)
			}
			for i, v := range got {
				if want := i < 90; want != (v != nil) || want && !bytes.Equal(v, values[i]) {
					t.Errorf("value %d is %q", i, v)
				}
			}
			if ttl := x.space.Client.PTTL(t.Context(), p.key(names[0])).Val(); ttl <= 0 || ttl > time.Hour {
				t.Errorf("a piece lives for %v", ttl)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := p.GetPieces(ctx, names); !errors.Is(err, context.Canceled) {
				t.Errorf("canceled: %v", err)
			}
			// They are no part of the index.
			if r, err := x.Registry(t.Context()); err != nil || len(r.Pods) != 0 {
				t.Errorf("%+v, %v", r, err)
			}
			_ = x.Close()
			if _, err := p.GetPieces(t.Context(), names); !errors.Is(err, store.ErrClosed) {
				t.Errorf("closed: %v", err)
			}
			if err := p.PutPieces(t.Context(), names, values); !errors.Is(err, store.ErrClosed) {
				t.Errorf("closed: %v", err)
			}
		})
	}
	gone := open(t, Config{URL: "redis://127.0.0.1:1", NoSweep: true}).Pieces(time.Hour)
	if _, err := gone.GetPieces(t.Context(), []string{"x"}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("no server: %v", err)
	}
	if err := gone.PutPieces(t.Context(), []string{"x"}, [][]byte{{1}}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("no server: %v", err)
	}
}
