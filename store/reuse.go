package store

import (
	"fmt"
	"strconv"
	"strings"
)

// Reuse says what the engine of a generation can reuse of the blocks that it holds.
//
// An engine resumes only where one of its own blocks ends. Where it has window groups
// beside full attention it also needs, in each of them, the window before that place.
type Reuse struct {
	// Block is the engine's block size in tokens; 0 is not known.
	Block int
	// Window is how many tokens before the place the window groups must hold; 0 means
	// that the engine has no such groups.
	Window int
}

// MaxWindow is the longest window in tokens.
const MaxWindow = 1 << 24

// String returns both numbers, as in "16,128".
func (r Reuse) String() string { return strconv.Itoa(r.Block) + "," + strconv.Itoa(r.Window) }

// ParseReuse reads what String has written.
func ParseReuse(s string) (r Reuse, err error) {
	block, window, _ := strings.Cut(s, ",")
	if r.Block, err = strconv.Atoi(block); err == nil {
		r.Window, err = strconv.Atoi(window)
	}
	if err != nil {
		return Reuse{}, fmt.Errorf("%w: %.40q is not a block size and a window in tokens", ErrInvalid, s)
	}
	return r, r.Validate()
}

// Validate returns ErrInvalid, with the reason, when no engine can be like this.
func (r Reuse) Validate() error {
	if r.Block < 0 || r.Block > MaxBlockSize {
		return fmt.Errorf("%w: the engine's block size is %d, it can be 0 to %d", ErrInvalid, r.Block, MaxBlockSize)
	}
	if r.Window < 0 || r.Window > MaxWindow || r.Window > 0 && r.Block == 0 {
		return fmt.Errorf("%w: the engine's window is %d tokens with blocks of %d, it can be 0 to %d with a block size", ErrInvalid, r.Window, r.Block, MaxWindow)
	}
	return nil
}

// Reuse returns what the engine of a slot can reuse. Where its events have not told its
// block size, that is the registration's.
func (r *Registry) Reuse(slot int) Reuse {
	var u Reuse
	if r.reuse != nil {
		u = r.reuse[slot]
	}
	if u.Block == 0 {
		u.Block = r.Pods[r.Slots[slot].Pod].BlockSize
	}
	return u
}

// HasLimited reports whether the engine of any slot cannot reuse every index block that it
// holds, where index blocks have blockSize tokens.
func (r *Registry) HasLimited(blockSize int) bool {
	return r.windows || r.largestBlock > blockSize
}

// IsLimited reports whether the engine of a slot cannot reuse every index block that it
// holds: it has windows, or larger blocks.
func (r *Registry) IsLimited(slot, blockSize int) bool {
	if !r.HasLimited(blockSize) {
		return false
	}
	u := r.Reuse(slot)
	return u.Window > 0 || u.Block > blockSize
}

// setReuse notes what is known of the last slot so far.
func (r *Registry) setReuse(u Reuse) {
	if u == (Reuse{}) {
		return
	}
	r.reuse = append(r.reuse, make([]Reuse, len(r.Slots)-len(r.reuse))...)
	r.reuse[len(r.Slots)-1] = u
}

// findLimits finds what HasLimited asks for. The slots are complete by then.
func (r *Registry) findLimits() {
	if r.reuse != nil {
		r.reuse = append(r.reuse, make([]Reuse, len(r.Slots)-len(r.reuse))...)
	}
	for slot := range r.Slots {
		u := r.Reuse(slot)
		r.largestBlock = max(r.largestBlock, u.Block)
		r.windows = r.windows || u.Window > 0
	}
}
