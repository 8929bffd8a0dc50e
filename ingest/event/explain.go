package event

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/blockkey"
)

// ErrUnexplained is returned by Explain when no scheme that it knows gives an
// event's hashes.
var ErrUnexplained = errors.New("event: no scheme and seed that were tried gives these hashes")

// ErrNoStart is what Explain returns for an event from which nothing can be learnt. The event is not of the
// first blocks of a prompt, or has not all of their tokens.
var ErrNoStart = errors.New("event: not the start of a prompt with its tokens")

// Explanation is how an engine makes its hashes, as far as an event shows it.
type Explanation struct {
	// Scheme is blockkey.SchemeVLLM or blockkey.SchemeSGLang.
	Scheme string
	// Algorithm and Seed are vLLM's hash algorithm and PYTHONHASHSEED.
	Algorithm blockkey.VLLMAlgorithm
	Seed      string
	// Keys is how vLLM writes what else goes into a hash; it counts if Extras, that
	// is, if anything did.
	Keys   blockkey.VLLMKeys
	Extras bool
	// Namespace tells that SGLang mixes the salt into what it sends, its event
	// format "dynamo".
	Namespace bool
	// Tried says that the seed was found by trying small numbers: the caller did not name it, and it is not
	// vLLM's default.
	Tried bool
}

// String says it in words.
func (x Explanation) String() string {
	if x.Scheme == blockkey.SchemeSGLang {
		if x.Namespace {
			return `SGLang's SHA-256 chain, in the event format "dynamo"`
		}
		return "SGLang's SHA-256 chain"
	}
	s := fmt.Sprintf("vLLM's %s with the seed %q", x.Algorithm, x.Seed)
	if x.Extras {
		s += fmt.Sprintf(", adapters, salts and objects as in %s", x.Keys)
	}
	return s
}

// triedSeeds is how many small numbers are tried for PYTHONHASHSEED.
const triedSeeds = 256

// maxExplained is how many blocks of an event are recomputed.
const maxExplained = 4

// Explain finds out how an engine came to the hashes of a Stored event, by trying
// the schemes that blockkey knows. It tries SGLang's, and vLLM's algorithms with
// the given seeds, with vLLM's default and with small numbers. It needs an event
// with the first blocks of a prompt and their tokens, else it is ErrNoStart. When
// nothing fits, it is ErrUnexplained: the seed is another one, or goes by what no
// event tells. The path of an adapter from vLLM 0.31 on does so, which loraPath
// may give.
//
// It computes some thousands of hashes, for tools and not for each event.
func Explain(e *Event, seeds []string, loraPath string) (Explanation, error) {
	n := min(len(e.Hashes), maxExplained)
	size := len(e.Hashes) * e.BlockSize
	if e.Bigram {
		size++
	}
	if e.Kind != Stored || e.HasParent || n == 0 || e.BlockSize < 1 || len(e.Tokens) != size {
		return Explanation{}, ErrNoStart
	}
	if x, ok := explainSGLang(e, n); ok {
		return x, nil
	}
	if e.Bigram {
		return Explanation{}, ErrUnexplained
	}
	for _, seed := range append(seeds[:len(seeds):len(seeds)], blockkey.VLLMDefaultSeed) {
		if x, ok := explainVLLM(e, n, seed, loraPath); ok {
			return x, nil
		}
	}
	for i := range triedSeeds {
		if x, ok := explainVLLM(e, n, strconv.Itoa(i), loraPath); ok {
			x.Tried = true
			return x, nil
		}
	}
	return Explanation{}, ErrUnexplained
}

func explainSGLang(e *Event, n int) (Explanation, bool) {
	for _, salt := range []string{e.Salt, ""} { // it counts from 0.5.18 on
		c := blockkey.NewSGLangChain(e.BlockSize, salt)
		c.Bigram = e.Bigram
		digests := c.Append(nil, e.Tokens)
		var optional *string
		if e.Salt != "" {
			optional = &e.Salt
		}
		for _, namespace := range []blockkey.SGLangNamespace{{}, blockkey.NewSGLangNamespace(nil, optional)} {
			fits := true
			for i := range n {
				fits = fits && Hash(namespace.Wire(digests[i])) == e.Hashes[i]
			}
			if fits {
				return Explanation{Scheme: blockkey.SchemeSGLang, Namespace: namespace != blockkey.SGLangNamespace{}}, true
			}
		}
	}
	return Explanation{}, false
}

func explainVLLM(e *Event, n int, seed, loraPath string) (Explanation, bool) {
	extras := e.LoRA != "" || e.LoRAID != 0 || e.Salt != "" || e.Extra != nil
	objects := e.vllmObjects()
	lookahead := len(e.Lookahead) / len(e.Hashes)
	for a := blockkey.VLLMSHA256; a <= blockkey.VLLMSHA256CBOR64; a++ {
		for keys := blockkey.VLLMKeys31; keys <= blockkey.VLLMKeys9; keys++ {
			c := blockkey.NewVLLMChain(a, seed, e.BlockSize)
			c.Keys = keys
			c.Salt = e.Salt
			c.LoRA = blockkey.VLLMLoRA{ID: e.LoRAID, Name: e.LoRA, Path: loraPath}
			c.Lookahead = lookahead
			fits := true
			for i := 0; i < n && fits; i++ {
				tokens := slices.Concat(e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], e.Lookahead[i*lookahead:][:lookahead])
				digest := c.Append(nil, tokens, objects...)
				fits = Hash(digest[0].VLLMWire()) == e.Hashes[i]
			}
			if fits {
				return Explanation{Scheme: blockkey.SchemeVLLM, Algorithm: a, Seed: seed, Keys: keys, Extras: extras}, true
			}
			if !extras {
				break
			}
		}
	}
	return Explanation{}, false
}

// vllmObjects are the event's objects by where they stand in the prompt. An event
// tells where an object begins and which blocks it reaches into. So its length is
// that up to the end of the last of them.
func (e *Event) vllmObjects() []blockkey.VLLMObject {
	var out []blockkey.VLLMObject
	for i, x := range e.Extra {
		for _, o := range x.Objects {
			begin := i*e.BlockSize + o.Offset
			// The one that began in a block before is known already.
			known := false
			for j := range out {
				if out[j].ID == o.ID && out[j].Offset == begin {
					out[j].Length = (i+1)*e.BlockSize - begin
					known = true
				}
			}
			if !known {
				out = append(out, blockkey.VLLMObject{ID: o.ID, Offset: begin, Length: (i+1)*e.BlockSize - begin})
			}
		}
	}
	return out
}
