package external

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

const (
	// MaxText is the longest string that a scan reads, in bytes; maxHash is the number of
	// fields of the largest hash.
	MaxText = 512
	maxHash = 4096
	// pipelineKeys is how many keys go into one pipeline.
	pipelineKeys = 500

	unknownSize = -1 // of a value whose size could not be had, and which is not read
)

// Key is a key that another program keeps in a server of the index.
type Key struct {
	Name string
	// Type is Redis's word: string, hash, or another.
	Type string
	// Aged reports whether it has a time to live.
	Aged bool
	// Size is the length of a string in bytes, or the number of a hash's fields.
	Size int64
	// Text is a string's value, Fields are a hash's, when Scan.Want asked for
	// them and they are small: 512 bytes, 4096 fields.
	Text   string
	Fields map[string]string
	// Refused is what the server says to a user that may not ask for some of that; nil
	// when nothing was refused. What was refused is zero then.
	Refused error
}

// note keeps the first refusal, and reports whether a reply has come.
func (k *Key) note(err error) bool {
	if err != nil && k.Refused == nil && redisx.RefusedCommand(err) {
		k.Refused = err
	}
	return err == nil
}

// Scan is a walk over the keys of other programs.
type Scan struct {
	// Match is a pattern of SCAN.
	Match string
	// MaxKeys bounds how many keys Each gets. MaxSteps bounds the steps of SCAN, of 1000
	// keys of the server each, and of a cluster for each of its masters.
	MaxKeys, MaxSteps int
	// Want reports whether Each is to get a name, and whether its value is to be
	// read. It is called for each name that matches, by one goroutine at a time.
	Want func(name string) (tell, read bool)
	// Each receives the keys, by one goroutine at a time. A key may come twice.
	Each func(Key)
}

// Scan walks the keys of other programs. Names of the index itself are left out.
// It reads no value that is longer than Key says, whatever it is asked. Result all is
// true when there are no more keys than Each got.
func (s *Source) Scan(ctx context.Context, scan Scan) (all bool, err error) {
	if err := s.space.Check(ctx, "scan"); err != nil {
		return false, err
	}
	var mu sync.Mutex // protects all and what s has
	all = true
	visit := func(ctx context.Context, node *redis.Client) error {
		w := &walk{s: s, node: node, scan: &scan, mu: &mu}
		done, err := w.walk(ctx)
		mu.Lock()
		defer mu.Unlock()
		all = all && done
		return err
	}
	err = keyspace.EachMaster(ctx, s.client, visit)
	return all && err == nil, keyspace.Failed(ctx, "scan", err)
}

// walk is a walk over one server.
type walk struct {
	s    *Source
	node *redis.Client
	scan *Scan
	mu   *sync.Mutex
	told int
}

func (w *walk) walk(ctx context.Context) (all bool, err error) {
	own := w.s.space.Names.Prefix + "{"
	var cursor uint64
	for range w.scan.MaxSteps {
		w.s.space.Trips.Add(1)
		found, next, err := w.node.Scan(ctx, cursor, w.scan.Match, 1000).Result()
		if err != nil {
			return false, err
		}
		var names []string
		read := map[string]bool{}
		w.mu.Lock()
		for _, name := range found {
			if strings.HasPrefix(name, own) {
				continue
			}
			if tell, r := w.scan.Want(name); tell {
				names = append(names, name)
				read[name] = r
			}
		}
		w.mu.Unlock()
		cut := w.told+len(names) > w.scan.MaxKeys
		names = names[:min(len(names), max(w.scan.MaxKeys-w.told, 0))]
		w.told += len(names)
		if err := w.look(ctx, names, read); err != nil {
			return false, err
		}
		if cut {
			return false, nil
		}
		if cursor = next; cursor == 0 {
			return true, nil
		}
	}
	return false, nil
}

// look reports the keys.
func (w *walk) look(ctx context.Context, names []string, read map[string]bool) error {
	for part := range slices.Chunk(names, pipelineKeys) {
		keys, err := w.types(ctx, part)
		if err == nil {
			err = w.values(ctx, keys, read)
		}
		if err != nil {
			return err
		}
		w.mu.Lock()
		for i := range keys {
			if keys[i].Type != "none" {
				w.scan.Each(keys[i])
			}
		}
		w.mu.Unlock()
	}
	return nil
}

// types finds out what the keys are, without reading them.
func (w *walk) types(ctx context.Context, names []string) ([]Key, error) {
	pipe := w.node.Pipeline()
	types := make([]*redis.StatusCmd, len(names))
	ttls := make([]*redis.DurationCmd, len(names))
	for i, name := range names {
		types[i], ttls[i] = pipe.Type(ctx, name), pipe.PTTL(ctx, name)
	}
	w.s.space.Trips.Add(1)
	if err := ignoreReplies(pipe.Exec(ctx)); err != nil {
		return nil, err
	}
	keys := make([]Key, len(names))
	pipe = w.node.Pipeline()
	sizes := make([]*redis.IntCmd, len(names))
	for i, name := range names {
		keys[i] = Key{Name: name, Type: types[i].Val(), Aged: ttls[i].Val() > 0}
		keys[i].note(ttls[i].Err())
		switch keys[i].Type {
		case "":
			return nil, fmt.Errorf("redis: type of %q: %w", redisx.Clip(name), types[i].Err())
		case "string":
			sizes[i] = pipe.StrLen(ctx, name)
		case "hash":
			sizes[i] = pipe.HLen(ctx, name)
		}
	}
	if pipe.Len() == 0 {
		return keys, nil
	}
	w.s.space.Trips.Add(1)
	if err := ignoreReplies(pipe.Exec(ctx)); err != nil {
		return nil, err
	}
	for i, c := range sizes {
		switch {
		case c == nil:
		case keys[i].note(c.Err()):
			keys[i].Size = c.Val()
		default:
			keys[i].Size = unknownSize
		}
	}
	return keys, nil
}

// values reads the values that are wanted and small. One that has become another thing
// meanwhile stays unread.
func (w *walk) values(ctx context.Context, keys []Key, read map[string]bool) error {
	pipe := w.node.Pipeline()
	texts := make([]*redis.StringCmd, len(keys))
	hashes := make([]*redis.MapStringStringCmd, len(keys))
	for i := range keys {
		k := &keys[i]
		switch {
		case !read[k.Name], k.Size == unknownSize:
		case k.Type == "string" && k.Size <= MaxText:
			// Bounded here too: it may have grown since.
			texts[i] = pipe.GetRange(ctx, k.Name, 0, MaxText-1)
		case k.Type == "hash" && k.Size <= maxHash:
			hashes[i] = pipe.HGetAll(ctx, k.Name)
		}
	}
	if pipe.Len() > 0 {
		w.s.space.Trips.Add(1)
		if err := ignoreReplies(pipe.Exec(ctx)); err != nil {
			return err
		}
	}
	for i := range keys {
		if texts[i] != nil && keys[i].note(texts[i].Err()) {
			keys[i].Text = texts[i].Val()
		}
		if hashes[i] != nil && keys[i].note(hashes[i].Err()) {
			keys[i].Fields = hashes[i].Val()
		}
	}
	for i := range keys {
		keys[i].Size = max(keys[i].Size, 0)
	}
	return nil
}

// ignoreReplies is the error of a pipeline that is not the reply to one of its commands.
func ignoreReplies(_ []redis.Cmder, err error) error {
	if err == nil || errors.Is(err, redis.Nil) || redisx.Refused(err) {
		return nil
	}
	return err
}

// Has tells which of the names there are keys of, in order. No value is read.
func (s *Source) Has(ctx context.Context, names []string) ([]bool, error) {
	if err := s.space.Check(ctx, "exists"); err != nil {
		return nil, err
	}
	out := make([]bool, 0, len(names))
	for len(names) > 0 {
		n := min(len(names), pipelineKeys)
		pipe := s.client.Pipeline()
		replies := make([]*redis.IntCmd, n)
		for i, name := range names[:n] {
			replies[i] = pipe.Exists(ctx, name)
		}
		s.space.Trips.Add(1)
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, keyspace.Failed(ctx, "exists", err)
		}
		for _, r := range replies {
			out = append(out, r.Val() > 0)
		}
		names = names[n:]
	}
	return out, nil
}
