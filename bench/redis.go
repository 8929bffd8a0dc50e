package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
)

// RedisConfig says what Redis measures. The zero value of a field means its
// default.
type RedisConfig struct {
	// URL is where Redis is, in the form of store/redis; required. The database
	// must be empty.
	URL string
	// Parts are the measurements to make; all by default.
	Parts []string
	// Pods is the number of pods that hold each block; 10 by default, 2 to 100.
	Pods int
	// Keys is the number of blocks in the index while it is measured; 131,072
	// by default, at most 100 million.
	Keys int
	// MemoryKeys is the number of blocks that memory is measured with; 65,536 by
	// default.
	MemoryKeys int
	// Sizes are the numbers of blocks of a lookup; 128, 1,024 and 8,192 by
	// default.
	Sizes []int
	// Hits are the parts of a lookup's chain that all pods hold, in percent; 0,
	// 50 and 100 by default.
	Hits []int
	// Rounds is how often each side has its turn; 6 by default.
	Rounds int
	// EventBlocks is the number of blocks of an engine's event; 16 by default.
	EventBlocks int
	// EventBurst is the number of events of a sample; 2048 by default: in each, the maps
	// of all ranks are folded. Of evictions it is a quarter.
	EventBurst int
	// Track lets the sweep read how long the server has had for its commands. For that
	// it resets the server's statistics and changes its configuration until it ends. It
	// needs a server of version 7.
	Track bool
	// Progress receives what is going on; it may be nil.
	Progress func(string)

	// settle is how far apart the memory is looked at until it stays as it is, idle
	// how long an idle server is probed. Tests shorten them.
	settle, idle time.Duration
	// usedIDs is how many ids the holders of an index that is not new have been given.
	// Redis keeps integers below 10,000 once for all. Tests use up fewer.
	usedIDs int
}

// The parts of Redis.
const (
	partMemory = "memory"
	partLookup = "lookup"
	partIngest = "ingest"
	partRetire = "retire"
)

// redisParts are all of them, in the order in which they are made.
var redisParts = []string{partMemory, partLookup, partIngest, partRetire}

func (c RedisConfig) withDefaults() (RedisConfig, error) {
	c.Pods = cmp.Or(c.Pods, 10)
	c.Keys = cmp.Or(c.Keys, 1<<17)
	c.MemoryKeys = cmp.Or(c.MemoryKeys, 1<<16)
	c.Rounds = cmp.Or(c.Rounds, 6)
	c.EventBlocks = cmp.Or(c.EventBlocks, 16)
	c.EventBurst = cmp.Or(c.EventBurst, 2048)
	c.settle = cmp.Or(c.settle, 250*time.Millisecond)
	c.idle = cmp.Or(c.idle, 5*time.Second)
	c.usedIDs = cmp.Or(c.usedIDs, 100_000)
	if len(c.Parts) == 0 {
		c.Parts = redisParts
	}
	if len(c.Sizes) == 0 {
		c.Sizes = []int{128, 1024, 8192}
	}
	if len(c.Hits) == 0 {
		c.Hits = []int{0, 50, 100}
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	for _, p := range c.Parts {
		if !slices.Contains(redisParts, p) {
			return c, fmt.Errorf("bench: part %q is not one of %s", p, strings.Join(redisParts, ", "))
		}
	}
	check := func(what string, v, low, high int) error {
		if v < low || v > high {
			return fmt.Errorf("bench: %s is %d, it can be %d to %d", what, v, low, high)
		}
		return nil
	}
	errs := []error{
		check("the number of pods", c.Pods, 2, 100), check("the number of keys", c.Keys, 1, 100_000_000),
		check("the number of keys for memory", c.MemoryKeys, 1, 100_000_000), check("the number of rounds", c.Rounds, 1, 10_000),
		check("the number of blocks of an event", c.EventBlocks, 1, 1024),
		check("the number of events of a sample", c.EventBurst, 4*fullCall, 1<<16),
	}
	for _, s := range c.Sizes {
		errs = append(errs, check("a lookup's number of blocks", s, 1, 1<<16))
	}
	for _, h := range c.Hits {
		errs = append(errs, check("a hit", h, 0, 100))
	}
	if c.URL == "" {
		errs = append(errs, errors.New("bench: the URL is missing"))
	}
	return c, errors.Join(errs...)
}

// RedisReport is what Redis has measured. What was not measured is nil.
type RedisReport struct {
	// Server and Machine describe where.
	Server  string `json:"server"`
	Machine string `json:"machine"`
	// Began and Took say when and how long.
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"took_ns"`
	// Load are the load averages of the machine at the beginning and at the end,
	// "" where they are not known.
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
	// Pods and Keys are those of the index that was read and written.
	Pods int `json:"pods"`
	Keys int `json:"keys"`

	Memory []MemoryRow `json:"memory,omitempty"`
	Lookup []LookupRow `json:"lookup,omitempty"`
	// Half has two sides, a whole hit of the longest lookup and a half one, in turn.
	Half   *LookupRow  `json:"half,omitempty"`
	Ingest []EventRow  `json:"ingest,omitempty"`
	Evict  []EventRow  `json:"evict,omitempty"`
	Retire *Retirement `json:"retire,omitempty"`
}

// LookupRow is a lookup of so many blocks whose first percent all pods hold.
type LookupRow struct {
	Blocks int    `json:"blocks"`
	Hit    int    `json:"hit_percent"`
	Sides  []Side `json:"sides"`
}

// EventRow is the writing of engines' events. Its times are of an event, so that
// with several writers they tell how many there are in a second, not how long
// one takes.
type EventRow struct {
	Blocks  int    `json:"blocks"`
	Writers int    `json:"writers"`
	Sides   []Side `json:"sides"`
}

// Redis compares the index of store/redis with the peer's layouts on a server.
// What it writes it removes, whatever happens. A run takes minutes, so that with an
// error there is a report all the same when something had been measured by then.
func Redis(ctx context.Context, c RedisConfig) (_ *RedisReport, err error) {
	c, err = c.withDefaults()
	if err != nil {
		return nil, err
	}
	o, err := openOurs(c.URL)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.x.Close()) }()
	s, err := connect(ctx, c.URL)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.mustBeEmpty(ctx); err != nil {
		return nil, err
	}
	r := &redisRun{c: c, s: s, ours: o, report: &RedisReport{
		Machine: Machine(), Began: time.Now(), LoadBefore: LoadAverage(), Pods: c.Pods,
	}}
	if r.report.Server, err = s.about(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.cleanUp(ctx)) }()
	err = r.all(ctx)
	r.report.Took, r.report.LoadAfter = time.Since(r.report.Began), LoadAverage()
	if err != nil && r.report.empty() {
		return nil, err
	}
	return r.report, err
}

// empty reports whether nothing has been measured.
func (r *RedisReport) empty() bool {
	return len(r.Memory)+len(r.Lookup)+len(r.Ingest)+len(r.Evict) == 0 && r.Retire == nil
}

// redisRun is one call of Redis.
type redisRun struct {
	c      RedisConfig
	s      *server
	ours   *ours
	report *RedisReport
	// undo are what removes what has been written, by the names of things.
	undo map[string]func(context.Context) error
}

func (r *redisRun) all(ctx context.Context) error {
	if r.wants(partMemory) {
		if err := r.memory(ctx); err != nil {
			return fmt.Errorf("memory: %w", err)
		}
	}
	if !r.wants(partLookup) && !r.wants(partIngest) && !r.wants(partRetire) {
		return nil
	}
	main := newCorpus(1, r.c.Keys, max(slices.Max(r.c.Sizes), 1024))
	r.report.Keys = main.keys()
	pods := podNames(r.c.Pods)
	peers := []*peer{newPeer(r.s, false, true), newPeer(r.s, true, true)}
	layouts := []layout{r.ours}
	if r.wants(partLookup) || r.wants(partIngest) {
		layouts = append(layouts, peers[0], peers[1])
	}
	for _, l := range layouts {
		r.c.Progress(fmt.Sprintf("writing %d blocks of %d pods: %s", main.keys(), r.c.Pods, l.name()))
		r.willForget(l, "main", main)
		if err := fillAll(ctx, l, main, pods); err != nil {
			return fmt.Errorf("%s: %w", l.name(), err)
		}
	}
	if err := agree(ctx, layouts, main, r.c); err != nil {
		return err
	}
	if err := r.s.settle(ctx); err != nil {
		return err
	}
	if r.wants(partLookup) {
		if err := r.lookup(ctx, main, peers); err != nil {
			return fmt.Errorf("lookup: %w", err)
		}
	}
	if r.wants(partIngest) {
		if err := r.events(ctx, pods, append(peers, newPeer(r.s, true, false))); err != nil {
			return fmt.Errorf("ingest: %w", err)
		}
	}
	for _, l := range layouts[1:] {
		r.c.Progress("removing: " + l.name())
		if err := r.forgetNow(ctx, l, "main"); err != nil {
			return err
		}
	}
	if r.wants(partRetire) {
		if err := r.retire(ctx, main, pods); err != nil {
			return fmt.Errorf("retire: %w", err)
		}
	}
	return nil
}

func (r *redisRun) wants(part string) bool { return slices.Contains(r.c.Parts, part) }

// willForget notes what a peer's layout is about to get. Ours is removed as a
// whole.
func (r *redisRun) willForget(l layout, what string, c corpus) {
	if _, own := l.(*ours); own {
		return
	}
	if r.undo == nil {
		r.undo = map[string]func(context.Context) error{}
	}
	r.undo[l.name()+" "+what] = func(ctx context.Context) error { return forgetAll(ctx, l, c) }
}

func (r *redisRun) forgetNow(ctx context.Context, l layout, what string) error {
	undo := r.undo[l.name()+" "+what]
	if undo == nil {
		if err := r.s.unlinkPrefix(ctx, prefix); err != nil {
			return err
		}
		return r.ours.reopen()
	}
	if err := undo(ctx); err != nil {
		return err
	}
	delete(r.undo, l.name()+" "+what)
	return nil
}

// cleanTimeout is how long it may take to remove what a run has written.
const cleanTimeout = 10 * time.Minute

// cleanUp leaves the database as it was. It goes on when ctx has ended.
func (r *redisRun) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	r.c.Progress("cleaning up")
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(r.undo)) {
		errs = append(errs, r.undo[name](ctx))
	}
	errs = append(errs, r.s.unlinkPrefix(ctx, prefix))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("bench: what was written could not all be removed: %w", err)
	}
	return nil
}

// agree fails unless all layouts give one answer, and the right one.
func agree(ctx context.Context, layouts []layout, main corpus, c RedisConfig) error {
	for _, n := range c.Sizes {
		for _, hit := range c.Hits {
			keys := main.prompt(0, n, hit)
			want := n * hit / 100
			for _, l := range layouts {
				got, err := l.lookup(ctx, keys)
				if err != nil {
					return fmt.Errorf("%s: %w", l.name(), err)
				}
				for i := range c.Pods {
					if got[podName(i)] != want {
						return fmt.Errorf("bench: %s finds %d blocks of %s, not %d of %d", l.name(), got[podName(i)], podName(i), want, n)
					}
				}
			}
		}
	}
	return nil
}

// lookup compares lookups.
func (r *redisRun) lookup(ctx context.Context, main corpus, peers []*peer) error {
	for _, n := range r.c.Sizes {
		for _, hit := range r.c.Hits {
			r.c.Progress(fmt.Sprintf("lookup of %d blocks, %d %% held", n, hit))
			prompts := make([][]blockkey.Key, min(main.chains, 64))
			for i := range prompts {
				// Chains far from each other in the order of their writing.
				prompts[i] = main.prompt(i*main.chains/len(prompts), n, hit)
			}
			prompt := func(seq int) []blockkey.Key { return prompts[seq%len(prompts)] }
			list := []contender{{name: "kvatlas", trips: r.ours.trips, run: func(ctx context.Context, seq int) error {
				_, err := r.ours.lookup(ctx, prompt(seq))
				return err
			}}}
			for _, p := range peers {
				form := "short fields"
				if p.json {
					form = "JSON fields"
				}
				list = append(list, contender{name: form + ", replies", trips: p.trips, run: func(ctx context.Context, seq int) error {
					_, err := p.read(ctx, prompt(seq))
					return err
				}}, contender{name: form + ", decoded", trips: p.trips, run: func(ctx context.Context, seq int) error {
					_, err := p.entries(ctx, prompt(seq))
					return err
				}})
			}
			sides, err := compare(ctx, r.s, turns{rounds: r.c.Rounds}, list)
			if err != nil {
				return err
			}
			r.report.Lookup = append(r.report.Lookup, LookupRow{Blocks: n, Hit: hit, Sides: sides})
		}
	}
	return r.halfHit(ctx, main)
}

// halfHit compares a lookup of which all is held with one of which half is, of other chains.
func (r *redisRun) halfHit(ctx context.Context, main corpus) error {
	n := slices.Max(r.c.Sizes)
	r.c.Progress(fmt.Sprintf("lookup of %d blocks, all and half held in turn", n))
	ways := min(max(1, main.chains/2), 32)
	side := func(name string, first, hit int) contender {
		prompts := make([][]blockkey.Key, ways)
		for i := range prompts {
			prompts[i] = main.prompt((first+2*i)%main.chains, n, hit)
		}
		return contender{name: name, trips: r.ours.trips, run: func(ctx context.Context, seq int) error {
			_, err := r.ours.lookup(ctx, prompts[seq%len(prompts)])
			return err
		}}
	}
	sides, err := compare(ctx, r.s, turns{rounds: r.c.Rounds}, []contender{side("all held", 0, 100), side("half held", 1, 50)})
	if err != nil {
		return err
	}
	r.report.Half = &LookupRow{Blocks: n, Hit: 50, Sides: sides}
	return nil
}

// Machine describes this machine in a line: its system, processors and Go release.
func Machine() string {
	return fmt.Sprintf("%s/%s, %d CPUs%s, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), cpuModel(), runtime.Version())
}

// Write writes the report as Markdown.
func (r *RedisReport) Write(w io.Writer) error { return writeRedis(w, r) }
