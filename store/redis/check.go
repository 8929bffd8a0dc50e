package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/roster"
	"github.com/kvatlas/kvatlas/store/redis/servercheck"
)

// Check looks at the servers of the index and says what it finds. It says what
// is as it should be, and what will cost something, in words and with the
// remedy; docs/operations.md has a paragraph on each. Round trips are held
// against budget, the time that a lookup may take.
//
// It changes nothing and takes about a hundred round trips on connections of its
// own. Samples are bounded, so that it may be called on a busy server of any
// size. What it is not allowed to look at, it says so.
//
// When servers cannot be reached, that is a finding, and the error is
// store.ErrUnavailable as well.
func (x *Index) Check(ctx context.Context, budget time.Duration) ([]check.Finding, error) {
	if err := x.space.Check(ctx, "check"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(x.space.Life, cancel)()

	to := x.config.connection(x.space.Conn.Target)
	to.Log = nil // findings say it
	conn := redisx.Open(to)
	c := &checker{x: x, client: conn.Client, budget: budget}
	defer func() { _ = conn.Close() }()
	err := c.run(ctx)
	slices.SortStableFunc(c.findings, func(a, b check.Finding) int {
		return slices.Index(servercheck.Names, a.What) - slices.Index(servercheck.Names, b.What)
	})
	return c.findings, keyspace.Failed(ctx, "check", err)
}

// checker is one check.
type checker struct {
	x      *Index
	client redis.UniversalClient
	budget time.Duration

	findings []check.Finding
}

func (c *checker) report(f check.Finding) { c.findings = append(c.findings, f) }

func (c *checker) run(ctx context.Context) error {
	if err := c.reach(ctx); err != nil {
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.report(servercheck.Unreachable(c.x.space.Conn.Target, err))
		}
		return err
	}
	looks, err := c.looks(ctx)
	if err != nil {
		// Some master of a cluster; the others have been looked at.
		c.report(servercheck.Unreachable(c.x.space.Conn.Target, err))
	}
	c.report(check.Finding{Level: check.OK, What: "connection", Found: fmt.Sprintf("%s, RESP%d", c.x.space.Conn.Target, c.x.config.Protocol)})
	c.findings = append(c.findings, servercheck.Merge(looks)...)
	c.dataModel(ctx)
	if c.x.space.Cluster {
		c.spread(ctx, looks)
	}
	return err
}

// reach makes a round trip. That the reply is a refusal is found later.
func (c *checker) reach(ctx context.Context) error {
	err := c.client.Get(ctx, c.x.space.Names.Epoch).Err()
	if err == nil || errors.Is(err, redis.Nil) {
		return nil
	}
	// The connection's own first commands may have been refused, too.
	if strings.Contains(err.Error(), "client|setname") || strings.Contains(err.Error(), "'select'") {
		return err
	}
	for _, refusal := range []string{"NOPERM", "WRONGTYPE", "MOVED", "READONLY"} {
		if strings.HasPrefix(err.Error(), refusal) {
			return nil
		}
	}
	return err
}

// looks looks at each master.
func (c *checker) looks(ctx context.Context) ([]*servercheck.Look, error) {
	var mu sync.Mutex // protects all
	var all []*servercheck.Look
	n := c.x.space.Names
	q := servercheck.Question{Target: c.x.space.Conn.Target, Budget: c.budget, Index: servercheck.Index{
		Prefix: n.Prefix, Epoch: n.Epoch, Meta: n.Meta, IsText: keyspace.IsText,
		IsBlock: func(key string) bool { _, ok := n.ParseBlock(key); return ok },
		IsHeld:  func(value []byte) bool { _, ok := keyspace.AppendHolders(nil, value); return ok },
	}}
	visit := func(ctx context.Context, node *redis.Client) error {
		l, err := q.Take(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			all = append(all, l)
		}
		return err
	}
	err := keyspace.EachMaster(ctx, c.client, visit)
	slices.SortFunc(all, func(a, b *servercheck.Look) int { return cmp.Compare(a.Addr, b.Addr) })
	return all, err
}

// dataModel reads what the index says of itself.
func (c *checker) dataModel(ctx context.Context) {
	x := c.x
	f := check.Finding{What: "data model"}
	snap, late, err := x.roster.Read(ctx, x.roster.Current())
	switch {
	case errors.Is(err, keyspace.ErrSchema):
		f.Level, f.Found = check.Fail, strings.TrimPrefix(err.Error(), "redis: ")
		f.Means = "this version neither reads nor writes under the prefix " + x.config.Prefix
		f.Do = "choose another prefix (redis-prefix), or run the version that wrote it"
	case err != nil && strings.Contains(err.Error(), "WRONGTYPE"):
		f.Level, f.Found = check.Fail, "a key of the registry is of another type: "+err.Error()
		f.Means = "something else uses the prefix " + x.config.Prefix + "; nothing can be scored"
		f.Do = "delete that key, or choose another prefix (redis-prefix)"
	case err != nil:
		f.Level, f.Found = check.Fail, "the registry cannot be read: "+err.Error()
		f.Means = "holders cannot be read: nothing is scored"
	case snap.Registry.Epoch == 0 && len(snap.Registry.Models) == 0:
		f.Level, f.Found = check.Info, "the prefix "+x.config.Prefix+" is unused: nothing has been written yet"
		f.Means = "every score is 0 until pods register and write"
	default:
		f.Found = fmt.Sprintf("schema %d with %d partitions, prefix %s", keyspace.Schema, blockkey.Partitions, x.config.Prefix)
	}
	c.report(f)
	if err != nil {
		return
	}
	c.values(ctx)
	r := snap.Registry
	if r.Epoch == 0 {
		return
	}
	reg := check.Finding{What: "registry", Found: fmt.Sprintf("%s, %s, %s", servercheck.Count(len(r.Pods), "pod"), servercheck.Count(len(r.Holders()), "holder"), servercheck.Count(len(r.Models), "model"))}
	if len(late) > 0 {
		reg.Found += fmt.Sprintf("; the leases of %s have run out", servercheck.Count(len(late), "further pod"))
	}
	for _, full := range []struct {
		n, limit int
		what     string
	}{{len(r.Pods), x.config.MaxPods, "pods"}, {len(r.Holders()), x.config.MaxHolders, "holders"}, {len(r.Models), x.config.MaxModels, "models"}} {
		if full.n >= full.limit-full.limit/10 {
			reg.Level = check.Warn
			reg.Means = fmt.Sprintf("%d %s are allowed; beyond it, new ones are refused", full.limit, full.what)
			reg.Do = "retire what is gone, or raise index-max-" + full.what
		}
	}
	c.report(reg)
}

// values looks for numbers and settings that no script has written.
func (c *checker) values(ctx context.Context) {
	n := c.x.space.Names
	bad := func(key, field, value, means, do string) {
		if field != "" {
			key += ", field " + field
		}
		c.report(check.Finding{Level: check.Warn, What: "data model", Found: fmt.Sprintf("%s is %q, which it cannot be", key, redisx.Clip(value)), Means: means, Do: do})
	}
	const itself = "nothing: it mends itself with the next registration, clear or new holder; find out what writes there"
	pipe := c.client.Pipeline()
	meta, counts, epoch := pipe.HGetAll(ctx, n.Meta), pipe.HMGet(ctx, n.Count, "holder", "reserved", "ended", "swept"), pipe.Get(ctx, n.Epoch)
	_, _ = pipe.Exec(ctx) // each is looked at; what cannot be read has been told
	for _, field := range slices.Sorted(maps.Keys(meta.Val())) {
		name, ok := strings.CutPrefix(field, keyspace.ModelField)
		if !ok {
			continue
		}
		if _, err := roster.ParseModel(name, meta.Val()[field]); err != nil {
			bad(n.Meta, field, meta.Val()[field], "the model counts as not set: each process cuts its prompts by its own block size, and writes may be refused", n.Unfix(name)+" makes the next write fix it anew")
		}
	}
	numbers := map[string]uint64{}
	for i, field := range []string{"holder", "reserved", "ended", "swept"} {
		text, there := "", false
		if i < len(counts.Val()) {
			text, there = counts.Val()[i].(string)
		}
		v, err := strconv.ParseUint(text, 10, 53)
		numbers[field] = v
		// Its copy is never above it.
		low, _ := strconv.ParseUint(meta.Val()[field], 10, 53)
		if there && (err != nil || i < 2 && v >= uint64(store.FirstLocal)) || (there || len(counts.Val()) > 0) && v < low {
			bad(n.Count, field, text, "it is taken for lost: ids begin anew above all that have been given, and the index is swept", itself)
		}
	}
	if numbers["swept"] > numbers["ended"] {
		bad(n.Count, "swept", fmt.Sprint(numbers["swept"]), fmt.Sprintf("only %d lives have ended: the index is swept anew", numbers["ended"]), itself)
	}
	if text := epoch.Val(); text != "" {
		if v, err := strconv.ParseUint(text, 10, 64); err != nil || v >= keyspace.MaxEpoch {
			bad(n.Epoch, "", text, "it is taken for lost: every lookup loads the registry", itself)
		}
	}
}

// spread tells how the partitions lie on the masters of a cluster.
func (c *checker) spread(ctx context.Context, looks []*servercheck.Look) {
	client, ok := c.client.(*redis.ClusterClient)
	if !ok {
		return
	}
	held := map[string]int{}
	for _, l := range looks {
		held[l.Addr] = 0
	}
	var lost []string
	for p := range blockkey.Partitions {
		m, err := client.MasterForKey(ctx, c.x.space.Names.High(p))
		if err != nil {
			lost = append(lost, fmt.Sprint(p))
			continue
		}
		held[m.Options().Addr]++
	}
	f := check.Finding{What: "cluster"}
	if len(lost) > 0 {
		f.Level, f.Found = check.Fail, fmt.Sprintf("no master for partitions %s", strings.Join(lost, ", "))
		f.Means = "lookups of their blocks fail; answers are degraded"
		f.Do = "CLUSTER NODES tells which slots have no master; redis-cli --cluster fix gives them one"
		c.report(f)
		return
	}
	var least, most int
	var each []string
	for i, addr := range slices.Sorted(maps.Keys(held)) {
		n := held[addr]
		if i == 0 {
			least, most = n, n
		}
		least, most = min(least, n), max(most, n)
		each = append(each, fmt.Sprintf("%s: %d", addr, n))
	}
	f.Found = fmt.Sprintf("%s of %d partitions (%s)", servercheck.Count(len(held), "master"), blockkey.Partitions, strings.Join(each, ", "))
	even := (blockkey.Partitions + len(held) - 1) / len(held)
	if most > even+max(1, even/2) {
		f.Level = check.Warn
		f.Means = fmt.Sprintf("one master does the work of %d partitions where an even share is %d, and another that of %d", most, even, least)
		f.Do = "redis-cli --cluster rebalance evens the slots out; partitions follow slots"
	}
	c.report(f)
}
