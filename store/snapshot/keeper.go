package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/defaults"
	"github.com/kvatlas/kvatlas/store"
)

// KeeperConfig is what a Keeper is made of.
type KeeperConfig struct {
	// Index is the index to keep. Required.
	Index store.Index
	// File is where the snapshot is; its folder must be there. With a name that
	// ends with .gz it is compressed. Required.
	File string
	// Changes is how many blocks must have changed since the last snapshot before
	// a new one is written. Each key of an add or a removal counts, whether or not
	// it was news. A pod that is retired or cleared counts as enough. Default
	// 10,000.
	Changes int64
	// Interval is how often to look. Default 1 minute, at least 10 ms.
	Interval time.Duration
	// MaxAge is how old a snapshot may be that is restored; 0 is any age.
	MaxAge time.Duration
	// Observer receives what happens.
	Observer Observer
}

// Observer receives a Keeper's reports. Any func may be nil. They are called from
// the goroutine where it happens.
type Observer struct {
	// Saved receives the result of each try to write the snapshot.
	Saved func(s Summary, took time.Duration, err error)
	// Restored receives the result of the restore, with an error that says where a file is
	// now that could not be read.
	Restored func(r Report, took time.Duration, err error)
}

// Keeper keeps a snapshot of an index: it restores it, and writes it anew when
// enough has changed, and when it is closed. All others use it as the index, since it counts the changes on
// their way. Writes are refused with store.ErrUnavailable until Restore has returned: what they take away
// could come back otherwise.
type Keeper struct {
	store.Index
	cfg KeeperConfig

	restored atomic.Bool
	changes  atomic.Int64 // since the last snapshot

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	once    sync.Once
	closed  error
}

// NewKeeper returns a Keeper; Restore is to be called next.
func NewKeeper(cfg KeeperConfig) (*Keeper, error) {
	defaults.Funcs(&cfg.Observer)
	cfg.Changes, cfg.Interval = cmp.Or(cfg.Changes, 10_000), cmp.Or(cfg.Interval, time.Minute)
	switch {
	case cfg.Index == nil || cfg.File == "":
		return nil, errors.New("snapshot: KeeperConfig.Index and File are required")
	case cfg.Changes < 1:
		return nil, fmt.Errorf("snapshot: KeeperConfig.Changes is %d, the least is 1", cfg.Changes)
	case cfg.Interval < 10*time.Millisecond:
		return nil, fmt.Errorf("snapshot: KeeperConfig.Interval is %v, the least is 10ms", cfg.Interval)
	case cfg.MaxAge < 0:
		return nil, fmt.Errorf("snapshot: KeeperConfig.MaxAge is %v", cfg.MaxAge)
	}
	dir := filepath.Dir(cfg.File)
	if s, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("snapshot: the folder of the file: %w", err)
	} else if !s.IsDir() {
		return nil, fmt.Errorf("snapshot: %s, where the file is to be, is no folder", dir)
	}
	k := &Keeper{Index: cfg.Index, cfg: cfg}
	k.life, k.end = context.WithCancel(context.Background())
	return k, nil
}

// Restore loads the file, if there is one, and begins to keep it up to date. It
// is called once.
//
// The file is read twice: first to see that all of it is right. A file that is
// not, or that is older than MaxAge or of another version, is renamed, and the
// index is as it was. The Observer receives the error, which is no error here,
// since the index works without the file. An error is what an operator must
// look at: a file that cannot be read or renamed.
func (k *Keeper) Restore(ctx context.Context) error {
	began := time.Now()
	report, err := k.load(ctx)
	var aside error
	if refused(err) {
		aside, err = err, nil
		away := fmt.Sprintf("%s.refused-%s", k.cfg.File, began.UTC().Format("20060102T150405Z"))
		if moved := os.Rename(k.cfg.File, away); moved != nil {
			err = fmt.Errorf("snapshot: %w; and it cannot be put aside: %w", aside, moved)
		}
		aside = fmt.Errorf("%s cannot be restored and is %s now: %w", k.cfg.File, away, aside)
	}
	k.cfg.Observer.Restored(report, time.Since(began), errors.Join(aside, err))
	if err != nil {
		return err
	}
	k.restored.Store(true)
	k.running.Go(k.keep)
	return nil
}

// errOld says that a snapshot is older than MaxAge.
var errOld = errors.New("snapshot: the file is too old")

func refused(err error) bool {
	return slices.ContainsFunc([]error{ErrCorrupt, ErrCut, ErrVersion, errOld, store.ErrModelConflict, store.ErrFull}, func(is error) bool { return errors.Is(err, is) })
}

func (k *Keeper) load(ctx context.Context) (Report, error) {
	f, err := os.Open(k.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return Report{}, nil
	}
	if err != nil {
		return Report{}, fmt.Errorf("snapshot: %w", err)
	}
	defer f.Close()
	r, err := Decompress(withContext{ctx, f})
	if err != nil {
		return Report{}, err
	}
	if err := k.check(r); err != nil {
		return Report{}, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Report{}, fmt.Errorf("snapshot: %w", err)
	}
	if r, err = Decompress(withContext{ctx, f}); err != nil {
		return Report{}, err
	}
	return Restore(ctx, r, k.Index, Merge)
}

// check reads the file to its end.
func (k *Keeper) check(r io.Reader) error {
	d := NewReader(r)
	for {
		l, err := d.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if l.Kind != KindHeader || k.cfg.MaxAge == 0 {
			continue
		}
		if age := time.Since(l.Header.TrueAt.Time); age > k.cfg.MaxAge {
			return fmt.Errorf("%w: it is %v old, the limit is %v", errOld, age.Round(time.Second), k.cfg.MaxAge)
		}
	}
}

// withContext is a reader that ends with a context.
type withContext struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (r withContext) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// keep writes the snapshot when it is due.
func (k *Keeper) keep() {
	for sleep(k.life, k.cfg.Interval) == nil {
		if k.changes.Load() >= k.cfg.Changes {
			_ = k.save(k.life) // the observer is told, and the next round tries again
		}
	}
}

// save writes the snapshot.
func (k *Keeper) save(ctx context.Context) error {
	began := time.Now()
	// What changes while it is written counts for the next one.
	changes := k.changes.Swap(0)
	s, err := Save(ctx, k.cfg.File, k.Index, Options{})
	if err != nil {
		k.changes.Add(changes)
	}
	if !errors.Is(err, context.Canceled) { // Close tries again
		k.cfg.Observer.Saved(s, time.Since(began), err)
	}
	return err
}

// Close writes the last snapshot, if anything has changed since the one before,
// and closes the index.
func (k *Keeper) Close() error {
	k.once.Do(func() {
		k.end()
		k.running.Wait()
		if k.restored.Load() && k.changes.Load() > 0 {
			k.closed = k.save(context.Background())
		}
		k.closed = errors.Join(k.closed, k.Index.Close())
	})
	return k.closed
}

// begin refuses what would be undone by the restore.
func (k *Keeper) begin() error {
	if k.restored.Load() {
		return nil
	}
	return fmt.Errorf("%w: the snapshot is being restored", store.ErrUnavailable)
}

// changed counts n changed blocks; a change of a life is enough for a snapshot.
func (k *Keeper) changed(n int, life bool) {
	add := int64(n)
	if life {
		add = k.cfg.Changes
	}
	if add > 0 {
		k.changes.Add(add)
	}
}

// Apply implements store.Index.
func (k *Keeper) Apply(ctx context.Context, batches ...store.Batch) error {
	if err := k.begin(); err != nil {
		return err
	}
	n, life := 1, false
	for i := range batches {
		for j := range batches[i].Ops {
			n += len(batches[i].Ops[j].Keys)
			life = life || batches[i].Ops[j].Kind == store.Clear
		}
	}
	err := k.Index.Apply(ctx, batches...)
	k.changed(n, life) // also after an error, since a part may have been applied
	return err
}

// Register implements store.Index.
func (k *Keeper) Register(ctx context.Context, p store.Pod) (created bool, err error) {
	if err := k.begin(); err != nil {
		return false, err
	}
	created, err = k.Index.Register(ctx, p)
	if created {
		k.changed(1, false)
	}
	return created, err
}

// Retire implements store.Index.
func (k *Keeper) Retire(ctx context.Context, pod string) (known bool, err error) {
	if err := k.begin(); err != nil {
		return false, err
	}
	known, err = k.Index.Retire(ctx, pod)
	k.changed(0, known)
	return known, err
}

// Begin implements store.Index.
func (k *Keeper) Begin(ctx context.Context, pod string, rank int, fence uint64) (store.Generation, error) {
	if err := k.begin(); err != nil {
		return 0, err
	}
	gen, err := k.Index.Begin(ctx, pod, rank, fence)
	k.changed(0, err == nil)
	return gen, err
}

// TakeOver implements store.Index.
func (k *Keeper) TakeOver(ctx context.Context, gen store.Generation, fence uint64) (watermark uint64, err error) {
	if err := k.begin(); err != nil {
		return 0, err
	}
	return k.Index.TakeOver(ctx, gen, fence)
}

// EnsureModel implements store.Index.
func (k *Keeper) EnsureModel(ctx context.Context, want store.ModelInfo) (store.ModelInfo, error) {
	if err := k.begin(); err != nil {
		return store.ModelInfo{}, err
	}
	m, err := k.Index.EnsureModel(ctx, want)
	k.changed(1, false)
	return m, err
}

// Forget implements store.Forgetter.
func (k *Keeper) Forget(ctx context.Context, model string) (known bool, err error) {
	if err := k.begin(); err != nil {
		return false, err
	}
	known, err = k.Index.Forget(ctx, model)
	k.changed(0, known)
	return known, err
}
