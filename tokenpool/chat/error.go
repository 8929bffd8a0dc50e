package chat

import (
	"errors"
	"fmt"
)

// What can go wrong, by whose fault it is. All errors of this package but those
// of ReadFiles, and of a context that has ended, wrap one of these.
var (
	// ErrRequest: the request is malformed or asks for what cannot be.
	ErrRequest = errors.New("chat: bad request")
	// ErrNoTemplate: the model has no chat template, or none of that name.
	ErrNoTemplate = errors.New("chat: no chat template")
	// ErrFiles: the model's files are malformed.
	ErrFiles = errors.New("chat: malformed files of the model")
	// ErrCompile: the template is not valid.
	ErrCompile = errors.New("chat: the template does not compile")
	// ErrRaised: the template refuses the conversation with raise_exception, as
	// it would in the engine. The message is the template's own.
	ErrRaised = errors.New("chat: the template refuses the conversation")
	// ErrTemplate: the template fails on this conversation, as it would in the
	// engine (an undefined value, a method that there is not).
	ErrTemplate = errors.New("chat: the template fails")
	// ErrLimit: rendering reached one of Limits.
	ErrLimit = errors.New("chat: the template reached a limit")
	// ErrTooLarge: the request has more items or JSON values than Limits allow.
	ErrTooLarge = errors.New("chat: the request is too large")
	// ErrInternal: the library panicked. A fault of ours.
	ErrInternal = errors.New("chat: internal error of the template library")
)

// Error is an error of a template.
type Error struct {
	// Kind is the sentinel that the error wraps.
	Kind error
	// Line is the line of the template, from 1; 0 when it is not known.
	Line int
	// Message says what is wrong. It may quote the template and hold values of
	// the conversation, so it does not belong into logs.
	Message string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%v: line %d: %s", e.Kind, e.Line, e.Message)
	}
	return fmt.Sprintf("%v: %s", e.Kind, e.Message)
}

// Unwrap returns Kind.
func (e *Error) Unwrap() error { return e.Kind }

// kindOf translates the library's status (rust/hftmpl.rs); other is for what it
// leaves to the caller.
func kindOf(status int, other error) error {
	switch status {
	case 1:
		return ErrCompile
	case 2:
		return ErrRaised
	case 3, 4, 5:
		return ErrLimit
	case 6:
		return ErrRequest
	case 8:
		return ErrInternal
	}
	return other
}

// bad makes an ErrRequest that names the part of the request it is about.
func bad(where, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrRequest, where, fmt.Sprintf(format, args...))
}
