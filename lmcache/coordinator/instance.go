package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/filing"
	"github.com/kvatlas/kvatlas/store"
)

// Kinds of marks: the incarnation + 1, and the number of the last batch.
const (
	markIncarnation = 1
	markSeq         = 2
)

// instance is one of LMCache's servers.
type instance struct {
	c  *Coordinator
	id string

	mu sync.Mutex // protects all below; it is held over calls of the index
	// known says that the cursor is what was written last, as far as this process knows.
	known       bool
	incarnation uint64
	seq         uint64
	// suspect says why deletions may have been lost, "" when they have not.
	suspect string
	workers map[workerID]*filing.Worker
	told    string // why it is unmapped
	full    bool   // that there is no room for its workers was told
	renewed time.Time

	held atomic.Int32 // len(workers), for others to read

	memberMu sync.Mutex // protects member and heard
	member   member
	heard    time.Time
}

// workerID is a worker of an instance for one of its pods.
type workerID struct {
	target filing.Target
	worker int
}

// summary is what has become of batches.
type summary struct {
	Applied    int `json:"applied"`
	Duplicates int `json:"duplicates"`
	Stale      int `json:"stale"`
}

// ingest takes in batches of the instance, in order. All that are applied are written in
// one step.
func (in *instance) ingest(ctx context.Context, ip string, list []batch) (s summary, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for try := 0; ; try++ {
		if s, err = in.write(ctx, ip, list); !filing.Final(err) || try == 2 {
			return s, err
		}
		// Another replica has taken it over, or the index has lost it. It is heard here.
		in.known = false
	}
}

// write is one try of ingest.
func (in *instance) write(ctx context.Context, ip string, list []batch) (s summary, err error) {
	c := in.c
	reg, err := c.registry(ctx)
	if err != nil {
		return s, err
	}
	targets, err := c.config.Pods.Find(reg, in.id, in.ip(ip))
	if errors.Is(err, filing.ErrUnmapped) {
		// It is told that all is well: it could do nothing about it.
		in.unmapped(err)
		for i := range list {
			c.count.unplaced.Add(uint64(len(list[i].Entries)))
		}
		in.known = false
		return summary{Applied: len(list)}, nil
	} else if err != nil {
		return s, err
	}
	in.told = ""
	loaded := !in.known
	if loaded {
		if err := in.load(ctx, reg, targets); err != nil {
			return s, err
		}
	}
	next := cursor{in.incarnation, in.seq}
	if !loaded && next.incarnation != 0 && holed(next, list) {
		// Another replica may have what seems to be missing.
		if err := in.load(ctx, reg, targets); err != nil {
			return s, err
		}
		next = cursor{in.incarnation, in.seq}
	}
	var count tally
	changes := map[workerID]*filing.Ops{}
	clears := map[store.Tier]bool{}
	suspect := in.suspect
	for i := range list {
		b := &list[i]
		switch {
		case b.Incarnation+1 < next.incarnation:
			s.Stale++
			continue
		case b.Incarnation+1 > next.incarnation:
			if next.incarnation != 0 {
				clears[store.CPU] = true
				dropAdds(changes, store.CPU)
			}
			if next.incarnation != 0 && b.Seq != 1 {
				suspect = fmt.Sprintf("the first batch of a new incarnation is number %d", b.Seq)
			}
			next = cursor{b.Incarnation + 1, 0}
			if told := c.config.Observer.Began; told != nil {
				told(in.id, b.Incarnation)
			}
		case b.Seq <= next.seq:
			s.Duplicates++
			continue
		case b.Seq != next.seq+1:
			suspect = fmt.Sprintf("batch %d after %d", b.Seq, next.seq)
		}
		if suspect != "" {
			count.gaps++
			if told := c.config.Observer.Lost; told != nil {
				told(in.id, suspect)
			}
			// All of it ends, with what came before in this body.
			clears = map[store.Tier]bool{store.AllTiers: true}
			clear(changes)
			suspect = ""
		}
		next.seq = b.Seq
		s.Applied++
		in.collect(b, targets, changes, &count)
	}
	if s.Applied == 0 {
		return s, in.renew(ctx)
	}
	// When this fails LMCache drops the batches, and the next one has a hole before it. One
	// that is sent again is written anew.
	if err := in.apply(ctx, next, clears, changes); err != nil {
		return summary{}, err
	}
	c.count.add(count)
	in.suspect = ""
	in.incarnation, in.seq = next.incarnation, next.seq
	return s, in.renew(ctx)
}

// cursor is a place in the batches of an instance; its incarnation is one higher than
// LMCache's, 0 is none.
type cursor struct{ incarnation, seq uint64 }

// holed tells whether the batches leave a hole behind the cursor, or in themselves.
func holed(at cursor, list []batch) bool {
	for i := range list {
		b := &list[i]
		switch {
		case b.Incarnation+1 < at.incarnation || b.Incarnation+1 == at.incarnation && b.Seq <= at.seq:
			continue
		case b.Incarnation+1 > at.incarnation && b.Seq != 1, b.Incarnation+1 == at.incarnation && b.Seq != at.seq+1:
			return true
		}
		at = cursor{b.Incarnation + 1, b.Seq}
	}
	return false
}

// tally counts what is counted once it is written.
type tally struct{ stored, deleted, skipped, foreign, gaps uint64 }

// dropAdds takes changes of a tier back.
func dropAdds(changes map[workerID]*filing.Ops, tier store.Tier) {
	for _, o := range changes {
		kept := o.List[:0]
		for _, op := range o.List {
			if op.Tier != tier {
				kept = append(kept, op)
			}
		}
		o.List = kept
	}
}

// collect adds the changes of a batch.
func (in *instance) collect(b *batch, targets []filing.Target, changes map[workerID]*filing.Ops, count *tally) {
	var kind store.OpKind
	switch b.Type {
	case "store":
		kind = store.Add
	case "delete":
		kind = store.Remove
	default: // access, config: nothing changes place
		return
	}
	tier := b.tier()
	for i := range b.Entries {
		k := &b.Entries[i]
		if k.Salt != "" || k.Group != 0 {
			count.skipped++
			continue
		}
		served := false
		for _, t := range targets {
			if t.Model != k.Model {
				continue
			}
			served = true
			id := workerID{t, k.Rank.Rank()}
			w := in.workers[id]
			if w == nil {
				if w = in.join(id, len(targets) > 1, false); w == nil {
					count.skipped++
					continue
				}
			}
			w.Workers = max(w.Workers, k.Rank.WorldSize())
			o := changes[id]
			if o == nil {
				o = &filing.Ops{}
				changes[id] = o
			}
			if in.c.config.Heard != nil && kind == store.Add {
				in.c.config.Heard(k.hash)
			}
			o.Key(kind, tier, k.hash.ChunkKey())
		}
		switch {
		case !served:
			count.foreign++
		case kind == store.Add:
			count.stored++
		default:
			count.deleted++
		}
	}
}

// join makes a worker of the instance known, nil if there are too many. registered says
// that the index has it already.
func (in *instance) join(id workerID, shared, registered bool) *filing.Worker {
	if len(in.workers) >= in.c.config.MaxWorkers*max(1, len(in.c.config.Pods.Map[in.id])) {
		return nil
	}
	if !in.c.room(in, registered) {
		if told := in.c.config.Observer.Unmapped; !in.full && told != nil {
			told(in.id, fmt.Errorf("coordinator: there is no room for another worker of LMCache beside %d (lmcache-max-workers)", in.c.config.MaxRegistrations))
		}
		in.full = true
		return nil
	}
	in.full = false
	w := filing.NewWorker(in.c.filing(), filing.ID{Instance: in.id, Worker: id.worker}, id.target, shared)
	w.IP = in.ip("")
	in.workers[id] = w
	return w
}

// apply writes for all workers of the instance at once, so that they have one cursor.
func (in *instance) apply(ctx context.Context, next cursor, clears map[store.Tier]bool, changes map[workerID]*filing.Ops) error {
	var workers []*filing.Worker
	var batches []store.Batch
	for id, w := range in.workers {
		incarnation := strconv.FormatUint(next.incarnation-1, 10)
		if !w.Open() || w.Incarnation != incarnation {
			w.Incarnation = incarnation
			if err := in.open(ctx, w); err != nil {
				return err
			}
		}
		var ops filing.Ops
		for tier := range clears {
			ops.Clear(tier)
		}
		if o := changes[id]; o != nil {
			ops.List = append(ops.List, o.List...)
		}
		workers = append(workers, w)
		batches = append(batches, w.Batch(ops.List, filing.Mark{Kind: markIncarnation, Value: next.incarnation}, filing.Mark{Kind: markSeq, Value: next.seq}))
	}
	if len(workers) == 0 {
		return nil
	}
	return filing.Apply(ctx, in.c.filing(), workers, batches)
}

// open makes sure that a worker can be written for: a new one begins.
func (in *instance) open(ctx context.Context, w *filing.Worker) error {
	if w.Open() {
		_, err := w.Renew(ctx) // its incarnation has changed
		return err
	}
	return w.Begin(ctx)
}

// load takes over what is registered of the instance, and finds out how far it was
// written.
func (in *instance) load(ctx context.Context, reg *store.Registry, targets []filing.Target) error {
	in.workers = map[workerID]*filing.Worker{}
	in.held.Store(0)
	in.incarnation, in.seq, in.suspect = 0, 0, ""
	first := true
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.PartOf == nil || p.Labels[filing.LabelInstance] != in.id {
			continue
		}
		id := workerID{filing.Target{Pod: p.PartOf.Pod, Rank: p.PartOf.Rank, Model: p.Model}, p.PartOf.Worker}
		w := in.join(id, len(targets) > 1, true)
		if w == nil {
			continue
		}
		w.Workers, w.Incarnation = p.PartOf.Workers, p.Labels[filing.LabelIncarnation]
		marks, took, err := w.TakeOver(ctx, markIncarnation, markSeq)
		if err != nil {
			return err
		}
		at := cursor{marks[0], marks[1]}
		if !took || !first && at != (cursor{in.incarnation, in.seq}) {
			in.suspect = "its workers were not written alike"
		}
		if at.incarnation > in.incarnation || at.incarnation == in.incarnation && at.seq > in.seq {
			in.incarnation, in.seq = at.incarnation, at.seq
		}
		first = false
	}
	if !first {
		in.c.count.tookOver.Add(1)
	}
	in.known = true
	return nil
}

// renew keeps the registrations of the instance alive.
func (in *instance) renew(ctx context.Context) error {
	if time.Since(in.renewed) < in.c.config.Lease/3 {
		return nil
	}
	for _, w := range in.workers {
		if !w.Open() {
			continue
		}
		created, err := w.Renew(ctx)
		if err != nil {
			return err
		}
		if created {
			w.Shut()
			in.known = false
		}
	}
	in.renewed = time.Now()
	return nil
}

func (in *instance) unmapped(err error) {
	if why := err.Error(); why != in.told {
		in.told = why
		if told := in.c.config.Observer.Unmapped; told != nil {
			told(in.id, err)
		}
	}
}

// ip is where the instance is, as it has told, or else where it speaks from.
func (in *instance) ip(from string) string {
	in.memberMu.Lock()
	defer in.memberMu.Unlock()
	if in.member.IP != "" {
		return in.member.IP
	}
	if from != "" {
		in.member.from = from
	}
	return in.member.from
}

// retire ends the registrations of the instance.
func (in *instance) retire(ctx context.Context) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	reg, err := in.c.registry(ctx)
	if err != nil {
		return err
	}
	in.known = false
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.PartOf != nil && p.Labels[filing.LabelInstance] == in.id {
			if _, err := in.c.config.Index.Retire(ctx, p.Name); err != nil {
				return err
			}
		}
	}
	clear(in.workers)
	in.held.Store(0)
	return nil
}

// beat keeps alive what the index has of the instance.
func (in *instance) beat(ctx context.Context) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.known && len(in.workers) > 0 {
		return in.renew(ctx)
	}
	if time.Since(in.renewed) < in.c.config.Lease/3 {
		return nil
	}
	// Its events go to another replica, which may not hear its heartbeats.
	reg, err := in.c.registry(ctx)
	if err != nil {
		return err
	}
	for i := range reg.Pods {
		if p := reg.Pods[i]; p.PartOf != nil && p.Labels[filing.LabelInstance] == in.id {
			if _, err := in.c.config.Index.Register(ctx, p); err != nil {
				return err
			}
		}
	}
	in.renewed = time.Now()
	return nil
}

// member is what an instance tells of itself.
type member struct {
	ID         string            `json:"instance_id"`
	IP         string            `json:"ip"`
	Port       int               `json:"http_port"`
	Registered float64           `json:"registration_time"`
	Metadata   map[string]string `json:"metadata"`
	P2P        string            `json:"p2p_advertised_url"`
	MQPort     int               `json:"mq_port"`

	from string // where it speaks from
}

func (m *member) clone() member {
	c := *m
	c.Metadata = maps.Clone(m.Metadata)
	return c
}

// read reads the body of POST /instances.
func (m *member) read(t *text) error {
	return t.object(func(name string) error {
		switch name {
		case "instance_id":
			return set(&m.ID, t.string)
		case "ip":
			return set(&m.IP, t.string)
		case "http_port":
			return number(t, &m.Port, 65535)
		case "p2p_advertised_url":
			return set(&m.P2P, t.string)
		case "mq_port":
			return number(t, &m.MQPort, 65535)
		case "metadata":
			m.Metadata = map[string]string{}
			return t.object(func(field string) error {
				v, err := t.string()
				if err != nil {
					return err
				}
				if len(field) > maxLabel || len(v) > maxLabel || len(m.Metadata) == store.MaxLabels {
					return &fault{status: http.StatusUnprocessableEntity, why: fmt.Sprintf("is too much: metadata can have %d fields, their names and values %d bytes each", store.MaxLabels, maxLabel)}
				}
				m.Metadata[field] = v
				return nil
			})
		}
		return nil
	})
}

// maxLabel is the longest name and value of metadata in bytes, as of a pod's labels.
const maxLabel = 512

// batch is one of a body of POST /events. Tokens and sizes are left out.
type batch struct {
	Instance    string
	Incarnation uint64
	Seq         uint64
	Type        string
	Tier        string
	Shared      bool
	Entries     []objectKey
}

// objectKey is LMCache's EncodedObjectKey.
type objectKey struct {
	HashHex string         `json:"chunk_hash_hex"` // not kept of events
	Model   string         `json:"model_name"`
	Rank    lmcache.KVRank `json:"kv_rank"`
	Group   uint32         `json:"object_group_id"`
	Salt    string         `json:"cache_salt"`

	hash lmcache.Hash
}

// readBatches reads the body of POST /events, and refuses it at the first batch or entry
// that is wrong or too much.
func (c *Coordinator) readBatches(t *text) (list []batch, err error) {
	there, room := false, c.config.MaxEntries
	err = t.object(func(name string) error {
		if name != "batches" {
			return nil
		}
		there, list = true, nil
		return t.list(c.config.MaxBatches, func() error {
			var b batch
			err := b.read(t, &room)
			if err == nil {
				err = b.check()
			}
			list = append(list, b)
			return err
		})
	})
	if err == nil && !there {
		err = &fault{http.StatusUnprocessableEntity, "batches", "is missing, it must be a list"}
	}
	return list, err
}

// read reads a batch; room is how many entries there may be, which is lessened.
func (b *batch) read(t *text, room *int) error {
	model := ""
	return t.object(func(name string) error {
		switch name {
		case "instance_id":
			return set(&b.Instance, t.string)
		case "incarnation":
			return number(t, &b.Incarnation, store.MaxSequence-1)
		case "seq":
			return number(t, &b.Seq, store.MaxSequence)
		case "event_type":
			return set(&b.Type, t.string)
		case "tier":
			return set(&b.Tier, t.string)
		case "shared":
			return set(&b.Shared, t.bool)
		case "entries":
			b.Entries = nil
			return t.list(*room, func() error {
				*room--
				var k objectKey
				err := t.object(func(name string) error {
					if name == "key" {
						return k.read(t)
					}
					return nil
				})
				if err == nil {
					err = k.check()
				}
				if k.HashHex = ""; k.Model == model { // one copy is enough
					k.Model = model
				}
				model = k.Model
				b.Entries = append(b.Entries, k)
				return err
			})
		}
		return nil
	})
}

// read reads a key.
func (k *objectKey) read(t *text) error {
	return t.object(func(name string) error {
		switch name {
		case "chunk_hash_hex":
			return set(&k.HashHex, t.string)
		case "model_name":
			return set(&k.Model, t.string)
		case "kv_rank":
			return number(t, &k.Rank, math.MaxUint32)
		case "object_group_id":
			return number(t, &k.Group, math.MaxUint32)
		case "cache_salt":
			return set(&k.Salt, t.string)
		}
		return nil
	})
}

// check says what is wrong with a key, and reads its hash.
func (k *objectKey) check() error {
	var err error
	if k.hash, err = lmcache.ParseHash(k.HashHex); err != nil {
		return err
	}
	return lmcache.ObjectKey{Model: k.Model, Rank: k.Rank, Group: k.Group, Hash: k.hash, Salt: k.Salt}.Validate()
}

// check says what is wrong with a batch, but for its entries.
func (b *batch) check() error {
	if err := (filing.ID{Instance: b.Instance}).Validate(); err != nil {
		return err
	}
	switch b.Type {
	case "store", "delete", "access", "config":
	default:
		return fmt.Errorf("event_type %.40q is none of store, delete, access, config", b.Type)
	}
	if b.Tier != "l1" && b.Tier != "l2" {
		return fmt.Errorf("tier %.40q is neither l1 nor l2", b.Tier)
	}
	if b.Seq < 1 || b.Seq > store.MaxSequence || b.Incarnation >= store.MaxSequence {
		return fmt.Errorf("seq is %d, it can be 1 to %d, and incarnation %d", b.Seq, uint64(store.MaxSequence), b.Incarnation)
	}
	return nil
}

// tier is the index's.
func (b *batch) tier() store.Tier {
	switch {
	case b.Tier == "l1":
		return store.CPU
	case b.Shared:
		return store.Shared
	}
	return store.Disk
}
