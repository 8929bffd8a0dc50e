package redis

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/store"
)

// mapBuckets is how many hashes a generation's map is spread over. Redis keeps a
// hash of up to 512 such fields in one piece of memory: with 64 fields an entry
// takes a third of what a key of its own takes, and 1024 hashes hold half a
// million entries, more blocks than the memory of one rank has.
const mapBuckets = 1024

// bucket is what is to be done to one hash of a map.
type bucket struct {
	gen  store.Generation
	n    uint64
	sets []string // field, value, ...
	dels []string
}

// fields is how many entries are changed.
func (b *bucket) fields() int { return len(b.sets)/2 + len(b.dels) }

func (b *bucket) appendArgs(args []string) []string {
	args = append(args, strconv.FormatUint(uint64(b.gen), 10), strconv.Itoa(len(b.sets)/2), strconv.Itoa(len(b.dels)))
	return append(append(args, b.sets...), b.dels...)
}

// bucketName is the key of a bucket.
func (n *names) bucketName(gen store.Generation, b uint64) string {
	return n.life(gen) + "m:" + strconv.FormatUint(b, 10)
}

// bucketOf is the bucket that an entry is in.
func bucketOf(k store.MapKey) uint64 { return k.Hash % mapBuckets }

// mapField is the field of an entry: the hash, 8 bytes big endian, and the part in
// as few bytes as it takes: none for part 0.
func mapField(k store.MapKey) string {
	var b [10]byte
	binary.BigEndian.PutUint64(b[:], k.Hash)
	switch {
	case k.Part == 0:
		return string(b[:8])
	case k.Part < 256:
		b[8] = byte(k.Part)
		return string(b[:9])
	}
	binary.BigEndian.PutUint16(b[8:], k.Part)
	return string(b[:])
}

// mapCalls makes the runs of apply.lua that change maps: first those that set
// entries, then those that delete some. They have no head yet.
func (x *Index) mapCalls(guards []*guardPlan) (sets, dels []*call) {
	for _, g := range guards {
		last := make(map[store.MapKey][]byte, len(g.ops))
		for _, op := range g.ops {
			last[op.MapKey] = op.Value
		}
		keys := make([]store.MapKey, 0, len(last))
		for k := range last {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, func(a, b store.MapKey) int {
			if c := int(bucketOf(a)) - int(bucketOf(b)); c != 0 {
				return c
			}
			return cmpMapKey(a, b)
		})
		var set, del []bucket
		for _, k := range keys {
			to := &set
			if last[k] == nil {
				to = &del
			}
			if n := len(*to); n == 0 || (*to)[n-1].n != bucketOf(k) {
				*to = append(*to, bucket{gen: g.Generation, n: bucketOf(k)})
			}
			b := &(*to)[len(*to)-1]
			if last[k] == nil {
				b.dels = append(b.dels, mapField(k))
			} else {
				b.sets = append(b.sets, mapField(k), string(last[k]))
			}
		}
		sets, dels = append(sets, x.bucketCalls(g, set)...), append(dels, x.bucketCalls(g, del)...)
	}
	return sets, dels
}

func cmpMapKey(a, b store.MapKey) int {
	return cmp.Or(cmp.Compare(a.Hash, b.Hash), cmp.Compare(a.Part, b.Part))
}

// bucketCalls puts buckets of one guard into runs of a length that keeps the
// server from others only shortly.
func (x *Index) bucketCalls(g *guardPlan, buckets []bucket) []*call {
	place := atRegistry
	if x.cluster {
		place = atMap
	}
	var calls []*call
	fields := 0
	for _, b := range buckets {
		// A bucket of more than that comes of engines whose hashes are none.
		for len(b.sets) > 2*callKeys {
			calls = append(calls, &call{place: place, parts: []guardPart{{guard: g}}, buckets: []bucket{{gen: b.gen, n: b.n, sets: b.sets[:2*callKeys]}}})
			b.sets, fields = b.sets[2*callKeys:], callKeys
		}
		for len(b.dels) > callKeys {
			calls = append(calls, &call{place: place, parts: []guardPart{{guard: g}}, buckets: []bucket{{gen: b.gen, n: b.n, dels: b.dels[:callKeys]}}})
			b.dels, fields = b.dels[callKeys:], callKeys
		}
		if len(calls) == 0 || fields+b.fields() > callKeys {
			calls, fields = append(calls, &call{place: place, parts: []guardPart{{guard: g}}}), 0
		}
		c := calls[len(calls)-1]
		c.buckets = append(c.buckets, b)
		fields += b.fields()
	}
	return calls
}

// ReadMap implements store.Index.
func (x *Index) ReadMap(ctx context.Context, gen store.Generation, keys ...store.MapKey) ([][]byte, error) {
	if err := x.begin(ctx, "map"); err != nil {
		return nil, err
	}
	if gen == 0 || len(keys) > store.MaxMapOps {
		return nil, fmt.Errorf("%w: %d keys of generation %d; there can be %d, of a generation", store.ErrInvalid, len(keys), gen, store.MaxMapOps)
	}
	byBucket := map[uint64][]int{}
	for i, k := range keys {
		byBucket[bucketOf(k)] = append(byBucket[bucketOf(k)], i)
	}
	pipe := x.client.Pipeline()
	record := pipe.HGet(ctx, x.names.records, strconv.FormatUint(uint64(gen), 10))
	replies := make(map[uint64]*redis.SliceCmd, len(byBucket))
	for n, list := range byBucket {
		fields := make([]string, len(list))
		for i, k := range list {
			fields[i] = mapField(keys[k])
		}
		replies[n] = pipe.HMGet(ctx, x.names.bucketName(gen, n), fields...)
	}
	x.roundTrips.Add(1)
	_, err := pipe.Exec(ctx)
	switch {
	case errors.Is(record.Err(), redis.Nil):
		return nil, store.ErrEnded
	case err != nil:
		return nil, failed(ctx, "map", err)
	}
	out := make([][]byte, len(keys))
	for n, list := range byBucket {
		for i, v := range replies[n].Val() {
			if s, ok := v.(string); ok {
				out[list[i]] = []byte(s)
			}
		}
	}
	return out, nil
}
