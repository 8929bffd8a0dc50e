package tokenpool

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// Pin says which tokenizer a model must have. Empty fields ask for nothing.
type Pin struct {
	// SHA256 is that of the tokenizer's file (tokenizer.json, tiktoken.model or
	// qwen.tiktoken), 64 hex digits in lower case.
	SHA256 string
	// Revision is the revision on the hub. What is not from there has none and is
	// refused; of a full commit hash, the hub must say that its files are of it.
	// HubConfig.Revisions says which one is fetched.
	Revision string
}

// pinSum begins a pin that is a SHA-256.
const pinSum = "sha256:"

// ParsePins reads pins of the form MODEL=sha256:DIGITS or MODEL=REVISION. A model
// may have one of each.
func ParsePins(list []string) (map[string]Pin, error) {
	out := map[string]Pin{}
	for _, text := range list {
		model, want, ok := strings.Cut(text, "=")
		if !ok || checkModel(model) != nil {
			return nil, fmt.Errorf("%q is not of the form MODEL=sha256:DIGITS or MODEL=REVISION", text)
		}
		p := out[model]
		field := &p.Revision
		sum, isSum := strings.CutPrefix(want, pinSum)
		if isSum {
			want, field = strings.ToLower(sum), &p.SHA256
		}
		if *field != "" {
			return nil, fmt.Errorf("%q is the second pin of its kind for the model", text)
		}
		*field = want
		if err := p.validate(); err != nil || want == "" {
			return nil, fmt.Errorf("%q: %w", text, cmp.Or(err, errors.New("it asks for nothing")))
		}
		out[model] = p
	}
	return out, nil
}

func (p Pin) validate() error {
	if sum, err := hex.DecodeString(p.SHA256); p.SHA256 != "" && (err != nil || len(sum) != sha256.Size || hex.EncodeToString(sum) != p.SHA256) {
		return fmt.Errorf("%q is no SHA-256, which has 64 hex digits in lower case", p.SHA256)
	}
	if p.Revision != "" {
		return checkRevision(p.Revision)
	}
	if p.SHA256 == "" {
		return errors.New("it asks for nothing")
	}
	return nil
}

// check holds what has been fetched against the pin.
func (p Pin) check(model string, files Files) error {
	wrong := func(what, is, want string) error {
		return fmt.Errorf("%w: %w: model %s: %s %s, pinned is %s", tokenfile.ErrLoad, ErrPinned, tokenfile.Quote(model), what, is, want)
	}
	if p.SHA256 != "" {
		if sum := sha256Hex(files.Tokenizer); sum != p.SHA256 {
			return wrong("its tokenizer has SHA-256", sum, p.SHA256)
		}
	}
	switch {
	case p.Revision == "":
	case files.Revision == "":
		return wrong("its files come from the "+files.From+", which has no revisions;", "none", p.Revision)
	case hubCommit.MatchString(p.Revision) && files.Revision != p.Revision:
		return wrong("its files are of revision", files.Revision, p.Revision)
	}
	return nil
}

func sha256Hex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
