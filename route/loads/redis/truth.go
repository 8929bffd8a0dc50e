package redis

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

var (
	//go:embed lua/truth.lua
	truthLua string
	//go:embed lua/claim.lua
	claimLua string

	truthScript = goredis.NewScript(truthLua)
	claimScript = goredis.NewScript(claimLua)
)

// key is the name of a model's key of a kind, in the slot of its loads.
func (s *Store) key(model, kind string) string {
	return keyspace.ModelKeys(s.c.Prefix, model)(kind)
}

// AddTruth implements loads.Store.
func (s *Store) AddTruth(ctx context.Context, model string, list []loads.Truth) error {
	if err := loads.CheckTruths(list); err != nil || len(list) == 0 {
		return err
	}
	args := make([]any, 0, 4+5*len(list))
	args = append(args, s.micros(), loads.TruthWindow, loads.MaxEngines, loads.TruthForget.Microseconds())
	for i := range list {
		t := &list[i]
		args = append(args, field(t.RankRef), uint64(t.Generation), t.Requests, t.Predicted, t.Delivered)
	}
	_, err := s.run(ctx, truthScript, []string{s.key(model, "o")}, args)
	return err
}

// Truths implements loads.Store.
func (s *Store) Truths(ctx context.Context, model string) (map[store.RankRef]loads.Truth, error) {
	ctx, cancel := context.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	rows, err := s.c.Client.HGetAll(ctx, s.key(model, "o")).Result()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", loads.ErrUnavailable, err)
	}
	now := s.micros()
	if now == 0 {
		now = time.Now().UnixMicro()
	}
	out := map[store.RankRef]loads.Truth{}
	for name, v := range rows {
		at, err := parseField(name)
		f := strings.Fields(v)
		if err != nil || len(f) != 5 {
			continue // what cannot be read says nothing
		}
		var n [5]int64
		for i := range f {
			if n[i], err = strconv.ParseInt(f[i], 10, 64); err != nil {
				break
			}
		}
		if err != nil || now-n[0] > loads.TruthForget.Microseconds() {
			continue
		}
		out[at] = loads.Truth{RankRef: at, Generation: store.Generation(n[1]), Requests: n[2], Predicted: n[3], Delivered: n[4]}
	}
	return out, nil
}

// Claim implements loads.Store.
func (s *Store) Claim(ctx context.Context, model, what string, until time.Duration) (bool, error) {
	if err := loads.CheckClaim(what, until); err != nil {
		return false, err
	}
	reply, err := s.run(ctx, claimScript, []string{s.key(model, "a") + ":" + what}, []any{s.micros(), until.Microseconds()})
	if err != nil {
		return false, err
	}
	r := reader{reply: reply}
	got := r.int() == 1
	return got, r.err
}
