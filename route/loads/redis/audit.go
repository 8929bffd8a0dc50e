package redis

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/route/loads"
)

// CheckForms returns loads.ErrMixed where processes of another version have requests of a model
// that run: each version counts its own alone. It changes nothing.
func (s *Store) CheckForms(ctx context.Context, model string) error {
	now := s.micros()
	if now == 0 {
		now = time.Now().UnixMicro()
	}
	for _, form := range otherForms {
		ids, err := s.c.Client.ZRangeArgs(ctx, goredis.ZRangeArgs{
			Key: s.key(model, "t"+form), ByScore: true, Start: strconv.FormatInt(now, 10), Stop: "+inf", Count: 1,
		}).Result()
		if err != nil {
			return fmt.Errorf("%w: %w", loads.ErrUnavailable, err)
		}
		if len(ids) > 0 {
			return fmt.Errorf("%w: requests of model %.80q are booked in the form of another one", loads.ErrMixed, model)
		}
	}
	return nil
}

// Audit implements loads.Store. It reads the reservations in pages, so a rank whose
// requests come faster than that is left for the next time.
func (s *Store) Audit(ctx context.Context, model string) (out []loads.Difference, err error) {
	if err := s.CheckForms(ctx, model); err != nil {
		return nil, err
	}
	left := map[string]bool(nil)
	for range auditTries {
		var found []loads.Difference
		if found, left, err = s.audit(ctx, model, left); err != nil {
			return nil, err
		}
		if out = append(out, found...); len(left) == 0 {
			break
		}
	}
	slices.SortFunc(out, func(x, y loads.Difference) int { return strings.Compare(field(x.RankRef), field(y.RankRef)) })
	return out, nil
}

// audit is one try for the loads that are named in only, nil for all. left are those that
// moved meanwhile.
func (s *Store) audit(ctx context.Context, model string, only map[string]bool) (out []loads.Difference, left map[string]bool, err error) {
	keys := s.keys(model)
	rows, err := s.c.Client.HGetAll(ctx, keys[0]).Result()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", loads.ErrUnavailable, err)
	}
	delete(rows, "@") // the version of the settings
	ids := map[string][]string{}
	for cursor := uint64(0); ; {
		var page []string
		if page, cursor, err = s.c.Client.HScan(ctx, keys[1], cursor, "", auditPage).Result(); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", loads.ErrUnavailable, err)
		}
		for i := 0; i+1 < len(page); i += 2 {
			for _, name := range reservedBy(page[i+1]) {
				ids[name] = append(ids[name], page[i])
			}
		}
		if cursor == 0 {
			break
		}
	}
	for name := range rows {
		if ids[name] == nil {
			ids[name] = []string{}
		}
	}
	left = map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(ids)) {
		if only != nil && !only[name] || len(ids[name]) > auditIDs {
			continue
		}
		life, booked := int64(0), int64(0)
		if row := rows[name]; len(row) == rowSize {
			life, booked = int64(number(row, 1)), int64(number(row, 2))
		}
		args := []any{s.now(), name, life, booked}
		slices.Sort(ids[name])
		for _, id := range slices.Compact(ids[name]) { // a scan may return one twice
			args = append(args, id)
		}
		reply, err := s.run(ctx, auditScript, keys, args)
		if err != nil {
			return nil, nil, err
		}
		r := reader{reply: reply}
		switch r.text() {
		case "moved":
			left[name] = true
		case "mended":
			at, err := parseField(name)
			if err != nil {
				continue
			}
			out = append(out, loads.Difference{RankRef: at, Load: readLoad(r.text()), Reserved: readLoad(r.text())})
		}
	}
	return out, left, nil
}

// reservedBy returns the names of the loads that a reservation is part of, of which a pair has two. They
// may be no names of ranks: each part is counted for itself.
func reservedBy(v string) []string {
	if len(v) < reservationSize {
		return nil
	}
	at, prefills, ok := cutNames(v[reservationSize:], number(v, 13), number(v, 14))
	switch {
	case !ok:
		return nil
	case prefills == "":
		return []string{at}
	}
	return []string{at, prefills}
}
