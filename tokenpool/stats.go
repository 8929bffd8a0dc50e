package tokenpool

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strconv"
	"time"
)

// Model reports a loaded tokenizer.
type Model struct {
	// Name is the model's name, as in requests.
	Name string
	// From is "directory" or "hub"; Revision is the hub's commit, or branch.
	From, Revision string
	// File is the name of the file that holds the tokenizer. SHA256 is its content's hash
	// in hex, which Config.Pins can ask for; FileBytes is its size.
	File, SHA256 string
	FileBytes    int64
	// Fingerprint is the first 8 bytes, in hex, of the SHA-256 of what decides about
	// the tokens. That is tokenizer.json, or the one that was made of a tiktoken
	// file and its special tokens. Before is the one that the model had in this pool
	// before, if that was another one: tokens of then are not used any more.
	Fingerprint, Before string
	// MemoryBytes is what the fast tokenizer's tables take, plus the growth of the memory
	// that libraries have allocated (glibc's malloc) while the tokenizer was read. The
	// library does not report its own. Other work at the same time counts too, so it is
	// near the truth where tokenizers are loaded one at a time. Where the system does not
	// tell that, it is the growth of the resident memory, which is rough. Both grow behind
	// the load.
	MemoryBytes int64
	// Vocabulary is the number of different tokens, added ones included.
	Vocabulary int
	// ChatTemplate reports whether the model has a chat template of its own.
	ChatTemplate bool
	// LoadTook is how long fetching and reading took, LoadedAt when it ended.
	LoadTook time.Duration
	LoadedAt time.Time
	// Texts is how many texts were given to it.
	Texts uint64
}

// Models returns the tokenizers in memory, by name.
func (p *Pool) Models() []Model {
	p.mu.Lock()
	all := make([]Model, 0, p.loaded.Len())
	for _, t := range p.loaded.Values() {
		m := t.info
		m.Texts = t.requests
		m.MemoryBytes += t.proven.memoryBytes()
		all = append(all, m)
	}
	p.mu.Unlock()
	slices.SortFunc(all, func(a, b Model) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Stats are figures about a Pool. Counters run since New.
type Stats struct {
	// Whole, Tokenized, Partial and None count answers: exact from the prefix
	// store, exact from the tokenizer, a known prefix, nothing known.
	Whole, Tokenized, Partial, None uint64
	// Busy and Budget count those of them that are not exact because the queue
	// was full, or the budget over.
	Busy, Budget uint64
	// Failed counts requests that ended in an error; Refused those of texts
	// that cannot be tokenized, which Failed does not count.
	Failed, Refused uint64
	// Runs counts texts that were tokenized, TextBytes is their size. Tokens
	// counts those of their tokens that the tokenizer has made, Reused those known
	// from pieces of earlier texts. Joined counts requests that waited for a run
	// that another had begun.
	Runs, TextBytes, Tokens, Reused, Joined uint64
	// Fast counts texts and parts of texts that package bpe has tokenized, and Checked
	// texts that the reference has tokenized as well. Differences counts tokenizers left
	// to the reference since, because it gave other tokens.
	Fast, Checked, Differences uint64
	// FleetReused counts those of Reused that the fleet knew. FleetErrors counts calls to
	// it that failed or brought what could not be read. FleetDropped counts texts whose
	// pieces were not given to it because too many waited.
	FleetReused, FleetErrors, FleetDropped uint64
	// PieceBytes is what these pieces take, of MaxPieceBytes.
	PieceBytes, MaxPieceBytes int64
	// StoreRefused counts texts that the prefix store would not keep.
	StoreRefused uint64
	// Loads, LoadErrors and Dropped count tokenizers loaded, not loaded, and
	// dropped.
	Loads, LoadErrors, Dropped uint64

	// Queued is the number of texts that wait for a worker, of Queue at most.
	// Running is those in work, of Workers; Waiting is those that wait for a
	// tokenizer, of Queue.
	Queued, Queue, Running, Workers, Waiting int
	// HeldBytes is the size of all these texts, of QueueBytes at most.
	HeldBytes, QueueBytes int64
	// Tokenizers is the number of tokenizers in memory, of MaxTokenizers;
	// Loading that of loads under way.
	Tokenizers, MaxTokenizers, Loading int
}

// Stats returns figures for metrics.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	loaded, loading := p.loaded.Len(), len(p.loads)
	p.mu.Unlock()
	st := Stats{
		Whole:         p.n.fromStore.Load(),
		Tokenized:     p.n.fromTokenizer.Load(),
		Partial:       p.n.partial.Load(),
		None:          p.n.none.Load(),
		Busy:          p.n.busy.Load(),
		Budget:        p.n.budget.Load(),
		Failed:        p.n.failed.Load(),
		Refused:       p.n.refused.Load(),
		Runs:          p.n.tokenized.Load(),
		TextBytes:     p.n.textBytes.Load(),
		Tokens:        p.n.tokens.Load(),
		Reused:        p.n.reused.Load(),
		Joined:        p.n.joined.Load(),
		Fast:          p.n.fast.Load(),
		Checked:       p.n.checked.Load(),
		Differences:   p.n.differences.Load(),
		PieceBytes:    p.pieces.size(),
		MaxPieceBytes: max(p.cfg.PieceBytes, 0),
		StoreRefused:  p.n.refusedPuts.Load(),
		Loads:         p.n.loads.Load(),
		LoadErrors:    p.n.loadErrors.Load(),
		Dropped:       p.n.dropped.Load(),
		Queued:        len(p.run),
		Queue:         p.cfg.Queue,
		Running:       int(p.n.running.Load()),
		Workers:       p.cfg.Workers,
		Waiting:       int(p.n.waiting.Load()),
		HeldBytes:     p.n.held.Load(),
		QueueBytes:    p.cfg.QueueBytes,
		Tokenizers:    loaded,
		MaxTokenizers: p.cfg.MaxTokenizers,
		Loading:       loading,
	}
	if p.pieces != nil {
		p.pieces.fleet.count(&st)
	}
	return st
}

// memoryBytes is what MemoryBytes are taken of.
func memoryBytes() int64 {
	if n := allocatedBytes(); n > 0 {
		return n
	}
	return residentBytes()
}

// residentBytes is the resident memory of the process, 0 where it cannot be
// read.
func residentBytes() int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(data)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
