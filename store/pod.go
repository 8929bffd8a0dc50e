package store

import (
	"fmt"
	"strings"
	"time"
)

// Tier is the kind of memory that a block is held in. The order is that of
// speed: of two tiers the lower number is the faster one. Tiers from NumTiers on are
// window tiers, see Tier.Window, and Predicted.
type Tier uint8

// The tiers.
const (
	GPU Tier = iota
	CPU
	Disk
	Shared
	// NumTiers is the number of tiers of memory.
	NumTiers = iota
	// NumHolderTiers is the number of tiers that engines report: those of memory, and the
	// window tier of each.
	NumHolderTiers = 2 * NumTiers
	// Predicted is the tier of blocks that an engine is thought to have on its GPU, since a
	// request was sent to it. A holder in it ends at a time of its own, see Op.Until, and a
	// rank has one for each such time. It counts only for requests that ask for predictions.
	Predicted Tier = NumHolderTiers
	// AllTiers stands for every tier where an operation allows it.
	AllTiers Tier = 0xff
)

var tierNames = [NumTiers]string{"gpu", "cpu", "disk", "shared"}

// windowSuffix ends the names of window tiers.
const windowSuffix = "-window"

// predictedName is the name of tier Predicted.
const predictedName = "predicted"

// MaxPredicted is how many holders in tier Predicted a rank can have. The one that ends
// first makes room for the next.
const MaxPredicted = 8

// Window returns the window tier of a tier of memory. The holder in it has the blocks of
// which the engine's window groups hold their part in that memory: sliding windows, and
// states like Mamba's. Such a holder has no prefix of its own; it limits what the rank's
// holders in tiers of memory count for. See Reuse.
func (t Tier) Window() Tier { return t + NumTiers }

// IsWindow reports whether t is a window tier.
func (t Tier) IsWindow() bool { return t >= NumTiers && t < NumHolderTiers }

// Memory returns the tier of memory of a window tier, GPU for Predicted, and any other
// tier itself.
func (t Tier) Memory() Tier {
	switch {
	case t.IsWindow():
		return t - NumTiers
	case t == Predicted:
		return GPU
	}
	return t
}

// String returns the tier's name: gpu, cpu, disk or shared, and gpu-window or the like
// of a window tier, or predicted.
func (t Tier) String() string {
	switch {
	case int(t) < NumTiers:
		return tierNames[t]
	case t.IsWindow():
		return tierNames[t.Memory()] + windowSuffix
	case t == Predicted:
		return predictedName
	case t == AllTiers:
		return "all"
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// ParseHolderTier reads the name of a tier that a holder can have.
func ParseHolderTier(s string) (Tier, error) {
	if memory, ok := strings.CutSuffix(s, windowSuffix); ok {
		t, err := ParseTier(memory)
		return t.Window(), err
	}
	return ParseTier(s)
}

// ParseTier reads the name of a tier of memory.
func ParseTier(s string) (Tier, error) {
	for i, n := range tierNames {
		if s == n {
			return Tier(i), nil
		}
	}
	return 0, fmt.Errorf("%w: tier %q is not one of gpu, cpu, disk, shared", ErrInvalid, s)
}

// Pod is the registration of an engine replica that serves requests. Its JSON
// form is both the body of POST /v1/pods and the value in kva:pods.
type Pod struct {
	// Name names the pod, by default its address host:port. 1 to 253 bytes
	// without control characters.
	Name string `json:"name"`
	// Model is the name of the model that the pod serves.
	Model string `json:"model"`
	// Aliases are other names that requests have for the model. Adapters are names of its LoRA
	// adapters, by which requests and events name them: see Registry.Read.
	Aliases  []string `json:"aliases,omitempty"`
	Adapters []string `json:"adapters,omitempty"`
	// Address is where the engine serves requests, when Name is not that.
	Address string `json:"address,omitempty"`
	// Role is what the pod is for in a disaggregated fleet: "", "prefill",
	// "decode" or "both".
	Role string `json:"role,omitempty"`
	// Ranks is the number of data-parallel ranks; 0 is not declared, which means 1 to readers and any to
	// writers.
	Ranks int `json:"ranks,omitempty"`
	// Engine is the engine's kind: vllm, sglang, trtllm or another word.
	Engine string `json:"engine,omitempty"`
	// Events and Replay are the ZMQ endpoints of rank 0's event stream and of
	// its replay socket.
	Events string `json:"events,omitempty"`
	Replay string `json:"replay,omitempty"`
	// BlockSize is the engine's own block size in tokens; 0 means not known.
	BlockSize int `json:"block_size,omitempty"`
	// KVTokens is how many tokens the cache of a rank has room for; 0 means not known.
	KVTokens int `json:"kv_tokens,omitempty"`
	// Approximate says that no events tell what the pod holds: routers take what they have sent
	// there for held, for a time.
	Approximate bool `json:"approximate,omitempty"`
	// Labels are free words to choose pods by.
	Labels map[string]string `json:"labels,omitempty"`
	// PartOf makes this the registration of a cache worker beside an engine. A worker
	// serves no requests and is never scored itself; what it holds counts for the pod
	// that it is part of. Nil for engines.
	PartOf *PartOf `json:"part_of,omitempty"`
	// Lease is how long the registration lives without renewal; 0 means until
	// it is deleted. In JSON it is lease_s, in seconds.
	Lease Seconds `json:"lease_s,omitempty"`
}

// PartOf says which rank of which pod a cache worker works for. Each of a rank's
// tensor-parallel workers holds a slice of a chunk. So the rank has the chunk when all
// Workers of them have it. Each has a registration of its own, and so a lease, a
// generation and an end of its own. The names of an instance's workers differ only in
// the worker's number, which stands at their end. A rank may have several instances,
// and one worker of each makes nothing whole.
type PartOf struct {
	// Pod is the name of the pod.
	Pod string `json:"pod"`
	// Rank is the data-parallel rank in the pod.
	Rank int `json:"rank,omitempty"`
	// Worker is the number of this worker, from 0, and Workers how many there are.
	Worker  int `json:"worker,omitempty"`
	Workers int `json:"workers"`
}

// Validate returns ErrInvalid, with the field and the reason, when this cannot be
// right.
func (p *PartOf) Validate() error {
	if err := checkName("pod of part_of", p.Pod, MaxPodName); err != nil {
		return err
	}
	if p.Rank < 0 || p.Rank >= MaxRanks {
		return fmt.Errorf("%w: rank of part_of is %d, it can be 0 to %d", ErrInvalid, p.Rank, MaxRanks-1)
	}
	if p.Workers < 1 || p.Workers > MaxRanks {
		return fmt.Errorf("%w: workers of part_of is %d, it can be 1 to %d", ErrInvalid, p.Workers, MaxRanks)
	}
	if p.Worker < 0 || p.Worker >= p.Workers {
		return fmt.Errorf("%w: worker of part_of is %d, it can be 0 to %d", ErrInvalid, p.Worker, p.Workers-1)
	}
	return nil
}

// Seconds is a duration whose JSON form is a number of seconds.
type Seconds time.Duration

// ModelInfo says how a model is indexed. What its block keys are is fixed once written.
type ModelInfo struct {
	// Name is the model's name as requests give it.
	Name string `json:"name"`
	// BlockSize is the index block size in tokens.
	BlockSize int `json:"block_size"`
	// Scheme is the scheme of the block keys: "native".
	Scheme string `json:"scheme"`
	// Unregistered lets values that name pods by their addresses count for pods that
	// are not registered. An [UnregisteredSetter] can change it.
	Unregistered bool `json:"unregistered,omitempty"`
}

// SameKeys reports whether both models have the same name and block keys.
func (m *ModelInfo) SameKeys(as *ModelInfo) bool {
	return m.Name == as.Name && m.BlockSize == as.BlockSize && m.Scheme == as.Scheme
}

// DefaultBlockSize is the index block size of a model that has none set:
// tokens per block in the index, independent of the engine's own.
const DefaultBlockSize = 64

// SchemeNative is the default scheme of block keys.
const SchemeNative = "native"
