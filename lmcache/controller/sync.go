package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// Limits of a full sync that need no setting.
const (
	// maxBatches is how many batches a full sync can have; LMCache puts 2,000 keys in
	// one.
	maxBatches = 1 << 16
	// maxMissing is how many missing batches are told at a time.
	maxMissing = 1024
)

// fullSync is a full sync that is being gathered. It is protected by worker.mu.
type fullSync struct {
	id       string
	location string
	tier     store.Tier
	total    int // keys that were announced, for which there is room in Config.SyncKeys
	got      map[int]bool
	batches  int
	keys     []blockkey.Key
	// since are the operations that came after the start, in order.
	since []change
	// ended says that the end has come.
	ended bool
	begun time.Time
	heard time.Time
}

// change is an operation on a key.
type change struct {
	kind store.OpKind
	key  blockkey.Key
}

// whole reports whether all batches are there.
func (s *fullSync) whole() bool { return len(s.got) == s.batches }

// missing are batches that have not come.
func (s *fullSync) missing() []int {
	var out []int
	for b := 0; b < s.batches && len(out) < maxMissing; b++ {
		if !s.got[b] {
			out = append(out, b)
		}
	}
	return out
}

// add takes a batch in.
func (s *fullSync) add(batch int, keys []key) error {
	switch {
	case batch < 0 || batch >= s.batches:
		return fmt.Errorf("batch %d of %d", batch, s.batches)
	case s.got[batch]:
		return nil // sent again
	case len(s.keys)+len(keys) > s.total:
		return fmt.Errorf("more keys than the %d that it said", s.total)
	}
	s.got[batch] = true
	s.keys = slices.Grow(s.keys, len(keys))
	for i := range keys {
		s.keys = append(s.keys, keys[i].ChunkKey())
	}
	s.heard = time.Now()
	return nil
}

// startSync handles FullSyncStartMsg: "" or why it is not accepted. It must be called
// before the start is answered, so that no batch can be earlier.
func (w *worker) startSync(m *message) (refusal string) {
	at, known := locationOf(m.Location)
	c := w.c
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sync != nil && w.sync.id == m.SyncID {
		return ""
	}
	switch {
	case w.ended:
		return "the worker has ended; register anew"
	case !known:
		return "the tier of the location is not known"
	case w.unmapped:
		return "no pod is known for the instance"
	case m.Batches < 1 || m.Batches > maxBatches:
		return fmt.Sprintf("batch_count can be 1 to %d", maxBatches)
	}
	w.endSync(false)
	if c.count.syncKeys.Add(int64(m.Total)) > int64(c.config.SyncKeys) {
		c.count.syncKeys.Add(-int64(m.Total))
		return "too many keys in full syncs at the moment"
	}
	now := time.Now()
	w.sync = &fullSync{id: m.SyncID, location: m.Location, tier: locations[at].tier, total: m.Total, batches: m.Batches, got: map[int]bool{}, begun: now, heard: now}
	return ""
}

// endSync forgets the sync; w.mu is held.
func (w *worker) endSync(written bool) {
	if w.sync == nil {
		return
	}
	w.c.count.syncKeys.Add(-int64(w.sync.total))
	if written {
		w.c.count.synced.Add(1)
		w.lastSync = w.sync.id
	} else {
		w.c.count.unsynced.Add(1)
	}
	w.sync = nil
}

// syncBatch handles FullSyncBatchMsg.
func (w *worker) syncBatch(m *message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sync == nil || w.sync.id != m.SyncID {
		return fmt.Errorf("a batch of the full sync %.60q, which is not under way", m.SyncID)
	}
	if err := w.sync.add(m.Batch, m.Keys); err != nil {
		w.endSync(false)
		return err
	}
	if heard := w.c.config.Heard; heard != nil {
		for i := range m.Keys {
			heard(m.Keys[i].Hash)
		}
	}
	return nil
}

// syncEnd handles FullSyncEndMsg.
func (w *worker) syncEnd(m *message) error {
	w.mu.Lock()
	known, written := w.sync != nil && w.sync.id == m.SyncID, w.lastSync == m.SyncID
	w.mu.Unlock()
	switch {
	case known:
		w.put(item{kind: doSyncEnd, syncID: m.SyncID})
	case !written: // else it is sent again
		return fmt.Errorf("the end of the full sync %.60q, which is not under way", m.SyncID)
	}
	return nil
}

// status answers FullSyncStatusMsg. A worker stands still until it may exit the freeze.
// It may as soon as all of its keys are here, or when its sync is not under way.
func (w *worker) status(m *message) reply {
	w.mu.Lock()
	complete, exit := w.lastSync == m.SyncID && m.SyncID != "", true
	var missing []int
	if s := w.sync; s != nil && s.id == m.SyncID {
		complete, exit = false, s.whole() && s.ended
		if !exit {
			missing = s.missing()
		}
	}
	w.mu.Unlock()
	progress := 0.0
	if complete {
		progress = 1
	}
	r := newReply("FullSyncStatusRetMsg", 5).text("sync_id", m.SyncID).yes("is_complete", complete).
		float("global_progress", progress).yes("can_exit_freeze", exit).list("missing_batches", len(missing))
	for _, b := range missing {
		r = r.int(b)
	}
	return r
}

// finishSync writes a full sync whose end has come, if all of it is there.
func (w *worker) finishSync(ctx context.Context, it *item) {
	w.mu.Lock()
	s := w.sync
	if s == nil || s.id != it.syncID { // it has ended meanwhile
		w.mu.Unlock()
		return
	}
	s.ended, s.heard = true, time.Now()
	whole := s.whole()
	w.mu.Unlock()
	if !whole {
		return // its status tells what is missing
	}
	w.flush(ctx)
	// Batches do not change any more: all are there. Only this goroutine appends to since.
	var ops feed.Ops
	ops.Clear(s.tier)
	for i := 0; i < len(s.keys); i += store.MaxOpKeys {
		ops.List = append(ops.List, store.Op{Kind: store.Add, Tier: s.tier, Keys: s.keys[i:min(len(s.keys), i+store.MaxOpKeys)]})
	}
	for _, ch := range s.since {
		ops.Key(ch.kind, s.tier, ch.key)
	}
	if !w.write(ctx, ops.List) {
		return
	}
	w.doubt[s.tier] = doubt{}
	w.mu.Lock()
	if w.sync == s {
		w.endSync(true)
		if !w.wanted.After(s.begun) {
			w.want = ""
		}
	}
	w.mu.Unlock()
	w.c.config.Observer.Synced(w.id, s.location, len(s.keys), time.Since(s.begun))
}
