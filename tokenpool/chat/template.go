package chat

/*
#cgo linux LDFLAGS: -ltokenizers -ldl -lm -lstdc++
#cgo darwin LDFLAGS: -ltokenizers -ldl -lm -lc++
#include <stdint.h>
#include <stddef.h>

typedef struct { uint8_t *ptr; size_t len; } hft_buf;
typedef struct { uint64_t fuel, output; uint32_t recursion; } hft_limits;
typedef struct {
	int64_t unix_s;
	int32_t year, month, day, hour, minute, second, micro, weekday, yearday, iso_year, iso_week;
} hft_now;

void *hft_new(const uint8_t *src, size_t n, int32_t *status, uint32_t *line, hft_buf *message);
int32_t hft_loops_over_content(const void *t);
int32_t hft_render(const void *t, const uint8_t *ctx, size_t n, const hft_limits *limits, const hft_now *now, uint32_t *line, hft_buf *out);
void hft_free_buf(hft_buf b);
void hft_free(void *t);

#cgo noescape hft_new
#cgo nocallback hft_new
#cgo noescape hft_render
#cgo nocallback hft_render
#cgo nocallback hft_loops_over_content
#cgo nocallback hft_free_buf
#cgo nocallback hft_free
*/
import "C"

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"time"
	"unsafe"

	// libtokenizers.a is linked from the project's own folder.
	_ "github.com/kvatlas/kvatlas/tokenpool/internal/link"
)

// MaxTemplateBytes is the longest template that is compiled. The longest known
// one has 20 KB.
const MaxTemplateBytes = 256 << 10

// Limits bound one rendering. Zero fields take the default.
type Limits struct {
	// Fuel bounds the work, and with it time and memory. An instruction of the
	// template takes one, and so do 64 bytes of text made or read. A million take
	// 64 MB and some 0.1 s, at most. Default 1,000,000, and 6 more for each byte
	// of the context, 20,000,000 at most. Real templates need that much for tools,
	// and far less than 1 for a byte of text.
	Fuel uint64
	// GivenFuel is Fuel for templates that requests bring. Default 100,000, and 6
	// more for each byte of the context, 2,000,000 at most. Templates alone do not
	// look at it.
	GivenFuel uint64
	// OutputBytes is the longest text. Default 8 MiB.
	OutputBytes uint64
	// Recursion is how deep a template may nest loops and macros, of which a
	// macro takes about 5. Default and limit 500.
	Recursion uint32
	// Items is how many messages, parts of contents, tool calls, tools and documents
	// a request may have together. Default 65,536. Templates alone do not look at it.
	Items int
	// Values is how many JSON values a request may have together, in messages, tools,
	// documents and template kwargs. Each object, array, string, number, boolean and
	// null counts; keys do not. Default 1,048,576. Templates alone do not look at it.
	Values int
}

// Defaults of Limits.
const (
	defaultFuel      = 1_000_000
	defaultGivenFuel = 100_000
	fuelPerByte      = 6
	maxFuel          = 20_000_000
	maxGivenFuel     = 2_000_000
	defaultOutput    = 8 << 20
	maxRecursion     = 500
)

// given are the limits for a template that a request brings, with a context of n bytes.
func (l Limits) given(n int) Limits {
	l.Fuel = cmp.Or(l.GivenFuel, min(defaultGivenFuel+fuelPerByte*uint64(n), maxGivenFuel))
	return l
}

// Format says how a template takes the contents of messages.
type Format string

// The formats, by the names that vLLM gives them.
const (
	// FormatString: the content is one string.
	FormatString Format = "string"
	// FormatOpenAI: the content is a list of typed parts.
	FormatOpenAI Format = "openai"
)

// Template is a compiled chat template. It is safe for concurrent use. Its memory
// outside of Go's heap, some 10 times the length of the source, is given back when it
// is collected.
type Template struct {
	ptr     unsafe.Pointer
	source  string
	format  Format
	cleanup runtime.Cleanup
}

// Compile compiles a chat template of at most MaxTemplateBytes. Its error wraps
// ErrCompile and is an *Error.
func Compile(source string) (*Template, error) {
	if len(source) > MaxTemplateBytes {
		return nil, &Error{Kind: ErrCompile, Message: fmt.Sprintf("%d bytes are more than %d", len(source), MaxTemplateBytes)}
	}
	var (
		status  C.int32_t
		line    C.uint32_t
		message C.hft_buf
	)
	//nolint:gocritic // the comparison that it finds is in code that cgo writes
	p := C.hft_new(bytesOf(source), C.size_t(len(source)), &status, &line, &message)
	if p == nil {
		return nil, &Error{Kind: kindOf(int(status), ErrCompile), Line: int(line), Message: take(message)}
	}
	t := &Template{ptr: p, source: source, format: FormatString}
	if C.hft_loops_over_content(p) != 0 {
		t.format = FormatOpenAI
	}
	t.cleanup = runtime.AddCleanup(t, func(p unsafe.Pointer) { C.hft_free(p) }, p)
	return t, nil
}

// close gives the memory back before the collector does. Nothing may follow.
func (t *Template) close() {
	t.cleanup.Stop()
	C.hft_free(t.ptr)
	t.ptr = nil
}

// Source returns what the template was compiled from.
func (t *Template) Source() string { return t.source }

// Format reports whether the template goes over the parts of a message's content,
// judged by vLLM's rules ("auto").
func (t *Template) Format() Format { return t.format }

// Render renders the template. The context is a JSON object whose members are
// the template's variables; the order of keys is kept. Argument now is what
// strftime_now gives, in its location. The error is an *Error that wraps
// ErrRaised, ErrTemplate, ErrLimit or ErrRequest (a context that is no JSON
// object).
func (t *Template) Render(context string, limits Limits, now time.Time) (string, error) {
	c := C.hft_limits{
		fuel:      C.uint64_t(cmp.Or(limits.Fuel, min(defaultFuel+fuelPerByte*uint64(len(context)), maxFuel))),
		output:    C.uint64_t(cmp.Or(min(limits.OutputBytes, math.MaxInt32), defaultOutput)),
		recursion: C.uint32_t(cmp.Or(min(limits.Recursion, maxRecursion), maxRecursion)),
	}
	isoYear, isoWeek := now.ISOWeek()
	at := C.hft_now{
		unix_s: C.int64_t(now.Unix()),
		year:   C.int32_t(now.Year()), month: C.int32_t(now.Month()), day: C.int32_t(now.Day()),
		hour: C.int32_t(now.Hour()), minute: C.int32_t(now.Minute()), second: C.int32_t(now.Second()),
		micro:   C.int32_t(now.Nanosecond() / 1000),
		weekday: C.int32_t(now.Weekday()), yearday: C.int32_t(now.YearDay()),
		iso_year: C.int32_t(isoYear), iso_week: C.int32_t(isoWeek),
	}
	var (
		line C.uint32_t
		out  C.hft_buf
	)
	//nolint:gocritic // the comparison that it finds is in code that cgo writes
	status := C.hft_render(t.ptr, bytesOf(context), C.size_t(len(context)), &c, &at, &line, &out)
	runtime.KeepAlive(t)
	text := take(out)
	if status != 0 {
		return "", &Error{Kind: kindOf(int(status), ErrTemplate), Line: int(line), Message: text}
	}
	return text, nil
}

// bytesOf returns the bytes of s, and a pointer to something if there are none.
func bytesOf(s string) *C.uint8_t {
	s = cmp.Or(s, "\x00")
	return (*C.uint8_t)(unsafe.Pointer(unsafe.StringData(s)))
}

// take copies a text of the library and gives it back.
func take(b C.hft_buf) string {
	defer C.hft_free_buf(b)
	return C.GoStringN((*C.char)(unsafe.Pointer(b.ptr)), C.int(b.len))
}
