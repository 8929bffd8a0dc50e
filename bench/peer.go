package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
)

// peer is the layout of llm-d, written and read as its public source does, by
// code of our own. The source is pkg/kvcache/kvblock of llm-d-kv-cache and,
// since 2026, of llm-d-router.
//
//	key    block key, in decimal
//	HASH   field: the pod's entry; value: empty
//	       entry, short form (to v0.5):  pod@tier
//	       entry, present form:          the JSON of five fields, about 105 bytes
//	key    engine:hash, both in decimal, the engine's hash of the block
//	       short form: STRING, the block key; present form: ZSET of block keys
//
// An event writes a pipeline with two commands a block. An eviction goes block
// by block. It reads the engine key and sends HDEL. Then come a script that
// drops an empty HASH (of the present form) and a script that drops the engine
// key. A lookup is a pipeline of HKEYS of all blocks, of which each field is
// then decoded.
//
// The peer's client knows no cluster; ours does, so that the layouts can be
// compared there too.
type peer struct {
	s    *server
	json bool
	// maps is false for an unrealistic index, one without the engine's hashes,
	// to tell their cost from that of the blocks.
	maps bool
	// mask keeps the blocks of several layouts apart in one database.
	mask uint64
}

func newPeer(s *server, asJSON, maps bool) *peer {
	p := &peer{s: s, json: asJSON, maps: maps, mask: 0x5bd1_e995_0000_0001}
	if asJSON {
		p.mask = 0x27d4_eb2f_0000_0002
	}
	if maps {
		p.mask += 0x10
	}
	return p
}

func (p *peer) name() string {
	n := "short fields"
	if p.json {
		n = "JSON fields"
	}
	if p.maps {
		n += " + engine keys"
	}
	return n
}

func (p *peer) trips() uint64 { return p.s.trips.count() }

// podEntry is what the peer knows of a block at a pod. The names of its fields
// are those of the JSON.
type podEntry struct {
	PodIdentifier string
	DeviceTier    string
	Speculative   bool
	HasGroup      bool
	GroupIdx      int
}

func (p *peer) encode(pod string) string {
	if !p.json {
		return pod + "@gpu"
	}
	text, err := json.Marshal(podEntry{PodIdentifier: pod, DeviceTier: "gpu"})
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(text)
}

func (p *peer) decode(field string) (e podEntry, err error) {
	if p.json {
		err = json.Unmarshal([]byte(field), &e)
		return e, err
	}
	pod, tier, ok := strings.Cut(field, "@")
	if !ok {
		return e, fmt.Errorf("the field %q has no tier", field)
	}
	return podEntry{PodIdentifier: pod, DeviceTier: tier}, nil
}

func (p *peer) blockName(k blockkey.Key) string { return strconv.FormatUint(uint64(k)^p.mask, 10) }

func (p *peer) engineName(k blockkey.Key) string {
	return "engine:" + strconv.FormatUint(uint64(k)^p.mask^engineMask, 10)
}

func (p *peer) fill(ctx context.Context, pods []string, keys []blockkey.Key) error {
	fields := make([]any, 0, 2*len(pods))
	for _, pod := range pods {
		fields = append(fields, p.encode(pod), "")
	}
	pipe := p.s.client.Pipeline()
	for _, k := range keys {
		pipe.HSet(ctx, p.blockName(k), fields...)
		if p.maps {
			p.mapKey(ctx, pipe, k)
		}
	}
	_, err := pipe.Exec(ctx)
	return err
}

// fillMap writes the engine keys alone.
func (p *peer) fillMap(ctx context.Context, keys []blockkey.Key) error {
	pipe := p.s.client.Pipeline()
	for _, k := range keys {
		p.mapKey(ctx, pipe, k)
	}
	_, err := pipe.Exec(ctx)
	return err
}

func (p *peer) mapKey(ctx context.Context, pipe redis.Pipeliner, k blockkey.Key) {
	if p.json {
		pipe.ZAdd(ctx, p.engineName(k), redis.Z{Score: 0, Member: p.blockName(k)})
	} else {
		pipe.Set(ctx, p.engineName(k), p.blockName(k), 0)
	}
}

func (p *peer) store(ctx context.Context, pod string, keys []blockkey.Key) error {
	pipe := p.s.client.Pipeline()
	if p.maps {
		for _, k := range keys {
			p.mapKey(ctx, pipe, k)
		}
	}
	for _, k := range keys {
		pipe.HSet(ctx, p.blockName(k), p.encode(pod), "")
	}
	_, err := pipe.Exec(ctx)
	return err
}

// The scripts of evictions.
var (
	dropEmptyHash = redis.NewScript(`
if redis.call('HLEN', KEYS[1]) == 0 then return redis.call('DEL', KEYS[1]) end
return 0`)
	dropEngineKey = redis.NewScript(`
for i = 2, #KEYS do
  if redis.call('HLEN', KEYS[i]) > 0 then return 0 end
end
return redis.call('DEL', KEYS[1])`)
)

func (p *peer) remove(ctx context.Context, pod string, keys []blockkey.Key) error {
	for _, k := range keys {
		if err := p.evict(ctx, pod, k); err != nil {
			return err
		}
	}
	return nil
}

func (p *peer) evict(ctx context.Context, pod string, k blockkey.Key) error {
	c, engine := p.s.client, p.engineName(k)
	blocks := []string{p.blockName(k)}
	if p.maps {
		var err error
		if p.json {
			blocks, err = c.ZRange(ctx, engine, 0, -1).Result()
		} else {
			blocks[0], err = c.Get(ctx, engine).Result()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", engine, err)
		}
	}
	for _, b := range blocks {
		if err := c.HDel(ctx, b, p.encode(pod)).Err(); err != nil {
			return err
		}
		if p.json {
			if err := dropEmptyHash.Run(ctx, c, []string{b}).Err(); err != nil {
				return err
			}
		}
	}
	if !p.maps || p.s.cluster() { // the script names keys of several slots
		return nil
	}
	return dropEngineKey.Run(ctx, c, append([]string{engine}, blocks...)).Err()
}

// read gets the fields of all blocks.
func (p *peer) read(ctx context.Context, keys []blockkey.Key) ([]*redis.StringSliceCmd, error) {
	pipe := p.s.client.Pipeline()
	cmds := make([]*redis.StringSliceCmd, len(keys))
	for i, k := range keys {
		cmds[i] = pipe.HKeys(ctx, p.blockName(k))
	}
	_, err := pipe.Exec(ctx)
	return cmds, err
}

// entries are read's fields decoded, up to the first block that no pod holds.
func (p *peer) entries(ctx context.Context, keys []blockkey.Key) (map[uint64][]podEntry, error) {
	cmds, err := p.read(ctx, keys)
	if err != nil {
		return nil, err
	}
	out := map[uint64][]podEntry{}
	for i, c := range cmds {
		var at []podEntry
		for _, field := range c.Val() {
			e, err := p.decode(field)
			if err != nil {
				return nil, err
			}
			at = append(at, e)
		}
		if len(at) == 0 {
			break
		}
		out[uint64(keys[i])] = at
	}
	return out, nil
}

func (p *peer) lookup(ctx context.Context, keys []blockkey.Key) (prefixes, error) {
	found, err := p.entries(ctx, keys)
	if err != nil {
		return nil, err
	}
	out := prefixes{}
	var pods []string
	for i, k := range keys {
		pods = pods[:0]
		for _, e := range found[uint64(k)] {
			pods = append(pods, e.PodIdentifier)
		}
		if !out.walk(i, pods) {
			break
		}
	}
	return out, nil
}

func (p *peer) forget(ctx context.Context, keys []blockkey.Key) error {
	names := make([]string, 0, 2*len(keys))
	for _, k := range keys {
		names = append(names, p.blockName(k))
		if p.maps {
			names = append(names, p.engineName(k))
		}
	}
	return p.s.unlink(ctx, names)
}

// clear removes a pod from all blocks of the database.
func (p *peer) clear(ctx context.Context, pod string) error {
	c := p.s.client
	for cursor := uint64(0); ; {
		names, next, err := c.Scan(ctx, cursor, "*", 1024).Result()
		if err != nil {
			return err
		}
		for _, name := range names {
			if strings.HasPrefix(name, "engine:") {
				continue
			}
			fields, err := c.HKeys(ctx, name).Result()
			if err != nil {
				return err
			}
			var gone []string
			for _, f := range fields {
				if e, err := p.decode(f); err == nil && e.PodIdentifier == pod {
					gone = append(gone, f)
				}
			}
			if len(gone) == 0 {
				continue
			}
			if err := c.HDel(ctx, name, gone...).Err(); err != nil {
				return err
			}
			if err := dropEmptyHash.Run(ctx, c, []string{name}).Err(); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}
