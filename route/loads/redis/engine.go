package redis

import (
	"context"
	"math"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// millionths are those in which a share is written.
const millionths = 1e6

// PutEngine implements loads.Store.
func (s *Store) PutEngine(ctx context.Context, model, pod string, ranks []loads.Engine) error {
	if err := loads.CheckEngines(pod, ranks); err != nil {
		return err
	}
	args := make([]any, 0, 6+8*len(ranks))
	args = append(args, s.now(), pod, loads.EngineEvery.Microseconds(), loads.EngineStale.Microseconds(), loads.EngineDoubt.Microseconds(), loads.MaxEngines)
	for i := range ranks {
		e := &ranks[i]
		usage := int64(-1)
		if e.KVUsage >= 0 {
			usage = int64(math.Round(e.KVUsage * millionths))
		}
		args = append(args, field(store.RankRef{Pod: pod, Rank: e.Rank}), uint64(e.Generation), e.Running, e.Waiting, e.WaitingTokens, usage, e.KVTokens, e.Progress)
	}
	_, err := s.run(ctx, engineScript, s.keys(model), args)
	return err
}

// Turns implements loads.Store.
func (s *Store) Turns(ctx context.Context, model string, pods []string, most int) (out []string, err error) {
	if err := loads.CheckTurns(pods); err != nil {
		return nil, err
	}
	args := make([]any, 0, 4+len(pods))
	args = append(args, s.now(), most, loads.EngineEvery.Microseconds(), loads.EngineForget.Microseconds())
	for _, p := range pods {
		args = append(args, p)
	}
	reply, err := s.run(ctx, turnsScript, s.keys(model), args)
	if err != nil {
		return nil, err
	}
	r := reader{reply: reply}
	for r.more() {
		out = append(out, r.text())
	}
	return out, r.err
}

// Missed implements loads.Store.
func (s *Store) Missed(ctx context.Context, model, pod string) error {
	if err := loads.CheckTurns([]string{pod}); err != nil {
		return err
	}
	_, err := s.run(ctx, missedScript, s.keys(model), []any{s.now(), pod, loads.EngineEvery.Microseconds(), loads.MaxMissed.Microseconds()})
	return err
}

// engine reads what an engine has reported, and when; the time is 0 without a report.
func (r *reader) engine(rank int) (e loads.Engine, told int64) {
	f := strings.Fields(r.text())
	if len(f) != 16 {
		return e, 0
	}
	var n [16]int64
	for i := range f {
		v, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return e, 0
		}
		n[i] = v
	}
	e = loads.Engine{
		Rank: rank, At: n[1], Generation: store.Generation(n[2]), Running: n[3], Waiting: n[4], WaitingTokens: n[5], KVUsage: -1,
		KVTokens: n[7], Progress: n[8], Booked: loads.Load{Work: n[9], Prefill: n[10], Blocks: n[11], Requests: n[12]}, Gone: n[13],
	}
	if n[6] >= 0 {
		e.KVUsage = float64(n[6]) / millionths
	}
	return e, n[0]
}
