package redis

import (
	"context"
	_ "embed"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/route/notes"
)

var (
	//go:embed lua/demand.lua
	demandLua string

	demandScript = goredis.NewScript(demandLua)
)

// PutDemand implements notes.Store.
func (s *Store) PutDemand(ctx context.Context, model, process string, counted []byte) error {
	if err := notes.CheckDemand(process, counted); err != nil {
		return err
	}
	_, err := s.run(ctx, demandScript, []string{s.name(model, "h")}, notes.DemandForget.Microseconds(), process, counted, notes.MaxTellers)
	return err
}

// Demand implements notes.Store.
func (s *Store) Demand(ctx context.Context, model string) (map[string][]byte, error) {
	reply, err := s.run(ctx, demandScript, []string{s.name(model, "h")}, notes.DemandForget.Microseconds())
	if err != nil {
		return nil, err
	}
	out := make(map[string][]byte, len(reply)/2)
	for i := 0; i+1 < len(reply); i += 2 {
		out[reply[i]] = []byte(reply[i+1])
	}
	return out, nil
}
