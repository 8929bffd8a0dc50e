package roster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

const (
	// pageSize is how many pods one command reads at most, so that none keeps the
	// server from others for long.
	pageSize = 500
	// copiesAtOnce is how many pods' entries of gen one command reads at most. They
	// are longer.
	copiesAtOnce = 64
	// scriptPods is how many pods roster.lua returns at most.
	scriptPods = 128
)

// newsField is the field of gen with the latest news, and what the fields of
// pods begin with: see registry.lua.
const newsField = "@"

// roster is what a registry is made of. It is immutable, and two of them share
// the members that have not changed.
type roster struct {
	epoch   uint64
	members []*member // ascending by name
	models  map[string]store.ModelInfo
	// swept is the number of ended lives that the last complete sweep knew, ended how many
	// there are.
	swept, ended uint64
}

// reuseField follows a rank and a slash in the name of the field that says what the
// rank's engine can reuse.
const reuseField = "reuse"

// noteReuse reads such a field. ok is false when it cannot be read.
func noteReuse(reuse map[int]store.Reuse, rankText, text string) (ok bool) {
	rank, err := strconv.Atoi(rankText)
	if err != nil || rank < 0 || rank >= store.MaxRanks {
		return false
	}
	reuse[rank], err = store.ParseReuse(text)
	return err == nil
}

// member is a pod of a roster: how it is written, and what that means.
type member struct {
	name, text, copy string

	pod     store.Pod
	holders []store.Holder
	// born is the number of ended lives when its life began.
	born uint64
	// guest says that it is not registered, met that a value has named it and no query,
	// see guests.go.
	guest, met bool
}

func (r *roster) find(name string) (int, bool) {
	return slices.BinarySearchFunc(r.members, name, func(m *member, name string) int { return strings.Compare(m.name, name) })
}

// briefing is what roster.lua tells.
type briefing struct {
	epoch, swept, ended uint64
	// late are the pods whose leases have run out, by the server's time.
	late []string
	// until is when the first lease of the others ends; zero when there is none.
	until time.Time
	clock serverClock
	// what is same, news, all or many.
	what                 string
	names, texts, copies []string
	meta                 map[string]string
}

// ask runs roster.lua for a reader that knows the registry of an epoch, 0 for none.
// It goes by EVAL, which is all that a reader's user may call.
func (c *Cache) ask(ctx context.Context, epoch uint64) (a briefing, err error) {
	n := c.space.Names
	c.space.Trips.Add(1)
	sent := time.Now()
	v, err := c.space.Client.Eval(ctx, lua.Roster.Source, []string{n.Epoch, n.Live, n.Count, n.Gen, n.Pods, n.Meta}, strconv.FormatUint(epoch, 10), scriptPods).Slice()
	if err != nil {
		return a, err
	}
	if len(v) < 6 {
		return a, fmt.Errorf("redis: roster.lua returned %v", v)
	}
	a.epoch = c.space.EpochOf(keyspace.Word(v[0]))
	if _, err = fmt.Sscanf(keyspace.Word(v[3]), "%d %d", &a.swept, &a.ended); err != nil {
		return a, fmt.Errorf("redis: the numbers of swept and ended lives are %q", redisx.Clip(keyspace.Word(v[3])))
	}
	a.what = keyspace.Word(v[5])
	ms := keyspace.Number(v[1])*1000 + keyspace.Number(v[2])/1000
	a.clock = serverClock{sent, int64(ms)}
	leases, err := c.leases(ctx, keyspace.Words(v[4]), ms)
	if err != nil {
		return a, err
	}
	for i := 0; i+1 < len(leases); i += 2 {
		till, err := strconv.ParseFloat(leases[i+1], 64)
		if err != nil {
			return a, fmt.Errorf("redis: the lease of pod %q ends at %q", leases[i], redisx.Clip(leases[i+1]))
		}
		if till > ms {
			// Counted from before the server told its time, so never too late.
			a.until = sent.Add(time.Duration(till-ms) * time.Millisecond)
			break
		}
		a.late = append(a.late, leases[i])
	}
	if len(v) < 10 {
		return a, nil
	}
	a.names, a.texts, a.copies = keyspace.Words(v[6]), keyspace.Words(v[7]), keyspace.Words(v[8])
	if len(a.texts) != len(a.names) || len(a.copies) != len(a.names) {
		return a, fmt.Errorf("redis: roster.lua returned %d names, %d texts and %d copies", len(a.names), len(a.texts), len(a.copies))
	}
	meta := keyspace.Words(v[9])
	a.meta = make(map[string]string, len(meta)/2)
	for i := 0; i+1 < len(meta); i += 2 {
		a.meta[meta[i]] = meta[i+1]
	}
	return a, nil
}

// leases returns more leases where all of the first have run out.
func (c *Cache) leases(ctx context.Context, first []string, ms float64) ([]string, error) {
	if len(first) < 2*firstLeases {
		return first, nil
	}
	if till, err := strconv.ParseFloat(first[len(first)-1], 64); err == nil && till > ms {
		return first, nil
	}
	c.space.Trips.Add(1)
	list, err := c.space.Client.ZRangeWithScores(ctx, c.space.Names.Live, 0, -1).Result()
	if err != nil {
		return nil, err
	}
	all := make([]string, 0, 2*len(list))
	for _, z := range list {
		pod, _ := z.Member.(string)
		all = append(all, pod, strconv.FormatFloat(z.Score, 'f', -1, 64))
	}
	return all, nil
}

// firstLeases is how many leases roster.lua tells.
const firstLeases = 64

// Read reads the whole registry. late are the pods whose leases have run out.
// What is written as in base need not be parsed again.
//
// Where there are many pods the commands are separate, so that none blocks the
// server for long, and the epoch is the first of them. When something changes
// between two of them, the snapshot has an epoch that is over. The next lookup
// loads again then.
func (c *Cache) Read(ctx context.Context, base *Snapshot) (snap *Snapshot, late []string, err error) {
	a, err := c.ask(ctx, 0)
	if err != nil {
		return nil, nil, err
	}
	return c.take(ctx, a, base)
}

// refresh makes a snapshot of an earlier one and what has changed since.
func (c *Cache) refresh(ctx context.Context, base *Snapshot) (snap *Snapshot, late []string, err error) {
	known := uint64(0)
	if base.loaded {
		known = base.roster.epoch
	}
	a, err := c.ask(ctx, known)
	if err != nil {
		return nil, nil, err
	}
	return c.take(ctx, a, base)
}

// take makes a snapshot of a briefing and, of what it does not tell, of base.
func (c *Cache) take(ctx context.Context, a briefing, base *Snapshot) (snap *Snapshot, late []string, err error) {
	r := base.roster
	r.epoch, r.swept, r.ended = a.epoch, a.swept, a.ended
	switch a.what {
	case "same":
	case "news":
		r.members = slices.Clone(r.members)
		for i, name := range a.names {
			c.renew(&r, name, a.texts[i], a.copies[i], base)
		}
		if len(a.meta) == 0 {
			break
		}
		if r.models, err = c.readMeta(a.meta); err != nil {
			return nil, nil, err
		}
	case "all", "many":
		if r.models, err = c.readMeta(a.meta); err != nil {
			return nil, nil, err
		}
		if a.what == "many" {
			if err := c.readPods(ctx, &a); err != nil {
				return nil, nil, err
			}
		}
		r.members = make([]*member, 0, len(a.names))
		for i, name := range a.names {
			if m := c.member(name, a.texts[i], a.copies[i], base); m != nil {
				r.members = append(r.members, m)
			}
		}
		slices.SortFunc(r.members, func(a, b *member) int { return strings.Compare(a.name, b.name) })
	default:
		return nil, nil, fmt.Errorf("redis: roster.lua returns %q", redisx.Clip(a.what))
	}
	return c.made(r, a), a.late, nil
}

// renew puts what is new of a pod into a roster; without a text it is gone.
func (c *Cache) renew(r *roster, name, text, copied string, base *Snapshot) {
	at, there := r.find(name)
	var m *member
	if text != "" {
		m = c.member(name, text, copied, base)
	}
	switch {
	case m == nil && there:
		r.members = slices.Delete(r.members, at, at+1)
	case m != nil && there:
		r.members[at] = m
	case m != nil:
		r.members = slices.Insert(r.members, at, m)
	}
}

// readPods reads all pods, in pages. What is there all the while is read, in the
// state of some moment of it.
func (c *Cache) readPods(ctx context.Context, a *briefing) error {
	pods := map[string]string{}
	for cursor := uint64(0); ; {
		c.space.Trips.Add(1)
		list, next, err := c.space.Client.HScan(ctx, c.space.Names.Pods, cursor, "", pageSize).Result()
		if err != nil {
			return err
		}
		for i := 0; i+1 < len(list); i += 2 {
			pods[list[i]] = list[i+1]
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	a.names = slices.Sorted(maps.Keys(pods))
	pipe := c.space.Client.Pipeline()
	var cmds []*redis.SliceCmd
	for part := range slices.Chunk(a.names, copiesAtOnce) {
		fields := make([]string, len(part))
		for i, name := range part {
			fields[i] = newsField + name
		}
		cmds = append(cmds, pipe.HMGet(ctx, c.space.Names.Gen, fields...))
	}
	c.space.Trips.Add(1)
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	a.texts, a.copies = make([]string, 0, len(a.names)), make([]string, 0, len(a.names))
	for _, c := range cmds {
		a.copies = append(a.copies, keyspace.Words(c.Val())...)
	}
	for _, name := range a.names {
		a.texts = append(a.texts, pods[name])
	}
	return nil
}

// made makes the snapshot of a roster.
func (c *Cache) made(r roster, a briefing) *Snapshot {
	late := make(map[string]bool, len(a.late))
	for _, name := range a.late {
		late[name] = true
	}
	return c.assemble(r, late, a.until, a.clock)
}

// serverClock translates the server's time: it was ms when it was at here, or later.
type serverClock struct {
	at time.Time
	ms int64
}

// local returns when it is t by the server's clock, never too late.
func (c serverClock) local(t time.Time) time.Time {
	return c.at.Add(time.Duration(t.UnixMilli()-c.ms) * time.Millisecond)
}

// endPredictions takes the predictions that are over out of the holders, and returns when
// the next one ends, or until if that is earlier.
func (c serverClock) endPredictions(holders []store.Holder, until time.Time) ([]store.Holder, time.Time) {
	now := time.Now()
	kept := slices.DeleteFunc(holders, func(h store.Holder) bool {
		if h.Tier != store.Predicted {
			return false
		}
		end := c.local(h.Until)
		if !end.After(now) {
			return true
		}
		if until.IsZero() || end.Before(until) {
			until = end
		}
		return false
	})
	return kept, until
}

// assemble is made, of what the briefing says of leases.
func (c *Cache) assemble(r roster, late map[string]bool, until time.Time, clock serverClock) *Snapshot {
	n := 0
	for _, m := range r.members {
		n += len(m.holders) + 1
	}
	pods, holders := make([]store.Pod, 0, len(r.members)), make([]store.Holder, 0, n)
	for _, m := range r.members {
		if !late[m.name] {
			pods, holders = append(pods, m.pod), append(holders, m.holders...)
		}
	}
	holders, until = clock.endPredictions(holders, until)
	ids, extra := c.local(r, late)
	owners, more := c.newOwners(r, late)
	return &Snapshot{
		loaded: true, roster: r, late: late, clock: clock, owners: owners, open: openModels(r.models),
		Registry: store.NewRegistry(r.epoch, pods, append(append(holders, extra...), more...), r.models, until),
		texts:    sync.OnceValue(func() texts { return newTexts(r, late, ids) }),
	}
}

// member reads a pod; nil is one that cannot be read. Of base it takes what is
// written as it was.
func (c *Cache) member(name, text, copied string, base *Snapshot) *member {
	var old *member
	if at, ok := base.roster.find(name); ok {
		old = base.roster.members[at]
		if old.text == text && old.copy == copied {
			return old
		}
	}
	m := &member{name: name, text: text, copy: copied}
	if old != nil && old.text == text {
		m.pod = old.pod
	} else {
		err := json.Unmarshal([]byte(text), &m.pod)
		if err == nil && m.pod.Name != name {
			err = fmt.Errorf("it is that of %q", redisx.Clip(m.pod.Name))
		}
		if err != nil {
			c.space.Unreadable(fmt.Sprintf("the registration of pod %q", name), text, err)
			return nil
		}
	}
	var err error
	if m.born, m.holders, err = parseCopy(name, copied); err != nil {
		c.space.Unreadable(fmt.Sprintf("a part of the holders of pod %q", name), copied, err)
	}
	return m
}

// parseCopy reads a pod's entry in gen: "born field id field id ...". With an
// error it returns what can be read.
func parseCopy(pod, text string) (born uint64, holders []store.Holder, err error) {
	if text == "" {
		return 0, nil, nil
	}
	first, rest, _ := strings.Cut(text, " ")
	if born, err = strconv.ParseUint(first, 10, 64); err != nil {
		return 0, nil, fmt.Errorf("%q begins with no number", redisx.Clip(text))
	}
	reuse, gens := map[int]store.Reuse{}, map[int]store.Generation{}
	for rest != "" {
		var field, id string
		field, rest, _ = strings.Cut(rest, " ")
		id, rest, _ = strings.Cut(rest, " ")
		rankText, tierText, isHolder := strings.Cut(field, "/")
		if !isHolder {
			rank, wrongRank := strconv.Atoi(field)
			gen, wrong := strconv.ParseUint(id, 10, 53)
			if wrongRank != nil || wrong != nil {
				err = fmt.Errorf("%q is no generation of rank %q", redisx.Clip(id), redisx.Clip(field))
				continue
			}
			gens[rank] = store.Generation(gen)
			continue
		}
		if tierText == reuseField {
			if !noteReuse(reuse, rankText, id) {
				err = fmt.Errorf("%q has no meaning as %q", redisx.Clip(id), redisx.Clip(field))
			}
			continue
		}
		n, wrong := strconv.ParseUint(id, 10, 32)
		rank, wrongRank := strconv.Atoi(rankText)
		tier, until, wrongTier := keyspace.ParseTierText(tierText)
		if wrong != nil || n == 0 || wrongRank != nil || rank < 0 || rank >= store.MaxRanks || wrongTier != nil {
			err = fmt.Errorf("%q is no holder with an id of %q", redisx.Clip(field), redisx.Clip(id))
			continue
		}
		holders = append(holders, store.Holder{ID: store.HolderID(n), Pod: pod, Rank: rank, Tier: tier, Until: until})
	}
	for i := range holders {
		holders[i].Reuse, holders[i].Generation = reuse[holders[i].Rank], gens[holders[i].Rank]
	}
	slices.SortFunc(holders, func(a, b store.Holder) int {
		return cmp.Or(a.Rank-b.Rank, int(a.Tier)-int(b.Tier), a.Until.Compare(b.Until))
	})
	return born, holders, err
}

// readMeta checks the schema and returns the models. An index that was never written to has neither.
func (c *Cache) readMeta(meta map[string]string) (map[string]store.ModelInfo, error) {
	models := map[string]store.ModelInfo{}
	if len(meta) == 0 {
		return models, nil
	}
	if s, p := meta["schema"], meta["partitions"]; s != strconv.Itoa(keyspace.Schema) || p != strconv.Itoa(len(keyspace.Tags)) {
		return nil, keyspace.SchemaError(strconv.Quote(redisx.Clip(s)), strconv.Quote(redisx.Clip(p)))
	}
	for field, text := range meta {
		name, ok := strings.CutPrefix(field, keyspace.ModelField)
		if !ok {
			continue
		}
		m, err := ParseModel(name, text)
		if err != nil {
			c.space.Unreadable(fmt.Sprintf("what is set for model %q (%s takes it away)", name, c.space.Names.Unfix(name)), text, err)
			continue
		}
		models[name] = m
	}
	return models, nil
}

// ModelSettings is the JSON form of a model in kva{reg}:meta.
type ModelSettings struct {
	BlockSize    int    `json:"block_size"`
	Scheme       string `json:"scheme"`
	Unregistered bool   `json:"unregistered,omitempty"`
}

// ParseModel reads it back. An error is store.ErrRefused.
func ParseModel(name, text string) (store.ModelInfo, error) {
	var s ModelSettings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return store.ModelInfo{}, fmt.Errorf("%w: what Redis has of model %s: %w", store.ErrRefused, name, err)
	}
	m := store.ModelInfo{Name: name, BlockSize: s.BlockSize, Scheme: s.Scheme, Unregistered: s.Unregistered}
	if err := m.Validate(); err != nil {
		// Not ErrInvalid: it is nothing that the caller has said.
		return store.ModelInfo{}, fmt.Errorf("%w: what Redis has of model %s: %s", store.ErrRefused, name, err.Error())
	}
	return m, nil
}

// Late asks which pods' leases have run out, by the server's time.
func (c *Cache) Late(ctx context.Context) ([]string, error) {
	b, err := c.ask(ctx, c.Current().roster.epoch)
	return b.late, err
}
