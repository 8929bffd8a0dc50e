package tokenpool

import (
	"errors"

	"github.com/kvatlas/kvatlas/tokenpool/internal/media"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrUnknownModel says that no tokenizer is to be had for the model.
	ErrUnknownModel = errors.New("tokenpool: no tokenizer for model")
	// ErrUnsupported says, beside ErrUnknownModel, that the model is there, but has
	// its tokenizer in a form that only Python code can run.
	ErrUnsupported = errors.New("tokenpool: kind of tokenizer that cannot be run")
	// ErrPinned says that a model's tokenizer is not the one that Config.Pins asks
	// for.
	ErrPinned = errors.New("tokenpool: tokenizer is not the pinned one")
	// ErrMedia says that what a request reports its media cannot be: it has others.
	ErrMedia = media.Err
	// ErrBusy says that the queue is full; try again later.
	ErrBusy = errors.New("tokenpool: queue is full")
	// ErrTooLong says that the text is longer than the configured limit.
	ErrTooLong = errors.New("tokenpool: text is too long")
	// ErrInvalidText says that the text cannot be tokenized as it stands: it
	// holds a NUL byte or is not valid UTF-8.
	ErrInvalidText = errors.New("tokenpool: invalid text")
	// ErrInvalidTokens says that tokens are not the tokenizer's, or that their text
	// cannot be given: it holds a NUL byte.
	ErrInvalidTokens = errors.New("tokenpool: invalid tokens")
	// ErrTokenizer says that the tokenizer failed on the text.
	ErrTokenizer = errors.New("tokenpool: tokenizer failed")
	// ErrLoad says that a tokenizer for the model exists, as far as known, but could
	// not be fetched or read. Try again later.
	ErrLoad = tokenfile.ErrLoad
	// ErrBroken says, beside ErrLoad, that a file of the model cannot be read however
	// often it is tried. The error names the file, what is wrong and what to do.
	ErrBroken = tokenfile.ErrBroken
	// ErrClosed says that the pool has been closed.
	ErrClosed = errors.New("tokenpool: pool closed")
)
