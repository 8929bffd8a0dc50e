// Command go is a writer of the index from outside, as docs/redis-schema.md
// describes it. It is an engine, or whatever stands beside one, that writes into
// Redis which blocks a pod holds. It shares no code with kvatlas; it needs a Redis
// client, XXH3, and the Lua scripts in store/redis/lua, which are the interface.
//
//	go run ./examples/writers/go -redis redis://localhost:6379 -pod 10.0.0.1:8000 -model meta-llama/Llama-3.1-8B
//
// It registers the pod and keeps its lease, and then reads commands, one a line:
//
//	add RANK TIER KEY...             the rank holds these blocks (block keys, 16 hex digits)
//	tokens RANK TIER TOKEN...        the rank holds the full blocks of these tokens
//	remove RANK TIER KEY...          it does not any more
//	clear RANK TIER                  it holds nothing any more in the tier; * is all
//	plain KEY...                     the blocks by the other way, as texts
//	unplain KEY...                   takes the pod's text out of them
//	retire                           the pod is gone
//
// Each is answered by "ok", or "error" and what is wrong. It is for a single server
// or one behind sentinels; what is different on a cluster is in the document.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/zeebo/xxh3"
)

// tags are the hash tags of the 64 partitions, from the table in the document.
const tags = "\x04\x08\x11\x19&.3;DHQYbjs\x7f\x01\x80\x10\x18#+2:AIPXckrz\x02\x0e\x13\x1b$(19BJS_dhqy\x03\x0b\x12\x1a!)08CKRZaipx"

const (
	schema, partitions             = "1", "64"
	maxPods, maxHolders, maxModels = "16384", "131072", "1024"
	maxRank                        = 1023
	// outdated and late are results of apply.lua, from the document's table.
	outdated, late = -5, -6
	// callBlocks is how many blocks one call changes at most.
	callBlocks = 512
)

// tiers are the memories that a block can be in.
var tiers = []string{"gpu", "cpu", "disk", "shared"}

// writer writes for one pod. It is safe for concurrent use.
type writer struct {
	rdb              *redis.Client
	pod, model, text string
	lease            time.Duration
	mask             uint64
	blockSize        int
	scripts          map[string]*redis.Script

	mu   sync.Mutex        // protects all below
	ids  map[string]string // holder ids by "rank/tier", as far as they are known
	gone bool              // retired, until the next write
}

// newWriter registers the pod, and the model with its block size unless that is
// fixed already.
func newWriter(ctx context.Context, rdb *redis.Client, dir, pod, model string, lease time.Duration, blockSize int) (*writer, error) {
	w := &writer{rdb: rdb, pod: pod, model: model, lease: lease, mask: xxh3.HashStringSeed(model, 1337), ids: map[string]string{}, scripts: map[string]*redis.Script{}}
	for name, files := range map[string][]string{
		"register": {"registry", "register"}, "retire": {"registry", "retire"}, "model": {"registry", "model"},
		"holders": {"registry", "guard", "holders"}, "reserve": {"registry", "reserve"}, "mark": {"mark"}, "apply": {"guard", "apply"},
	} {
		var src strings.Builder
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(dir, f+".lua"))
			if err != nil {
				return nil, err
			}
			src.Write(b)
		}
		w.scripts[name] = redis.NewScript(src.String())
	}
	text, err := json.Marshal(map[string]any{"name": pod, "model": model, "lease_s": lease.Seconds()})
	if err != nil {
		return nil, err
	}
	w.text = string(text)
	settings, err := w.registry(ctx, "model", "", "model:"+model, fmt.Sprintf(`{"block_size":%d,"scheme":"native"}`, blockSize), maxModels).Text()
	if err != nil {
		return nil, err
	}
	var in struct {
		BlockSize int    `json:"block_size"`
		Scheme    string `json:"scheme"`
	}
	if err := json.Unmarshal([]byte(settings), &in); err != nil || in.Scheme != "native" {
		return nil, fmt.Errorf("the model is indexed as %s", settings)
	}
	w.blockSize = in.BlockSize
	if err := w.register(ctx); err != nil {
		return nil, err
	}
	return w, nil
}

// registry runs a script of the registry for a pod.
func (w *writer) registry(ctx context.Context, script, pod string, args ...any) *redis.Cmd {
	var keys []string
	for _, k := range []string{"meta", "count", "epoch", "pods", "live", "gen", "s", "own:" + pod, "logged", "log"} {
		keys = append(keys, "kva{reg}:"+k)
	}
	return w.scripts[script].Run(ctx, w.rdb, keys, append([]any{schema, partitions}, args...)...)
}

// register registers the pod or renews its lease.
func (w *writer) register(ctx context.Context) error {
	return w.registry(ctx, "register", w.pod, w.pod, w.text, w.lease.Milliseconds(), maxPods).Err()
}

// keep renews the lease until ctx ends.
func (w *writer) keep(ctx context.Context, failed func(error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(w.lease / 3):
			if err := w.renew(ctx); err != nil && ctx.Err() == nil {
				failed(err) // the next try may go better, while the lease lasts
			}
		}
	}
}

func (w *writer) renew(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return nil
	}
	return w.register(ctx)
}

// back registers a pod that was retired, before it is written for again; mu is held.
func (w *writer) back(ctx context.Context) error {
	if !w.gone {
		return nil
	}
	w.gone = false
	return w.register(ctx)
}

func (w *writer) retire(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.ids)
	w.gone = true
	return w.registry(ctx, "retire", w.pod, w.pod, "always").Err()
}

// holders makes a clear, unless it is nil, and returns the id of a holder. A holder
// without an id is given one; place "" means no holder at all.
func (w *writer) holders(ctx context.Context, clears []string, place string) (string, error) {
	args := []any{w.pod, w.text, maxPods, maxHolders, 0}
	if clears == nil {
		args = append(args, 0)
	} else {
		args = append(args, 1, clears[0], clears[1])
	}
	if place == "" {
		args = append(args, 0)
	} else {
		rank, tier, _ := strings.Cut(place, "/")
		args = append(args, 1, rank, tier, 1)
	}
	for {
		ids, err := w.registry(ctx, "holders", w.pod, args...).StringSlice()
		if next, ok := strings.CutPrefix(fmt.Sprint(err), "KVARESERVE "); ok {
			if err := w.reserve(ctx, next); err != nil {
				return "", err
			}
			continue
		}
		if err != nil || place == "" {
			return "", err
		}
		return ids[0], nil
	}
}

// reserve raises the limit of ids: first every partition remembers the new one.
func (w *writer) reserve(ctx context.Context, next string) error {
	highest := uint64(0)
	for p := range tags {
		v, err := w.rdb.Get(ctx, "kva{"+tags[p:p+1]+"}:high").Uint64()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		highest = max(highest, v)
	}
	n, err := strconv.ParseUint(next, 10, 64)
	if err != nil {
		return err
	}
	if highest == 0 && n == 1 {
		// A new index, or one that has lost all it knew: then begin at the time.
		names, _, err := w.rdb.Scan(ctx, 0, "kva{?}????????", 10000).Result()
		if err != nil {
			return err
		}
		if len(names) > 0 {
			now, err := w.rdb.Time(ctx).Result()
			if err != nil {
				return err
			}
			highest = uint64(now.Unix()-1767225600) * 8
		}
	}
	for {
		limit, was := max(highest, n)+4096, uint64(0)
		for p := range tags {
			v, err := w.scripts["mark"].Run(ctx, w.rdb, []string{"kva{" + tags[p:p+1] + "}:high"}, limit).Uint64()
			if err != nil {
				return err
			}
			was = max(was, v)
		}
		if was <= highest {
			return w.registry(ctx, "reserve", "", highest, limit).Err()
		}
		highest = was // another writer is at it
	}
}

// key is the name of a block's key in Redis.
func (w *writer) key(blockKey uint64) string {
	store := blockKey ^ w.mask
	return "kva{" + tags[store&63:store&63+1] + "}" + string(binary.BigEndian.AppendUint64(nil, store))
}

// change adds blocks to a holder ("+") or removes them ("-").
func (w *writer) change(ctx context.Context, sign, place string, keys []uint64) error {
	for part := range slices.Chunk(keys, callBlocks) {
		for {
			again, err := w.try(ctx, sign, place, part)
			if err != nil {
				return err
			}
			if !again {
				break
			}
		}
	}
	return nil
}

// try makes one call of apply.lua. again is true when others have ended lives since
// the ids were asked for.
func (w *writer) try(ctx context.Context, sign, place string, keys []uint64) (again bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.back(ctx); err != nil {
		return false, err
	}
	id := w.ids[place]
	if id == "" {
		if id, err = w.holders(ctx, nil, place); err != nil {
			return false, err
		}
		w.ids[place] = id
	}
	names := []string{"kva{reg}:live", "kva{reg}:own:" + w.pod}
	for _, k := range keys {
		names = append(names, w.key(k))
	}
	names = append(names, "kva{reg}:logged", "kva{reg}:log")
	said, err := w.scripts["apply"].Run(ctx, w.rdb, names, 1, 0, 0, 1, place, id, sign+id, len(keys)).Int()
	switch {
	case err != nil:
		return false, err
	case said == outdated:
		delete(w.ids, place)
	case said == late:
		return true, w.retireLate(ctx)
	}
	return said < 0, nil
}

// retireLate retires the pods whose leases have run out.
func (w *writer) retireLate(ctx context.Context) error {
	now, err := w.rdb.Time(ctx).Result()
	if err != nil {
		return err
	}
	late, err := w.rdb.ZRangeArgs(ctx, redis.ZRangeArgs{Key: "kva{reg}:live", ByScore: true, Start: "-inf", Stop: now.UnixMilli()}).Result()
	for _, pod := range late {
		if err := w.registry(ctx, "retire", pod, pod, "expired").Err(); err != nil {
			return err
		}
	}
	return err
}

// clear ends what a rank holds in a tier, "*" for all.
func (w *writer) clear(ctx context.Context, rank, tier string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.ids)
	if err := w.back(ctx); err != nil {
		return err
	}
	_, err := w.holders(ctx, []string{rank, tier}, "")
	return err
}

// The two lines of the plain form, from the document. They add a text to a block, and take it
// out, and leave those of others as they are.
const (
	addText    = `local v=redis.call('GET',KEYS[1]) or '' if v:find('^[%d,]+$') then v='' end if (','..v..','):find(','..ARGV[1]..',',1,true) then return redis.call('PERSIST',KEYS[1]) end redis.call('SET',KEYS[1],v..','..ARGV[1]) return 1`
	removeText = `local o={} for t in (redis.call('GET',KEYS[1]) or ''):gmatch('[^,]+') do if t~=ARGV[1] then o[#o+1]=t end end if #o==0 then return redis.call('DEL',KEYS[1]) end redis.call('SET',KEYS[1],table.concat(o,','),'KEEPTTL') return #o`
)

// plain runs one of them for each block. A text stands for rank 0 in tier gpu.
func (w *writer) plain(ctx context.Context, script string, keys []uint64) error {
	for _, k := range keys {
		if err := w.rdb.Eval(ctx, script, []string{w.key(k)}, w.pod).Err(); err != nil {
			return err
		}
	}
	return nil
}

// blockKeys are the keys of the full blocks of tokens, scheme native.
func blockKeys(tokens []uint32, size int) []uint64 {
	var keys []uint64
	for block := range slices.Chunk(tokens, size) {
		if len(block) < size {
			break
		}
		var b []byte
		for _, t := range block {
			b = binary.LittleEndian.AppendUint32(b, t)
		}
		key := xxh3.HashSeed(b, 1337)
		if n := len(keys); n > 0 {
			key = xxh3.HashSeed(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, keys[n-1]), key), 1337)
		}
		keys = append(keys, key)
	}
	return keys
}

// numbers reads words as numbers.
func numbers(words []string, base, bits int) ([]uint64, error) {
	var out []uint64
	for _, word := range words {
		v, err := strconv.ParseUint(word, base, bits)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// checkPlace refuses ranks and tiers that do not exist. The scripts take any word, and no lookup finds what
// is held there. Argument every allows "*" for all.
func checkPlace(rank, tier string, every bool) error {
	if n, err := strconv.ParseUint(rank, 10, 16); (err != nil || n > maxRank || strconv.FormatUint(n, 10) != rank) && (!every || rank != "*") {
		return fmt.Errorf("rank %q is no number from 0 to %d", rank, maxRank)
	}
	if !slices.Contains(tiers, tier) && (!every || tier != "*") {
		return fmt.Errorf("tier %q is not one of %s", tier, strings.Join(tiers, ", "))
	}
	return nil
}

// do carries out a command.
func (w *writer) do(ctx context.Context, line string) error {
	words := strings.Fields(line)
	verb := words[0]
	switch {
	case verb == "retire" && len(words) == 1:
		return w.retire(ctx)
	case verb == "clear" && len(words) == 3:
		if err := checkPlace(words[1], words[2], true); err != nil {
			return err
		}
		return w.clear(ctx, words[1], words[2])
	case verb == "plain" || verb == "unplain":
		keys, err := numbers(words[1:], 16, 64)
		if err != nil {
			return err
		}
		script := addText
		if verb == "unplain" {
			script = removeText
		}
		return w.plain(ctx, script, keys)
	case (verb == "add" || verb == "remove") && len(words) > 3:
		if err := checkPlace(words[1], words[2], false); err != nil {
			return err
		}
		keys, err := numbers(words[3:], 16, 64)
		if err != nil {
			return err
		}
		sign := map[string]string{"add": "+", "remove": "-"}[verb]
		return w.change(ctx, sign, words[1]+"/"+words[2], keys)
	case verb == "tokens" && len(words) > 3:
		if err := checkPlace(words[1], words[2], false); err != nil {
			return err
		}
		list, err := numbers(words[3:], 10, 32)
		if err != nil {
			return err
		}
		tokens := make([]uint32, len(list))
		for i, t := range list {
			tokens[i] = uint32(t) // of 32 bits
		}
		return w.change(ctx, "+", words[1]+"/"+words[2], blockKeys(tokens, w.blockSize))
	}
	return fmt.Errorf("%q is no command", line)
}

func run() error {
	url := flag.String("redis", "redis://localhost:6379", "where Redis is")
	dir := flag.String("scripts", "store/redis/lua", "the folder of the Lua scripts")
	pod := flag.String("pod", "", "the pod's name: host:port")
	model := flag.String("model", "", "the model's name")
	lease := flag.Duration("lease", 30*time.Second, "how long the pod outlives this process")
	blockSize := flag.Int("block-size", 64, "tokens of a block, of a model that is new to the index")
	flag.Parse()
	if *pod == "" || *model == "" {
		return errors.New("-pod and -model are needed")
	}
	o, err := redis.ParseURL(*url)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	rdb := redis.NewClient(o)
	defer func() { _ = rdb.Close() }()
	w, err := newWriter(ctx, rdb, *dir, *pod, *model, *lease, *blockSize)
	if err != nil {
		return err
	}
	go w.keep(ctx, func(err error) { fmt.Fprintln(os.Stderr, "the lease:", err) })
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if strings.TrimSpace(in.Text()) == "" {
			continue
		}
		if err := w.do(ctx, in.Text()); err != nil {
			fmt.Println("error", err)
		} else {
			fmt.Println("ok")
		}
	}
	return in.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "writer:", err)
		os.Exit(1)
	}
}
