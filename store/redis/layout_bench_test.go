package redis

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
)

// layout is another way to keep a block index in Redis, which the benchmarks run
// beside this one. It has a HASH a block with a field for each pod.
type layout struct {
	name string
	// field is the field of a pod, pod reads it back.
	field func(i int) string
	pod   func(field string) (string, error)
}

// layouts are HASHes with short fields, as early indexes had them, and with ~105
// bytes of JSON, which a present one has.
var layouts = []layout{
	{
		name:  "short",
		field: func(i int) string { return benchPod(i) + "@gpu" },
		pod: func(field string) (string, error) {
			pod, _, ok := strings.Cut(field, "@")
			if !ok {
				return "", errors.New("no @")
			}
			return pod, nil
		},
	},
	{
		name: "json",
		field: func(i int) string {
			return fmt.Sprintf(`{"podIdentifier":%q,"deviceTier":"gpu","annotation":"","speculative":false,"groupIdx":%d,"groups":[0,1,2]}`, benchPod(i), i)
		},
		pod: func(field string) (string, error) {
			var e struct {
				PodIdentifier, DeviceTier, Annotation string
				Speculative                           bool
				GroupIdx                              int
				Groups                                []int
			}
			err := json.Unmarshal([]byte(field), &e)
			return e.PodIdentifier, err
		},
	},
}

func (l *layout) key(k blockkey.Key) string { return l.name + "@" + k.String() }

// fill writes a HASH a block with a field for each pod.
func (l *layout) fill(b *testing.B, c *redis.Client, keys []blockkey.Key, pods int) {
	b.Helper()
	pipe := c.Pipeline()
	for i, k := range keys {
		var fv []any
		for p := range pods {
			fv = append(fv, l.field(p), "1")
		}
		pipe.HSet(b.Context(), l.key(k), fv...)
		if i%512 == 511 || i == len(keys)-1 {
			must.Get(pipe.Exec(b.Context()))(b)
		}
	}
}

// lookup reads all blocks by pipelined HKEYS and counts those of each pod.
func (l *layout) lookup(b *testing.B, c *redis.Client, names []string) map[string]int {
	b.Helper()
	pipe := c.Pipeline()
	cmds := make([]*redis.StringSliceCmd, len(names))
	for i := range names {
		cmds[i] = pipe.HKeys(b.Context(), names[i])
	}
	must.Get(pipe.Exec(b.Context()))(b)
	blocks := map[string]int{}
	for _, c := range cmds {
		for _, f := range c.Val() {
			pod := must.Get(l.pod(f))(b)
			blocks[pod]++
		}
	}
	return blocks
}

// apply adds or removes blocks of a pod in one pipeline. With them it does the key by
// which the layout finds a block from an engine's own hash.
func (l *layout) apply(b *testing.B, c *redis.Client, keys []blockkey.Key, pod int, add bool) {
	b.Helper()
	pipe := c.Pipeline()
	for _, k := range keys {
		if add {
			pipe.HSet(b.Context(), l.key(k), l.field(pod), "1")
			pipe.Set(b.Context(), "engine:"+l.key(k), l.key(k), 0)
		} else {
			pipe.HDel(b.Context(), l.key(k), l.field(pod))
			pipe.Del(b.Context(), "engine:"+l.key(k))
		}
	}
	must.Get(pipe.Exec(b.Context()))(b)
}
