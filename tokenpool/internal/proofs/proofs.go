// Package proofs keeps tokenizers that have been proven, in files: the next process has
// their tables at once, and needs no second proof.
//
// A proof is good for one program and the files of one model, byte for byte: its name is a
// hash over both. Whatever cannot be read, is cut off, or was written by another program is
// as good as not there. The folder must be the server's own: a process that can write to it can change
// tokens, as with the tokenizers themselves.
package proofs

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/tokenpool/internal/bpe"
)

// Proof is what is known of a tokenizer that was held to its reference.
type Proof struct {
	// Differed says that it has given other tokens. The other fields are not set then.
	Differed bool
	// Tables make the tokenizer.
	Tables *bpe.Tables
	// Sum is the SHA-256 of the tokenizer.json that was made of the files.
	Sum [sha256.Size]byte
	// Vocabulary is the number of different tokens.
	Vocabulary int
	// Framed says that Before and Behind are known: the tokens around each text.
	Framed         bool
	Before, Behind []uint32
}

// Key names a proof.
type Key [sha256.Size]byte

// Folder keeps proofs. It is safe for concurrent use, also by several processes.
type Folder struct {
	path    string
	program func() ([sha256.Size]byte, error)
}

// NewFolder returns the folder of that path, which is made when the first proof is saved.
func NewFolder(path string) *Folder {
	return &Folder{path: path, program: sync.OnceValues(programSum)}
}

// programSum is the SHA-256 of the program that runs. A proof is of its code, its tables of
// characters, its corpus, and the library that is linked into it.
func programSum() (sum [sha256.Size]byte, err error) {
	path, err := os.Executable()
	if err != nil {
		return sum, err
	}
	file, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer func() { _ = file.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return sum, err
	}
	h.Sum(sum[:0])
	return sum, nil
}

// Key returns the key of a model with these files; a file that is missing is nil. The first
// call reads the program, which takes some hundredths of a second.
func (f *Folder) Key(files ...[]byte) (Key, error) {
	program, err := f.program()
	if err != nil {
		return Key{}, fmt.Errorf("proofs: %w", err)
	}
	h := sha256.New()
	_, _ = h.Write(program[:])
	for _, file := range files {
		size := uint64(len(file)) + 1
		if file == nil {
			size = 0
		}
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, size))
		_, _ = h.Write(file)
	}
	return Key(h.Sum(nil)), nil
}

// A file is magic, its key, the SHA-256 of what follows, and a Proof by encoding/gob.
const (
	magic  = "kvatlas proof\n"
	header = len(magic) + 2*sha256.Size
	suffix = ".proof"
)

// Bounds of the folder. A proof of 128,000 tokens takes 3.5 MB.
const (
	maxFile  = 64 << 20
	maxBytes = 256 << 20
)

func (f *Folder) file(key Key) string {
	return filepath.Join(f.path, hex.EncodeToString(key[:])+suffix)
}

// Load returns the proof of that key, nil if there is none that can be used.
func (f *Folder) Load(key Key) *Proof {
	path := f.file(key)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil || len(data) < header || string(data[:len(magic)]) != magic || !bytes.Equal(data[len(magic):header-sha256.Size], key[:]) {
		return nil
	}
	if sum := sha256.Sum256(data[header:]); !bytes.Equal(sum[:], data[header-sha256.Size:header]) {
		return nil
	}
	p := &Proof{}
	if gob.NewDecoder(bytes.NewReader(data[header:])).Decode(p) != nil || p.Tables == nil && !p.Differed {
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // those that are used last stay
	return p
}

// Save keeps a proof, in one step, and removes those that were not used for longest if all
// take more than 256 MiB.
func (f *Folder) Save(key Key, p *Proof) error {
	data := make([]byte, header, 4<<20)
	copy(data, magic)
	copy(data[len(magic):], key[:])
	b := bytes.NewBuffer(data)
	if err := gob.NewEncoder(b).Encode(p); err != nil {
		return fmt.Errorf("proofs: %w", err)
	}
	data = b.Bytes()
	if len(data) > maxFile {
		return fmt.Errorf("proofs: %d bytes are more than %d", len(data), maxFile)
	}
	sum := sha256.Sum256(data[header:])
	copy(data[header-sha256.Size:], sum[:])
	if err := f.write(f.file(key), data); err != nil {
		return fmt.Errorf("proofs: %w", err)
	}
	return f.shrink(maxBytes)
}

// Remove removes the proof of that key.
func (f *Folder) Remove(key Key) { _ = os.Remove(f.file(key)) }

func (f *Folder) write(path string, data []byte) error {
	if err := os.MkdirAll(f.path, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(f.path, "*.part") // for its owner alone
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = cmp.Or(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}

// shrink removes the oldest files until the rest takes no more than so many bytes.
func (f *Folder) shrink(limit int64) error {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return fmt.Errorf("proofs: %w", err)
	}
	var files []fs.FileInfo
	total := int64(0)
	for _, e := range entries {
		// Others may remove files meanwhile.
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			files = append(files, info)
			total += info.Size()
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range files {
		if total <= limit {
			return nil
		}
		if err := os.Remove(filepath.Join(f.path, info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("proofs: %w", err)
		}
		total -= info.Size()
	}
	return nil
}
