package memory

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// Config bounds an index. The zero Config is valid.
type Config struct {
	// MaxBlocks is the number of blocks that the index holds; what comes beyond
	// evicts. The default for 0 is 16 Mi blocks, which take about 420 MB; the
	// least is 4096.
	MaxBlocks int
	// MaxBytes bounds the memory of blocks and holder sets; sets can take half
	// of it. Writes that run at the same time may together go some kilobytes
	// beyond. The garbage collector's overhead comes on top. 0 is 1 GiB; the
	// least is 1 MiB.
	MaxBytes int64
	// MaxPods, MaxHolders and MaxModels bound the registry: pods, live (pod,
	// rank, tier) triples, and models. Registrations beyond are refused with
	// store.ErrFull. 0 is 10,000 pods, 100,000 holders and 10,000 models.
	MaxPods, MaxHolders, MaxModels int
	// MaxMapEntries bounds the entries of the maps of all generations together,
	// which take about 60 bytes each beside MaxBytes. Beyond it batches that set
	// some are refused with store.ErrFull. The default for 0 is 4 Mi.
	MaxMapEntries int
	// Clock is what leases are measured by. nil is time.Now.
	Clock store.Clock
}

var errConfig = errors.New("memory: invalid config")

// withDefaults fills what is not set and refuses what cannot be.
func (c Config) withDefaults() (Config, error) {
	c.MaxBlocks = cmp.Or(c.MaxBlocks, 16<<20)
	c.MaxBytes = cmp.Or(c.MaxBytes, 1<<30)
	c.MaxPods = cmp.Or(c.MaxPods, 10_000)
	c.MaxHolders = cmp.Or(c.MaxHolders, 100_000)
	c.MaxModels = cmp.Or(c.MaxModels, 10_000)
	c.MaxMapEntries = cmp.Or(c.MaxMapEntries, 4<<20)
	if c.Clock == nil {
		c.Clock = time.Now
	}
	switch {
	case c.MaxBlocks < 4096 || c.MaxBlocks > 1<<36:
		return c, fmt.Errorf("%w: MaxBlocks is %d, it can be 4096 to 2^36", errConfig, c.MaxBlocks)
	case c.MaxBytes < 1<<20:
		return c, fmt.Errorf("%w: MaxBytes is %d, the least is 1 MiB", errConfig, c.MaxBytes)
	case c.MaxPods < 0 || c.MaxHolders < 0 || c.MaxModels < 0 || c.MaxMapEntries < 0:
		return c, fmt.Errorf("%w: MaxPods, MaxHolders, MaxModels or MaxMapEntries is negative", errConfig)
	}
	return c, nil
}
