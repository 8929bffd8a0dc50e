package tokenpool

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// prove has a pool prove its tokenizer, and closes it.
func prove(t *testing.T, dir string) (tokens []uint32) {
	t.Helper()
	p, proven, _ := keepingPool(t, dir, 0, newLibrary)
	tokens = p.tokensOf(t, "the inn<|end|> 12")
	must.OK(t, receive(t, proven))
	_ = p.Close() // and what is kept is there
	if found, _ := filepath.Glob(filepath.Join(dir, "*.proof")); len(found) != 1 {
		t.Fatalf("%d proofs are kept", len(found))
	}
	return tokens
}

// TestProofIsKept has a second pool give tokens before its reference has been read, and
// use that once it has.
func TestProofIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "proofs")
	want := prove(t, dir)
	gate := make(chan struct{})
	p, proven, differed := keepingPool(t, dir, 2, func(data []byte, split bool) (encoder, error) {
		<-gate
		return newLibrary(data, split)
	})
	if got := p.tokensOf(t, "the inn<|end|> 12"); !slices.Equal(got, want) {
		t.Errorf("tokens %v, want %v", got, want)
	}
	if err := receive(t, proven); err != nil {
		t.Error(err)
	}
	tables := p.Models()[0].MemoryBytes
	if tables < 1<<20 {
		t.Errorf("%d bytes of memory: the tables are not counted", tables)
	}
	close(gate)
	p.tokensOf(t, "checked by the reference")
	text, err := p.Text(t.Context(), "m", want, false)
	if err != nil || text != "the inn<|end|> 12" {
		t.Errorf("text %q, %v", text, err)
	}
	_ = p.Close()
	if s := p.Stats(); s.Fast < 2 || s.Checked != 1 || s.Differences != 0 || len(differed) > 0 {
		t.Errorf("%d texts fast, %d checked, %d differences", s.Fast, s.Checked, s.Differences)
	}
}

// TestProofOfOtherFiles has the folder of a proof tell nothing of other files.
func TestProofOfOtherFiles(t *testing.T) {
	dir := t.TempDir()
	prove(t, dir)
	f := newFakes(t)
	f.models["m"] = strings.Replace(string(smallBPE(t)), "|end|", "|eos|", 1)
	p := must.Get(newPool(Config{Origin: f, Fast: true, ProofDir: dir}, func([]byte, bool) (encoder, error) {
		return nil, errors.New("the reference is asked")
	}))(t)
	defer func() { _ = p.Close() }()
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "a", Mode: prompt.Sync}); err == nil || !strings.Contains(err.Error(), "the reference is asked") {
		t.Errorf("loaded with %v", err)
	}
}

// TestDifferenceIsKept has a tokenizer that differed once left to the reference by the
// next pool too.
func TestDifferenceIsKept(t *testing.T) {
	dir := t.TempDir()
	prove(t, dir)
	p, _, differed := keepingPool(t, dir, 1, func(data []byte, split bool) (encoder, error) {
		e, err := newLibrary(data, split)
		return lying{e, func(text string) bool { return strings.Contains(text, "lies") }}, err
	})
	p.tokensOf(t, "tell no lies")
	if receive(t, differed) == nil {
		t.Fatal("it does not differ")
	}
	_ = p.Close()
	p, proven, _ := keepingPool(t, dir, 1, newLibrary)
	p.tokensOf(t, "the inn")
	_ = p.Close() // a proof would end before
	if s := p.Stats(); s.Fast != 0 || len(proven) > 0 {
		t.Errorf("%d texts are tokenized fast", s.Fast)
	}
}

// TestReferenceThatCannotBeRead has the reference fail behind a proof: the tokenizer goes,
// and the next load says why.
func TestReferenceThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	prove(t, dir)
	f := newFakes(t)
	f.models["m"] = string(smallBPE(t))
	gone := make(chan error, 1)
	p := must.Get(newPool(Config{Origin: f, Fast: true, ProofDir: dir, Observer: Observer{
		Loaded: func(_ Model, err error) {
			if err != nil && len(gone) == 0 {
				gone <- err
			}
		},
	}}, func([]byte, bool) (encoder, error) {
		return nil, tokenfile.Wrong(tokenfile.TokenizerFile, "is damaged", tokenfile.CureAgain)
	}))(t)
	defer func() { _ = p.Close() }()
	p.tokensOf(t, "the inn")
	if err := receive(t, gone); !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("reported %v", err)
	}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "a", Mode: prompt.Sync}); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("loaded again with %v", err)
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "*")); len(found) > 0 {
		t.Errorf("%q is still there", found)
	}
}

// TestProofsCannotBeKept has a folder that takes no files: all else works.
func TestProofsCannotBeKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	f := newFakes(t)
	f.models["m"] = string(smallBPE(t))
	proven, refused := make(chan error, 1), make(chan error, 1)
	p := must.Get(newPool(Config{Origin: f, Fast: true, ProofDir: filepath.Join(file, "proofs"), Observer: Observer{
		Proven:       func(_ string, err error) { proven <- err },
		ProofNotKept: func(_ string, err error) { refused <- err },
	}}, newLibrary))(t)
	defer func() { _ = p.Close() }()
	p.tokensOf(t, "the inn")
	if err := receive(t, refused); err == nil {
		t.Error("kept in no folder")
	}
	if err := receive(t, proven); err != nil {
		t.Error(err)
	}
}
