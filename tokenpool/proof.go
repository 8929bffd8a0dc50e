package tokenpool

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/kvatlas/kvatlas/tokenpool/internal/bpe"
	"github.com/kvatlas/kvatlas/tokenpool/internal/proofs"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// source is what a tokenizer is made of. It is the tokenizer.json of a model's files, or a
// proof of an earlier process. By a proof it serves before the library has read that file.
type source struct {
	// data is the tokenizer.json; with a proof, what is left of it without its vocabulary.
	data  []byte
	split bool // special tokens in a text are text
	// sum is the SHA-256 of the tokenizer.json, its fingerprint's origin.
	sum        [sha256.Size]byte
	vocabulary int // 0 until the library has read it

	key   *proofs.Key    // nil where no proof is kept
	proof *proofs.Proof  // nil if there is none
	fast  *bpe.Tokenizer // of proof
}

// fingerprintOf is Model.Fingerprint.
func fingerprintOf(sum [sha256.Size]byte) string { return hex.EncodeToString(sum[:8]) }

// findSource finds the proof of a model with these files, or else makes its
// tokenizer.json.
func (p *Pool) findSource(files Files) (src source, err error) {
	if p.kept != nil {
		// Without a key all goes on as without a folder.
		if key, keyErr := p.kept.Key(files.Tokenizer, []byte(files.Name), files.Config, files.Added, files.SpecialTokens, files.Model); keyErr == nil {
			src.key = &key
			p.useProof(&src, p.kept.Load(key))
		}
	}
	if src.proof == nil {
		src.data, src.split, err = files.JSON()
		src.sum = sumOf(src.data, src.split)
	}
	return src, err
}

// useProof makes proof that of src, unless it is nil, or not to be trusted.
func (p *Pool) useProof(src *source, proof *proofs.Proof) {
	if proof == nil {
		return
	}
	p.mu.Lock()
	fingerprint := fingerprintOf(proof.Sum)
	if proof.Differed {
		p.distrusted[fingerprint] = true
	}
	distrusted := p.distrusted[fingerprint]
	p.mu.Unlock()
	if distrusted {
		return
	}
	fast, err := bpe.New(proof.Tables)
	if err != nil {
		return
	}
	src.data, src.sum, src.vocabulary, src.proof, src.fast = proof.Tables.File, proof.Sum, proof.Vocabulary, proof, fast
}

// readReference reads the tokenizer.json of a source, or, with a proof, makes an encoder
// that does when it is needed.
func (p *Pool) readReference(files Files, src source) (encoder, *late, error) {
	if src.proof == nil {
		enc, err := p.read(src.data, src.split)
		return enc, nil, err
	}
	l := &late{read: func() (encoder, error) {
		data, split, err := files.JSON()
		if err != nil {
			return nil, err
		}
		return p.read(data, split)
	}}
	return l, l, nil
}

// keepProof saves what has been proven of a tokenizer for the next process.
func (p *Pool) keepProof(t *tokenizer, proof *proofs.Proof) {
	if p.kept == nil || t.key == nil {
		return
	}
	if err := p.kept.Save(*t.key, proof); err != nil {
		p.cfg.Observer.ProofNotKept(t.info.Name, err)
	}
}

// loadReference reads the reference of a tokenizer that serves by its proof, one at a time.
// The reference does texts that the fast one leaves out, and spot checks. The tokenizer is
// held.
func (p *Pool) loadReference(t *tokenizer) {
	defer p.release(t)
	if p.proofs.Acquire(p.ctx, 1) != nil {
		return // the pool closes
	}
	defer p.proofs.Release(1)
	if !p.wanted(t) {
		return
	}
	err := t.late.load()
	p.mu.Lock()
	t.info.MemoryBytes += t.late.bytes
	var out []dropped
	if err != nil && !t.dropped {
		out = append(out, p.drop(t)) // the next load says what is wrong
	}
	p.mu.Unlock()
	if err == nil {
		return
	}
	p.kept.Remove(*t.key)
	p.n.loadErrors.Add(1)
	p.sendOff(out, "reference")
	p.cfg.Observer.Loaded(Model{Name: t.info.Name}, tokenfile.OfModel(t.info.Name, err))
}
