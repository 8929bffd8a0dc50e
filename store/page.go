package store

import (
	"context"
	"errors"

	"github.com/kvatlas/kvatlas/blockkey"
)

// ErrCursor says that a cursor is not this index's: it was cut or changed,
// or it is another index's, or of one that has ended.
var ErrCursor = errors.New("store: the cursor is not of this index")

// MaxPage is the largest page of a walk in blocks.
const MaxPage = 1 << 16

// Block is a block as an index stores it, with its holders.
type Block struct {
	// Key is the block's store key. The model is mixed into it and cannot be
	// told from it.
	Key blockkey.StoreKey
	// Holders are the live holders, ascending; there is one at least. Blocks may
	// share the slice, which is for reading only.
	Holders []HolderID
}

// Page is a part of all blocks of an index.
type Page struct {
	// Registry knows every holder of the page's blocks.
	Registry *Registry
	// Blocks are in no order. There may be none although there are more pages.
	Blocks []Block
	// Next is the cursor of the next page; empty after the last one.
	Next string
}

// Pager walks through the blocks of an index.
//
// A walk begins with the cursor "" and goes on with Page.Next until that is
// empty. It may stop for any time and, where the index outlives the process,
// go on in another one. The index may change while it goes on:
//
//   - A block that some live holder holds during the whole walk is given at
//     least once, with that holder.
//   - A block is never given with a holder that it did not have at some moment
//     of the page's call.
//   - A block may be given more than once. What comes or goes during the walk
//     may be given or not.
type Pager interface {
	// Page returns about limit blocks, or less, from where the cursor stands; 0
	// is a few thousand, MaxPage is the most. An error leaves the cursor good:
	// the same call can be made again. A cursor that is not the index's is
	// ErrCursor.
	Page(ctx context.Context, cursor string, limit int) (Page, error)
}

// UnregisteredSetter is an index that has values that name pods by their addresses.
type UnregisteredSetter interface {
	// SetUnregistered sets ModelInfo.Unregistered of a model to what want has, and returns
	// the settings in force. Where there are none yet it fixes all of them to want. Lookups
	// that begin after it has returned heed it, in all processes.
	SetUnregistered(ctx context.Context, want ModelInfo) (ModelInfo, error)
}

// Forgetter forgets models.
type Forgetter interface {
	// Forget removes the settings of a model, so that the next EnsureModel fixes
	// them anew. Blocks are not touched: a block does not tell its model. known
	// is false when there were none.
	Forget(ctx context.Context, model string) (known bool, err error)
}
