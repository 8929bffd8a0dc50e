package tokenpool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/tokenpool/chat"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// Origin is where tokenizers come from. Directory and Hub implement it.
type Origin interface {
	// Stat says, without waiting for a network, which version of the model's
	// tokenizer Fetch would give. The version is opaque and changes when the
	// file does; it is empty when only Fetch can report whether there is one.
	// An error that wraps ErrUnknownModel says that there is none.
	Stat(model string) (version string, err error)

	// Fetch returns the model's tokenizer. An error that wraps ErrUnknownModel
	// says that there is none; any other, that it could not be had now.
	Fetch(ctx context.Context, model string) (Files, error)
}

// Files are what an Origin has of a model.
type Files struct {
	// Files are those that make the tokenizer.
	tokenfile.Files
	// Chat are the other files that say how chats are rendered; its Config may
	// be nil. ChatErr says why they could not be read, which does not keep the
	// tokenizer from being used.
	Chat    chat.Files
	ChatErr error
	// Media is the content of media.json, with the model's own rules of where its
	// media stand; nil when there is none.
	Media []byte
	// From names the origin for people: "directory" or "hub".
	From string
	// Revision is the commit (or branch, where the commit is not known) that
	// the files are of; empty in a directory.
	Revision string
	// Version is what Stat says of these files.
	Version string
}

const (
	// maxTokenizerFile is the largest tokenizer read. Gemma 3 has 33 MB.
	maxTokenizerFile = 256 << 20
	// maxConfigFile is the largest tokenizer_config.json read. It holds the
	// chat template.
	maxConfigFile = 8 << 20
	// maxModelName is the longest model name, in bytes.
	maxModelName = 256
	// modelFile is the name of the file that Files.Model is of.
	modelFile = "config.json"
)

// Chain returns an Origin that asks the given ones in turn, until one has the
// model. If none does, the error holds the reason of each. An origin that
// fails otherwise ends the search, so that a fault of the first does not bring
// another tokenizer from the second.
func Chain(origins ...Origin) Origin {
	if len(origins) == 1 {
		return origins[0]
	}
	return chain(origins)
}

type chain []Origin

func (c chain) Stat(model string) (string, error) {
	unknown := unknownEverywhere{model: model}
	for i, o := range c {
		version, err := o.Stat(model)
		switch {
		case err == nil && version == "":
			return "", nil
		case err == nil:
			return fmt.Sprintf("%d:%s", i, version), nil
		case !errors.Is(err, ErrUnknownModel):
			return "", err
		}
		unknown.add(err)
	}
	return "", unknown.err()
}

func (c chain) Fetch(ctx context.Context, model string) (Files, error) {
	unknown := unknownEverywhere{model: model}
	for i, o := range c {
		files, err := o.Fetch(ctx, model)
		if err == nil {
			files.Version = fmt.Sprintf("%d:%s", i, files.Version)
			return files, nil
		}
		if !errors.Is(err, ErrUnknownModel) {
			return Files{}, err
		}
		unknown.add(err)
	}
	return Files{}, unknown.err()
}

// unknownEverywhere collects why each origin does not have a model.
type unknownEverywhere struct {
	model   string
	reasons []string
	slow    bool
}

func (u *unknownEverywhere) add(err error) {
	reason := err.Error()
	if e, ok := errors.AsType[*unknownError](err); ok {
		reason = e.reason
		u.slow = u.slow || e.slow
	}
	u.reasons = append(u.reasons, reason)
}

func (u *unknownEverywhere) err() error {
	if len(u.reasons) == 0 {
		u.reasons = []string{"no place to look is configured"}
	}
	return &unknownError{model: u.model, reason: strings.Join(u.reasons, "; "), slow: u.slow}
}

// unknownError is an ErrUnknownModel with its reason.
type unknownError struct {
	model, reason string
	// slow says that the model is there, without a tokenizer that can be run. By
	// entry it is there without a file; by maybe it may be there.
	slow, entry, maybe bool
}

func (e *unknownError) Error() string {
	if e.slow {
		return fmt.Sprintf("%v: model %s: %s", ErrUnsupported, tokenfile.Quote(e.model), e.reason)
	}
	return fmt.Sprintf("%v %s: %s", ErrUnknownModel, tokenfile.Quote(e.model), e.reason)
}

func (e *unknownError) Is(target error) bool {
	return target == ErrUnknownModel || e.slow && target == ErrUnsupported
}

func unknown(model, format string, args ...any) error {
	return &unknownError{model: model, reason: fmt.Sprintf(format, args...)}
}

// unsupported is an unknown model too: another origin may have it in a form that
// can be run.
func unsupported(model, format string, args ...any) error {
	return &unknownError{model: model, reason: fmt.Sprintf(format, args...), slow: true}
}

// checkModel refuses names that could lead out of a folder or into a strange
// file. They come from clients.
func checkModel(model string) error {
	bad := func(why string) error { return unknown(model, "not a model name: %s", why) }
	switch {
	case model == "":
		return bad("it is empty")
	case len(model) > maxModelName:
		return bad(fmt.Sprintf("%d bytes are more than %d", len(model), maxModelName))
	case !utf8.ValidString(model):
		return bad("it is not valid UTF-8")
	case strings.HasPrefix(model, "/"):
		return bad("it is an absolute path")
	case strings.Contains(model, `\`):
		return bad("it has a backslash")
	case strings.ContainsFunc(model, unicode.IsControl):
		return bad("it has a control character")
	}
	for part := range strings.SplitSeq(model, "/") {
		switch {
		case part == "":
			return bad("a part between slashes is empty")
		case strings.HasPrefix(part, "."):
			return bad("a part between slashes begins with a dot")
		}
	}
	return nil
}
