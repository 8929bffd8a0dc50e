package entries

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
)

// ErrConfig says that a setting cannot be right.
var ErrConfig = errors.New("entries: invalid config")

// Shapes are the shapes that are written, joined by |.
type Shapes uint8

// The shapes.
const (
	// Strings are those of LMCache up to 0.3.6.
	Strings Shapes = 1 << iota
	// Hashes are those of the fork.
	Hashes
)

// Write is a change of an entry.
type Write struct {
	// Name is the key's; Field is of a hash, "" of a string.
	Name, Field string
	// Value is what it is to be or, of a deleted string, what it was.
	Value  string
	Delete bool
}

// Config is what a Writer is made of. Write, Registry and Shapes have no default.
type Config struct {
	// Write makes the changes; what it sets lives for ttl.
	Write func(ctx context.Context, ttl time.Duration, list []Write) error
	// Registry returns the last known registry, which has the addresses of pods.
	Registry func() *store.Registry
	// Shapes are what is written.
	Shapes Shapes
	// Profiles are the names of models in keys and the versions that say how hashes are
	// written, by model. Without one it is the model's own name, and hex.
	Profiles map[string]lmcache.Profile
	// TTL is the time to live, 1 minute, at least 1 s. A third of it passes until it is
	// renewed.
	TTL time.Duration
	// MaxEntries bounds the entries that there are at a time, 262,144, of about 1 KB
	// each here; what is beyond is not written, and counted.
	MaxEntries int
	// Timeout bounds a call of Write, 2 s.
	Timeout time.Duration
	// Failed receives errors of Write, which is tried again. It may be nil.
	Failed func(error)
}

func (c Config) withDefaults() (Config, error) {
	c.TTL, c.MaxEntries, c.Timeout = cmp.Or(c.TTL, time.Minute), cmp.Or(c.MaxEntries, 1<<18), cmp.Or(c.Timeout, 2*time.Second)
	switch {
	case c.Write == nil || c.Registry == nil:
		return c, fmt.Errorf("%w: Write and Registry are needed", ErrConfig)
	case c.Shapes == 0 || c.Shapes > Strings|Hashes:
		return c, fmt.Errorf("%w: shapes %d", ErrConfig, c.Shapes)
	case c.TTL < time.Second:
		return c, fmt.Errorf("%w: TTL is %v, it can be 1s or more", ErrConfig, c.TTL)
	case c.MaxEntries < 1 || c.Timeout < 0:
		return c, fmt.Errorf("%w: MaxEntries is %d and Timeout %v, they must be positive", ErrConfig, c.MaxEntries, c.Timeout)
	}
	return c, nil
}

// Stats are figures of a Writer.
type Stats struct {
	// Entries are there now, or are to be.
	Entries int
	// Written, Deleted and Renewed count changes that have been made.
	Written, Deleted, Renewed uint64
	// Full counts chunks that found no room. Nameless counts those that have no name in
	// a shape or whose hash is not known, Failures calls of Write that failed.
	Full, Nameless, Failures uint64
}

// target is an entry's place.
type target struct{ name, field string }

// entry is what there should be at a target.
type entry struct {
	target
	// values are those of all that want it; the last one's is written. Of a hash's field
	// the time is put behind.
	values []string
	last   string // that was written
	at     *list.Element
	due    time.Time // when it is to be written next; zero is at once
	set    bool      // it may be in Redis
	epoch  uint64    // counts changes, so that a write knows that it is outdated
}

// Writer keeps entries. It is safe for concurrent use.
type Writer struct {
	c    Config
	wake chan struct{}

	mu      sync.Mutex // protects all below
	hashes  *simplelru.LRU[blockkey.Key, lmcache.Hash]
	workers map[string]*worker
	places  map[place]map[blockkey.Key]*chunk
	entries map[target]*entry
	queue   *list.List // of *entry, those that are due first at the front
	chunks  int        // in places
	abandon bool       // what is dropped is left in Redis
	stats   Stats
}

// New returns a Writer, which writes while Run does.
func New(c Config) (*Writer, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	hashes, err := simplelru.NewLRU[blockkey.Key, lmcache.Hash](c.MaxEntries, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &Writer{
		c: c, wake: make(chan struct{}, 1), hashes: hashes, workers: map[string]*worker{}, places: map[place]map[blockkey.Key]*chunk{},
		entries: map[target]*entry{}, queue: list.New(),
	}, nil
}

// Stats returns figures.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	for _, e := range w.entries {
		if len(e.values) > 0 {
			s.Entries++
		}
	}
	return s
}

// Heard tells which hash a chunk's key stands for. It has to be told before the chunk is
// applied to the index.
func (w *Writer) Heard(h lmcache.Hash) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hashes.Add(h.ChunkKey(), h)
}

// want adds a value to an entry; w.mu is held. It returns false when there is no room.
func (w *Writer) want(t target, value string) bool {
	e := w.entries[t]
	if e == nil {
		if len(w.entries) >= w.c.MaxEntries {
			return false
		}
		e = &entry{target: t}
		w.entries[t] = e
	}
	before := e.value()
	if e.values = append(e.values, value); before != value {
		w.now(e)
	}
	return true
}

// drop takes a value from an entry; w.mu is held.
func (w *Writer) drop(t target, value string) {
	e := w.entries[t]
	if e == nil {
		return
	}
	before := e.value()
	for i := len(e.values) - 1; i >= 0; i-- {
		if e.values[i] == value {
			e.values = slices.Delete(e.values, i, i+1)
			break
		}
	}
	switch now := e.value(); {
	case now == before:
	case now == "" && (!e.set || w.abandon):
		w.forget(e)
	default:
		w.now(e)
	}
}

// value is what the entry is to be, "" if it is to go.
func (e *entry) value() string {
	if len(e.values) == 0 {
		return ""
	}
	return e.values[len(e.values)-1]
}

// now makes an entry due.
func (w *Writer) now(e *entry) {
	e.epoch++
	e.due = time.Time{}
	if e.at == nil {
		e.at = w.queue.PushFront(e)
	} else {
		w.queue.MoveToFront(e.at)
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Writer) forget(e *entry) {
	e.epoch++ // a write of it may be under way, and another entry may be made for the target
	if e.at != nil {
		w.queue.Remove(e.at)
		e.at = nil
	}
	delete(w.entries, e.target)
}

// maxWrites is how many changes go into a call of Write.
const maxWrites = 500

// job is a change under way.
type job struct {
	e     *entry
	epoch uint64
	write Write
	renew bool
}

// Run writes until ctx is done. What is in Redis then stays for its time to live.
func (w *Writer) Run(ctx context.Context) {
	rest := time.NewTimer(0)
	defer rest.Stop()
	for ctx.Err() == nil {
		w.silence(time.Now())
		jobs, next := w.take(time.Now())
		wake := w.wake
		rest.Reset(min(max(time.Until(next), 10*time.Millisecond), w.c.TTL/6))
		if len(jobs) > 0 {
			err := w.write(ctx, jobs)
			if err == nil {
				continue
			}
			if w.c.Failed != nil && ctx.Err() == nil {
				w.c.Failed(err)
			}
			wake = nil // whatever comes meanwhile
			rest.Reset(time.Second)
		}
		select {
		case <-ctx.Done():
		case <-rest.C:
		case <-wake:
		}
	}
}

// take returns what is due, and when the next is.
func (w *Writer) take(now time.Time) (jobs []job, next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at := w.queue.Front(); at != nil && len(jobs) < maxWrites; at = at.Next() {
		e, _ := at.Value.(*entry)
		if next = e.due; e.due.After(now) {
			return jobs, next
		}
		value := e.value()
		j := job{e: e, epoch: e.epoch, renew: e.set && !e.due.IsZero(), write: Write{Name: e.name, Field: e.field, Value: value, Delete: value == ""}}
		switch {
		case j.write.Delete:
			j.write.Value = e.last
		case e.field != "":
			j.write.Value += "@" + strconv.FormatFloat(float64(now.UnixMicro())/1e6, 'f', 6, 64)
		}
		if !j.write.Delete {
			e.set, e.last = true, value // it may be so from here on
		}
		jobs = append(jobs, j)
	}
	if next.IsZero() {
		next = now.Add(w.c.TTL)
	}
	return jobs, next
}

// write makes changes.
func (w *Writer) write(ctx context.Context, jobs []job) error {
	writes := make([]Write, len(jobs))
	for i := range jobs {
		writes[i] = jobs[i].write
	}
	within, cancel := context.WithTimeout(ctx, w.c.Timeout)
	defer cancel()
	begun := time.Now()
	err := w.c.Write(within, w.c.TTL, writes)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.stats.Failures++
		return err
	}
	for i := range jobs {
		j := &jobs[i]
		switch {
		case j.write.Delete:
			w.stats.Deleted++
		case j.renew:
			w.stats.Renewed++
		default:
			w.stats.Written++
		}
		if j.e.epoch != j.epoch {
			continue // it has changed since, and is due or forgotten
		}
		if j.write.Delete {
			w.forget(j.e)
			continue
		}
		j.e.due = begun.Add(w.c.TTL / 3)
		w.queue.MoveToBack(j.e.at)
	}
	return nil
}

// endpoint is the host:port of a pod.
func endpoint(p *store.Pod) string {
	a := p.Address
	a = cmp.Or(a, p.Name)
	if _, rest, ok := strings.Cut(a, "://"); ok {
		a, _, _ = strings.Cut(rest, "/")
	}
	if host, port, err := net.SplitHostPort(a); err == nil {
		return net.JoinHostPort(host, port)
	}
	return a
}
