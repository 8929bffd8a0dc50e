package store

// EntryForm is how an entry says who holds a block.
type EntryForm uint8

// The forms.
const (
	// EntryOwner is a string, the host:port of one pod: SET name host:port. Its
	// holder is rank 0 of the pod, in tier cpu.
	EntryOwner EntryForm = iota + 1
	// EntryOwners is a hash whose fields are host or host:port of the pods: HSET name
	// host meta. Holders are as of EntryOwner.
	EntryOwners
	// EntryPresent is anything: a block's tensors, in a store that all pods of the
	// model read. The value is never read. The holder is Everyone.
	EntryPresent
)

// Entries are entries that another program has written into the server of the index,
// under names of its own. They are read as they are, and never written.
type Entries struct {
	Form EntryForm
	// Names are the names of Redis keys, Parts of them for each block.
	Names []string
	// Parts is how many entries make a block, 0 means 1: who holds it is named by all
	// of them.
	Parts int
}

// Len returns the number of blocks.
func (e *Entries) Len() int { return len(e.Names) / max(1, e.Parts) }
