package servercheck

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/redisx"
)

// The bounds of a sample. So many keys of the index are wanted, for which so
// many steps of SCAN look at so many keys each. The memory of so many blocks is
// asked for.
const (
	sampleKeys    = 1000
	sampleSteps   = 64
	sampleStep    = 500
	sampleMemory  = 50
	sampleForeign = 5
)

// sample is what some of the keys under the prefix are.
type sample struct {
	// refused is true when the user may not look at keys.
	refused bool
	// all is true when these are all keys that there are.
	all bool
	// blocks and others are how many keys there were of either kind.
	blocks, others int
	// foreign are some block names whose keys are no strings, or hold what is no
	// list of holders; strangers are how many there were.
	foreign   []string
	strangers int
	// texts are how many blocks name pods by text.
	texts int
	// bytes is what the measured blocks take together.
	measured int
	bytes    int64
}

// takeSample looks at some keys of a server.
func takeSample(ctx context.Context, node *redis.Client, x Index) (sample, error) {
	var s sample
	var blocks []string
	seen := map[string]bool{}
	cursor := uint64(0)
	for range sampleSteps {
		names, next, err := node.Scan(ctx, cursor, x.Prefix+"{*", sampleStep).Result()
		if redisx.Refused(err) {
			s.refused = true
			return s, nil
		}
		if err != nil {
			return s, err
		}
		for _, name := range names {
			if seen[name] {
				continue
			}
			seen[name] = true
			if x.IsBlock(name) {
				blocks = append(blocks, name)
			} else {
				s.others++
			}
		}
		if cursor = next; cursor == 0 || len(seen) >= sampleKeys {
			s.all = cursor == 0
			break
		}
	}
	s.blocks = len(blocks)
	if len(blocks) == 0 {
		return s, nil
	}

	pipe := node.Pipeline()
	values := make([]*redis.StringCmd, len(blocks))
	var sizes []*redis.IntCmd
	for i, name := range blocks {
		values[i] = pipe.Get(ctx, name)
		if i < sampleMemory {
			sizes = append(sizes, pipe.MemoryUsage(ctx, name))
		}
	}
	if _, err := pipe.Exec(ctx); err != nil && !redisx.Refused(err) && !errors.Is(err, redis.Nil) {
		return s, err
	}
	for i, v := range values {
		text, err := v.Result()
		if errors.Is(err, redis.Nil) {
			continue // removed meanwhile
		}
		var why string
		switch value := []byte(text); {
		case redis.HasErrorPrefix(err, "WRONGTYPE"):
			why = "is no string"
		case err != nil || x.IsHeld(value):
			continue
		case x.IsText(value):
			s.texts++
			continue
		default:
			why = fmt.Sprintf("holds %q", redisx.Clip(text))
		}
		if s.strangers++; len(s.foreign) < sampleForeign {
			s.foreign = append(s.foreign, fmt.Sprintf("%q %s", blocks[i], why))
		}
	}
	for _, c := range sizes {
		if b, err := c.Result(); err == nil {
			s.measured++
			s.bytes += b
		}
	}
	return s, nil
}

func (l *Look) judgeSample() {
	f := check.Finding{What: "keys"}
	s := l.sample
	switch {
	case s.refused:
		f.Level, f.Found = check.Info, "the user may not call SCAN"
		f.Means = "the keys of the index have not been looked at"
		f.Do = "let kvatlas doctor run as a user with +scan"
	case s.strangers > 0:
		f.Level = check.Warn
		f.Found = fmt.Sprintf("%s of %s are no blocks: %s", Count(s.strangers, "key"), Count(s.blocks, "block"), strings.Join(s.foreign, "; "))
		f.Means = "something else writes keys with the names of blocks; they count as held by no pod, and end the prefixes that they are in"
		f.Do = "find out what writes them, or choose another prefix (redis-prefix)"
	default:
		f.Found = fmt.Sprintf("%s looked at, all in order", Count(s.blocks, "block"))
		if s.texts > 0 {
			f.Found += fmt.Sprintf("; %d of them name pods by text, which counts until plain-max-age", s.texts)
		}
		if s.all {
			f.Found += "; there are no more"
		}
	}
	l.add(f)
}
