package lmcache

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrKey is wrapped by errors about keys that cannot be parsed or built.
var ErrKey = errors.New("lmcache: bad key")

const (
	sep = "@"
	// Bounds of what is taken for a number of workers, and for one of layers. Real
	// ones lie far below; an MP rank and a hash lie above.
	maxWorkers = 1 << 16
	maxLayers  = 1 << 12
	maxKey     = 64 << 10 // bytes of a key
)

// dtypes are LMCache's names of torch's types, TORCH_DTYPE_TO_STR_DTYPE in its utils.py.
var dtypes = []string{
	"half", "bfloat16", "float", "double", "int8", "uint8", "int16", "int32", "int64", "bool",
	"fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz",
}

// formats are the values of fmt that tell a key of 0.3.10 from a later one, whose model
// name comes first.
var formats = []string{"vllm", "sglang", "huggingface"}

// Form is a string form of a Key.
type Form uint8

// The forms.
const (
	// FormHex is fmt@model@world_size@worker_id@hash up to 0.3.2 and from 0.3.6 to
	// 0.3.9.
	FormHex Form = iota
	// FormDecimal is the same with a decimal hash, 0.3.3 to 0.3.5.
	FormDecimal
	// FormDType is fmt@model@world_size@worker_id@hash@dtype, 0.3.10 to 0.3.12.
	FormDType
	// FormModel is model@world_size@worker_id@hash@dtype, 0.3.13 to 0.5.6.
	FormModel

	numForms
)

var forms = [numForms]string{
	"fmt@model@world_size@worker_id@hex", "fmt@model@world_size@worker_id@decimal",
	"fmt@model@world_size@worker_id@hex@dtype", "model@world_size@worker_id@hex@dtype",
}

// String returns the form's pattern.
func (f Form) String() string {
	if f < numForms {
		return forms[f]
	}
	return fmt.Sprintf("form(%d)", uint8(f))
}

func (f Form) hasFmt() bool   { return f != FormModel }
func (f Form) hasDType() bool { return f == FormDType || f == FormModel }

func (f Form) base() int {
	if f == FormDecimal {
		return 10
	}
	return 16
}

// Tag is a request's tag, from an entry of its request_configs that begins with
// "lmcache.tag.". In a key it is "name%value".
type Tag struct {
	Name  string // without that prefix; not empty, without @ and %
	Value string // without @
}

// Key is LMCache's CacheEngineKey, or its LayerCacheEngineKey when it has a layer: one
// chunk of one worker.
type Key struct {
	Form Form
	// Fmt is the engine, "vllm"; absent of FormModel.
	Fmt string
	// Model is the model's name. It may contain @, which is the separator too: keys are
	// read from the right.
	Model string
	// WorldSize is the number of workers that share a chunk, WorkerID one of them, from
	// 0. With save_only_first_rank (MLA) LMCache writes a world size of 1.
	WorldSize, WorkerID int
	Hash                Hash
	// DType is the type of the tensors, "bfloat16"; only of FormDType and FormModel.
	DType string
	// Layer is the layer's number, meaningful when HasLayer is set.
	Layer    int
	HasLayer bool
	// Tags in the request's order.
	Tags []Tag
}

// Validate tells what about the key has no string that Parse would read as it again.
func (k Key) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrKey}, args...)...)
	}
	switch {
	case k.Form >= numForms:
		return bad("%v", k.Form)
	case k.Form.hasFmt() != (k.Fmt != "") || strings.Contains(k.Fmt, sep):
		return bad("fmt %q in a key of the form %s", clip(k.Fmt), k.Form)
	case k.Form == FormDType && !slices.Contains(formats, k.Fmt):
		return bad("fmt %q is not one of %s", clip(k.Fmt), strings.Join(formats, ", "))
	case k.Model == "":
		return bad("no model name")
	case k.WorldSize < 1 || k.WorldSize > maxWorkers:
		return bad("world size %d, want 1 to %d", k.WorldSize, maxWorkers)
	case k.WorkerID < 0 || k.WorkerID >= k.WorldSize && (k.WorldSize > 1 || k.WorkerID >= maxWorkers):
		return bad("worker %d of %d", k.WorkerID, k.WorldSize)
	case k.Form.hasDType() && !slices.Contains(dtypes, k.DType):
		return bad("dtype %q is not one of %s", clip(k.DType), strings.Join(dtypes, ", "))
	case !k.Form.hasDType() && k.DType != "":
		return bad("dtype %q in a key of the form %s", clip(k.DType), k.Form)
	case k.HasLayer && (k.Layer < 0 || k.Layer >= maxLayers):
		return bad("layer %d, want 0 to %d", k.Layer, maxLayers-1)
	}
	for _, t := range k.Tags {
		if t.Name == "" || strings.ContainsAny(t.Name, "@%") || strings.Contains(t.Value, sep) {
			return bad("tag %q with the value %q", clip(t.Name), clip(t.Value))
		}
	}
	return nil
}

// String returns the key's string. Of a key that does not pass Validate it is a string
// that LMCache would not write.
func (k Key) String() string {
	head, tail := k.around()
	return string(append(k.Hash.append(head, k.Form.base()), tail...))
}

// around returns what stands before and behind the hash.
func (k Key) around() (head []byte, tail string) {
	if k.Form.hasFmt() {
		head = append(append(head, k.Fmt...), sep...)
	}
	head = append(append(head, k.Model...), sep...)
	head = append(strconv.AppendInt(head, int64(k.WorldSize), 10), sep...)
	head = append(strconv.AppendInt(head, int64(k.WorkerID), 10), sep...)
	var b []byte
	if k.Form.hasDType() {
		b = append(append(b, sep...), k.DType...)
	}
	if k.HasLayer {
		b = strconv.AppendInt(append(b, sep...), int64(k.Layer), 10)
	}
	for _, t := range k.Tags {
		b = append(append(b, sep...), t.Name...)
		b = append(append(b, '%'), t.Value...)
	}
	return head, string(b)
}

// number reads a number below limit as LMCache writes it.
func number(s string, limit int) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && n < limit && strconv.Itoa(n) == s
}

// ParseKey reads a key of the line. Use it when the version is known. It then reads a
// decimal hash that is also hex as what it is, and a model whose name begins like a fmt
// too.
func (v Version) ParseKey(s string) (Key, error) {
	if v >= numVersions {
		return Key{}, fmt.Errorf("%w: %v", ErrVersion, v)
	}
	if len(s) > maxKey {
		return Key{}, fmt.Errorf("%w: %d bytes, at most %d are read", ErrKey, len(s), maxKey)
	}
	k, err := parseForm(s, v.Form())
	if err != nil {
		return Key{}, err
	}
	b, _ := k.Hash.Bytes()
	switch {
	case v.hexChain() && len(b) != maxHash:
		return Key{}, fmt.Errorf("%w: a hash of LMCache %v is 64 hex digits, in %q", ErrHash, v, clip(s))
	case !v.hexChain() && v != V0313 && v != V041 && len(b) > 0:
		return Key{}, fmt.Errorf("%w: a hash of LMCache %v is an int of 64 bits, in %q", ErrHash, v, clip(s))
	case v < V034 && len(k.Tags) > 0:
		return Key{}, fmt.Errorf("%w: LMCache %v has no tags, in %q", ErrKey, v, clip(s))
	}
	return k, nil
}

// parseForm reads a key of one form, from the right: tags, layer, dtype, hash, worker,
// world. What is left is the model and its fmt.
func parseForm(s string, f Form) (Key, error) {
	parts := strings.Split(s, sep)
	k := Key{Form: f}
	for len(parts) > 0 {
		name, value, ok := strings.Cut(parts[len(parts)-1], "%")
		if !ok {
			break
		}
		k.Tags = append(k.Tags, Tag{Name: name, Value: value})
		parts = parts[:len(parts)-1]
	}
	slices.Reverse(k.Tags)

	err := parseParts(&k, parts)
	if err != nil && len(parts) > 0 {
		// The last may be a layer. A key without one is tried first: with one it is the
		// same string only when a hash is less than a worker's number.
		if layer, ok := number(parts[len(parts)-1], maxLayers); ok {
			k.Layer, k.HasLayer = layer, true
			if parseParts(&k, parts[:len(parts)-1]) == nil {
				err = nil
			}
		}
	}
	if err != nil {
		return Key{}, fmt.Errorf("%w, in %q", err, clip(s))
	}
	return k, nil
}

// parseParts reads what a key has without its tags and layer.
func parseParts(k *Key, parts []string) error {
	f := k.Form
	want := 4 // model, world size, worker, hash
	if f.hasFmt() {
		want++
	}
	if f.hasDType() {
		want++
	}
	if len(parts) < want {
		return fmt.Errorf("%w: %d parts, %s has %d", ErrKey, len(parts), f, want)
	}
	if f.hasDType() {
		k.DType = parts[len(parts)-1]
		parts = parts[:len(parts)-1]
	}
	n := len(parts)
	var err error
	if k.Hash, err = parseHash(parts[n-1], f.base()); err != nil {
		return err
	}
	var ok bool
	if k.WorkerID, ok = number(parts[n-2], maxWorkers); !ok {
		return fmt.Errorf("%w: %q is no worker's number", ErrKey, clip(parts[n-2]))
	}
	if k.WorldSize, ok = number(parts[n-3], maxWorkers+1); !ok {
		return fmt.Errorf("%w: %q is no world size", ErrKey, clip(parts[n-3]))
	}
	parts = parts[:n-3]
	if f.hasFmt() {
		k.Fmt = parts[0]
		parts = parts[1:]
	}
	k.Model = strings.Join(parts, sep)
	return k.Validate()
}
