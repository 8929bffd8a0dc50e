package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrUnavailable says that the index cannot be reached. The caller answers
	// degraded and tries again at its next request.
	ErrUnavailable = errors.New("store: index unavailable")
	// ErrNoMemory says that the index's server has no memory left for what would be
	// written. ErrRefused says that it refuses the call: it may only be read, asks for
	// another user, or has something else under a name. Both are ErrUnavailable too.
	ErrNoMemory = errors.New("store: no memory")
	ErrRefused  = errors.New("store: refused")
	// ErrModelConflict says that a model is already written with another index
	// block size or scheme, which are fixed once written.
	ErrModelConflict = errors.New("store: model is already indexed with other settings")
	// ErrClosed says that the index has been closed.
	ErrClosed = errors.New("store: index closed")
	// ErrInvalid says that an argument cannot be right; the message says which.
	ErrInvalid = errors.New("store: invalid argument")
	// ErrFull says that a limit of the index on pods, holders or models is
	// reached. Blocks have no such error: they make room by eviction.
	ErrFull = errors.New("store: index full")
)

// HolderID names one holder: a (pod, rank, tier) in one life. The tier may be a window
// tier. Ids are given in ascending order, begin at 1 and are never reused. So a block
// that still names a holder of an ended generation gives no credit.
type HolderID uint32

// Query asks for the holders of the blocks of one chain.
type Query struct {
	// Model is the mask of the model whose chain it is.
	Model blockkey.Model
	// Keys is the chain: the block keys of one prompt in order.
	Keys []blockkey.Key
	// Fold receives what is found.
	Fold Folder

	// Lead, if not nil, is the query of the same Lookup that this one goes along with. The lead is
	// another chain over the same tokens, and stands behind this query in the list. An index that
	// reads in windows reads of this one the tokens of the lead's window, and reports them before
	// the lead's. It stops when the lead's folder has enough. A lead has no lead.
	Lead *Query
	// Span is the number of tokens in a block of the chain. It need be set of a query
	// with a lead and of the lead only.
	Span int
	// Named are pods that the caller knows by name. Those that are not registered count where an
	// index has values that name pods by their addresses. The registry that Begin gets has them
	// then, without a model. An index without such values ignores it.
	//
	// A lookup may have no query with Named, not even an empty one, while the model's
	// Unregistered is set. Then those count that the first blocks read name. The registry has
	// them likewise, and perhaps others that earlier lookups have met.
	Named []string
	// Beside, if not nil, is what the query is about instead of Keys. It is what another program
	// keeps beside the index's blocks, in a form that its own package has. An index that does not
	// know the form refuses the query with ErrInvalid.
	Beside Beside
}

// Beside is a list of blocks that another program keeps.
type Beside interface {
	// Len returns the number of blocks.
	Len() int
}

// Len returns the number of blocks that the query asks about.
func (q *Query) Len() int {
	if q.Beside != nil {
		return q.Beside.Len()
	}
	return len(q.Keys)
}

// Folder consumes the answer to one Query, block after block, and says when
// it has seen enough. It is called from the goroutine that called Lookup.
type Folder interface {
	// Begin is called once, before the first Run, with the registry that gives
	// the holders of this lookup their names. It is the same for all queries of
	// one Lookup.
	Begin(*Registry)
	// Run receives that the next n blocks of the chain (n >= 1) are held by
	// exactly these holders. They are ascending, without duplicates, valid only
	// during the call, and empty where the block has no holder. Ids that the
	// registry does not know belong to ended lives and count for nothing.
	// Neighbouring runs may have equal holders: where a run ends is the index's
	// business alone. Run returns false when no later block can change its
	// result; the index then reads no further for this query.
	Run(n int, holders []HolderID) (more bool)
}

// OnlyRegistry is a Folder that keeps the registry alone. A lookup of no blocks with it reads no
// more of the registry than has changed; with an error it may have the one from before.
type OnlyRegistry struct{ *Registry }

// Begin implements Folder.
func (o *OnlyRegistry) Begin(r *Registry) { o.Registry = r }

// Run implements Folder.
func (*OnlyRegistry) Run(int, []HolderID) (more bool) { return false }

// Index is the block index: block key -> holders, and the registry of pods and
// models. Memory and Redis implement it with one contract, held together by
// the suite in storetest. All methods are safe for concurrent use.
type Index interface {
	Pager
	Forgetter

	// Lookup answers all queries, sharing round trips between them. An error
	// means that the answer is cut short; what the folders have seen until
	// then is right. Begin has always been called when Lookup returns, with the
	// last known registry (possibly empty) if need be. Only a query that is
	// nil, has no Fold or is about what the index does not know is refused,
	// with ErrInvalid, before any Begin.
	Lookup(ctx context.Context, queries ...*Query) error

	// Apply makes the changes of the batches, each batch in order. A batch of a pod that is not registered registers it, without lease, for the
	// batch's model. A batch that only takes blocks away or predicts changes nothing then. A batch is applied whole or, when an error is returned,
	// possibly in part; applying it again is harmless. All batches are validated first: on ErrInvalid nothing has been applied. When guards refuse
	// batches the error is a *RefusedError, which also has what else went wrong. An Add for a rank that the pod's registration does not have is
	// ErrNoRank.
	Apply(ctx context.Context, batches ...Batch) error

	// Register registers a pod or renews it: it replaces what is known of the
	// pod and begins a new lease. Blocks that the pod holds are kept. created
	// is false for a renewal. A pod whose lease had run out has lost its blocks and is
	// created anew. So is one that was registered for another model, since a
	// registration is for one model. Ranks that a renewal does not have any more end at
	// once.
	Register(ctx context.Context, p Pod) (created bool, err error)

	// Retire removes a pod and ends the generations of all its holders, in O(1).
	// Its blocks are not credited any more from the next lookup on, and are swept
	// later. Result known is false when there was no such pod.
	Retire(ctx context.Context, pod string) (known bool, err error)

	// Begin ends all holders of a rank, in O(1), and begins a new generation of
	// it, owned under the fence. The pod must be registered, else ErrUnknownPod, and
	// have the rank, else ErrNoRank. A fence older than the present generation's is
	// ErrFenced.
	Begin(ctx context.Context, pod string, rank int, fence uint64) (Generation, error)

	// TakeOver makes the fence that of the generation: once it has returned, no
	// writer with an older one changes anything any more. It returns the
	// watermark: all batches up to that sequence have been applied wholly. Of
	// later ones any part may have been; the new owner applies them again. A
	// fence older than the generation's is ErrFenced, a generation that is over
	// is ErrEnded. Taking over under the same fence is allowed.
	TakeOver(ctx context.Context, gen Generation, fence uint64) (watermark uint64, err error)

	// ReadMap returns the values of entries of a generation's map in the order of
	// the keys, nil where there is none. A generation that is over is ErrEnded.
	ReadMap(ctx context.Context, gen Generation, keys ...MapKey) ([][]byte, error)

	// Life returns what there is of the rank's present generation.
	Life(ctx context.Context, pod string, rank int) (Life, error)

	// EnsureModel returns the settings under which the model is indexed. The
	// first call fixes them to want; later calls return ErrModelConflict
	// together with the settings in force when want's block keys differ from theirs.
	EnsureModel(ctx context.Context, want ModelInfo) (ModelInfo, error)

	// Registry returns the registry as it stands now.
	Registry(ctx context.Context) (*Registry, error)

	// Cached returns the last registry that this process has seen, without any
	// I/O. It is never nil, and may be empty or outdated: Lookup brings it up
	// to date.
	Cached() *Registry

	// Stats returns figures about the index as this process sees it.
	Stats() Stats

	// Close releases what the index holds. Calls after it return ErrClosed, but another
	// Close does nothing, and that is no error.
	Close() error
}

// Batch is a list of changes to what one rank of one pod holds.
type Batch struct {
	// Pod and Rank say whose blocks they are.
	Pod  string
	Rank int
	// Model is the name of the model whose blocks they are.
	Model string
	// Ops are applied in order.
	Ops []Op
	// Reuse is what the writer knows of the rank's engine, which replaces what was known
	// before. It ends with the generation. The zero value says nothing, and nothing is kept of a
	// rank that the pod does not have. Under a guard it may be written only when the writer says
	// another thing than before. What another process says meanwhile of that rank, without the
	// guard, may stand until then.
	Reuse Reuse
	// Guard makes the batch one of a series that a single writer owns; nil is a write that any caller may
	// make at any time.
	Guard *Guard
	// Map are changes of the generation's map, which are made with the ops. They
	// need a guard. Of several changes of one entry the last counts.
	Map []MapOp
}

// Enrols reports whether the batch registers a pod that is not. One that only takes blocks
// away, or predicts, does not: it does nothing to such a pod.
func (b *Batch) Enrols() bool {
	return len(b.Ops) == 0 || slices.ContainsFunc(b.Ops, func(op Op) bool { return op.Kind == Add && op.Tier != Predicted })
}

// Told returns what the batch says of the rank's engine. A batch that registers no pod and
// has no guard says nothing, since its pod may not be there.
func (b *Batch) Told() Reuse {
	if b.Guard == nil && !b.Enrols() {
		return Reuse{}
	}
	return b.Reuse
}

// OpKind is what an Op does.
type OpKind uint8

// The kinds of Op.
const (
	// Add makes the rank a holder of the blocks in the tier, which may be a window tier.
	Add OpKind = iota + 1
	// Remove ends that for the blocks, in the tier or, with AllTiers, in all.
	Remove
	// Clear ends it for all blocks of the rank in the tier and its window tier, of all
	// models. With AllTiers it does so in all tiers, and with AllRanks for all ranks of the
	// pod. What ends in tier GPU ends in tier Predicted, too. So does what Remove ends
	// there, of the predictions that are in Cached by then. It takes no keys and costs O(1):
	// the holders' lives end.
	Clear
)

// Op is one change.
type Op struct {
	Kind OpKind
	// Tier is the tier that is meant. AllTiers is for Remove and Clear only.
	Tier Tier
	// AllRanks makes a Clear one of the whole pod.
	AllRanks bool
	// Until is for Add and Clear in tier Predicted alone, and must be set there. It says
	// which holder of the rank is meant: the one that ends then, by the clock of the index,
	// to the millisecond.
	Until time.Time
	// Keys are the blocks, at most a few thousand; in any order.
	Keys []blockkey.Key
}

// Stats are figures for metrics. Counters run since the process began.
type Stats struct {
	// Blocks is the number of blocks held in this process; -1 when they are
	// elsewhere.
	Blocks int64
	// Bytes is the memory of those blocks; -1 when they are elsewhere.
	Bytes int64
	// Evicted counts blocks dropped because the index was full.
	Evicted uint64
	// Garbled counts values that could not be read and so counted as
	// "no pod holds it".
	Garbled uint64
	// Texts counts values that name pods by text instead of by id, UnknownTexts
	// those of them that name no pod that counts.
	Texts, UnknownTexts uint64
	// RoundTrips counts round trips to the server.
	RoundTrips uint64
	// KeysRead counts block keys that were looked up.
	KeysRead uint64
	// Duplicates counts guarded batches that were skipped because they had been
	// applied before.
	Duplicates uint64
	// RegistryLoads counts reloads of the registry.
	RegistryLoads uint64
}

// Clock tells the time; tests put their own in.
type Clock func() time.Time
