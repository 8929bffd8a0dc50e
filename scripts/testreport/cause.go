package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Bounds of what the sum says about one failure.
const (
	firstMessages = 2   // of a test's messages, the first that are kept
	lastMessages  = 2   // and the last: what ended the test comes last
	messageBytes  = 400 // of a message
	ownFrames     = 3   // of a stack
)

// cause finds in the output of a test, or of a package outside of its tests, why it
// failed, and keeps that in few lines however much is printed. It is fed with pieces of
// output; the zero value is ready.
//
// What counts are crashes, data races and leaks, which name themselves, and then what
// the test has said with its file and line. go test does not tell t.Log from t.Error, so
// that the first messages are kept and the last ones.
type cause struct {
	crashes []string // crashes, data races, leaks: as they came, firstMessages of them
	first   []string // messages
	last    []string
	between int    // messages that are in neither
	other   string // the last line that is none of the above

	partial string // a line whose end has not come
	state   func(c *cause, line string) bool
	stack   stack
	message *string // that further lines belong to
}

var (
	// "    file_test.go:12: text", as t.Log, t.Error and t.Fatal print it.
	messageLine = regexp.MustCompile(`^\s{4,}([^\s:]+\.go:\d+): ?(.*)$`)
	// "\t/path/file.go:12 +0x1f", under a function's name in a stack.
	placeLine = regexp.MustCompile(`^\s+(\S+\.go:\d+)(?: \+0x[0-9a-f]+)?$`)
	// "(0xc000012345, {0x1, 0x2})", "()" or "(...)" behind a function, not the "(*T)" in it.
	arguments = regexp.MustCompile(`\((0x|\{|\.\.\.|\)|_).*$`)
	// What the testing package and the go command print around the output.
	frameLine = regexp.MustCompile(`^\s*(=== |--- (PASS|FAIL|SKIP|BENCH): |(PASS|FAIL)$|(ok|FAIL)\s|exit status |coverage: )`)
)

// write takes a piece of output. A line without an end waits for its end.
func (c *cause) write(s string) {
	c.partial += s
	for {
		line, rest, whole := strings.Cut(c.partial, "\n")
		if !whole {
			break
		}
		c.partial = rest
		c.line(strings.TrimRight(line, "\r"))
	}
	if len(c.partial) > 16*messageBytes { // a line that nobody can read: its head is enough
		c.partial = c.partial[:8*messageBytes]
	}
}

func (c *cause) line(line string) {
	// A crash goes on until its goroutines end, whatever their stacks look like.
	if c.state != nil && c.state(c, line) {
		return
	}
	c.state = nil
	text := strings.TrimSpace(line)
	switch {
	case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "),
		strings.HasPrefix(line, "SIG"), strings.HasPrefix(line, "runtime: goroutine stack exceeds"):
		c.crash(text, (*cause).inCrash)
	case text == "WARNING: DATA RACE":
		c.crash(text, (*cause).inRace)
	case strings.HasPrefix(text, "goleak: "):
		c.crash(text, (*cause).inLeak)
	case strings.HasPrefix(line, "signal: "):
		c.crash(text, nil)
	case frameLine.MatchString(line):
		c.message = nil
	case messageLine.MatchString(line):
		m := messageLine.FindStringSubmatch(line)
		c.say(m[1] + ": " + m[2])
	case c.message != nil && strings.HasPrefix(line, "        "):
		extend(c.message, " / ", text)
	case text != "":
		c.message = nil
		c.other = clipped(text)
	}
}

// say keeps a message among the first, or moves it through the last.
func (c *cause) say(text string) {
	text = clipped(text)
	if len(c.first) < firstMessages {
		c.first = append(c.first, text)
		c.message = &c.first[len(c.first)-1]
		return
	}
	if len(c.last) == lastMessages {
		c.last = slices.Delete(c.last, 0, 1)
		c.between++
	}
	c.last = append(c.last, text)
	c.message = &c.last[len(c.last)-1]
}

// crash begins to keep one, if there is room.
func (c *cause) crash(text string, state func(*cause, string) bool) {
	c.message, c.state, c.stack = nil, nil, stack{}
	if len(c.crashes) == firstMessages {
		if state != nil {
			c.state = func(_ *cause, line string) bool { return !strings.HasPrefix(line, "====") && line != "" }
		}
		return
	}
	c.crashes = append(c.crashes, clipped(text))
	c.state = state
}

func (c *cause) inLast(sep, text string) { extend(&c.crashes[len(c.crashes)-1], sep, text) }

// inCrash follows what comes behind "panic: ...": more of the message, up to an empty
// line, and the stacks of the goroutines. The first goroutine is the one that crashed;
// if it runs none of our code, as the alarm of a test that takes too long, it is the
// first that does in a test.
func (c *cause) inCrash(line string) bool {
	s := &c.stack
	switch {
	case strings.HasPrefix(line, "goroutine "):
		s.goroutines++
		s.begin("")
	case s.goroutines == 0:
		if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(text, "[signal ") {
			c.inLast(" / ", text)
		}
	case s.found:
	default:
		s.line(line)
		inTest := strings.HasPrefix(line, "testing.tRunner(") && !strings.HasPrefix(s.top, "testing.(*T).Run ") // for a subtest
		if len(s.frames) > 0 && (line == "" && s.goroutines == 1 || inTest) {
			s.found = true
			c.inLast(", in ", s.String())
		}
	}
	// Nothing but the result of the package comes behind a crash.
	return !frameLine.MatchString(line)
}

// inRace follows what comes behind "WARNING: DATA RACE": the stacks of the two accesses,
// then where their goroutines were begun.
func (c *cause) inRace(line string) bool {
	s := &c.stack
	switch {
	case strings.HasPrefix(line, "===="):
		return false
	case strings.HasPrefix(line, "Read at "), strings.HasPrefix(line, "Write at "), strings.HasPrefix(line, "Previous "):
		access, _, _ := strings.Cut(strings.ToLower(line), " at ")
		s.begin(access)
	case strings.TrimSpace(line) == "" && s.title != "":
		c.inLast(", ", s.title+" in "+s.String())
		s.title = ""
	default:
		s.line(line)
	}
	return true
}

// inLeak follows what comes behind "goleak: ...": the first of the goroutines.
func (c *cause) inLeak(line string) bool {
	s := &c.stack
	switch text := strings.TrimSpace(line); {
	case s.title == "" && text != "":
		s.begin(strings.TrimSuffix(strings.TrimPrefix(text, "["), ":"))
	case strings.HasPrefix(text, "]") || strings.HasPrefix(text, "[") || text == "":
		if s.top != "" {
			c.inLast(" ", s.title+", in "+s.String())
		}
		return false
	default:
		s.line(line)
	}
	return true
}

// end ends a stack that ends with the output.
func (c *cause) end() {
	if c.partial != "" {
		c.write("\n")
	}
	if c.state != nil {
		c.state(c, "")
		c.state = nil
	}
}

// told says whether there is a crash or a message.
func (c *cause) told() bool {
	c.end()
	return len(c.crashes)+len(c.first) > 0
}

// lines are the cause in a few lines, the most telling first.
func (c *cause) lines() []string {
	if !c.told() {
		if c.other == "" {
			return nil
		}
		return []string{c.other}
	}
	lines := slices.Clone(c.crashes)
	lines = append(lines, c.first...)
	if c.between > 0 {
		lines = append(lines, fmt.Sprintf("(%d more messages)", c.between))
	}
	return append(lines, c.last...)
}

// stack is the stack of a goroutine as it is printed: a function, and its place in the
// line below.
type stack struct {
	title      string // the access of a race
	goroutines int    // that have been seen
	found      bool
	function   string
	top        string   // frame
	frames     []string // of code that is not of the standard library
}

func (s *stack) begin(title string) {
	s.title, s.function, s.top, s.frames = title, "", "", s.frames[:0]
}

func (s *stack) line(line string) {
	m := placeLine.FindStringSubmatch(line)
	if m == nil {
		s.function = strings.TrimSpace(line)
		return
	}
	function := arguments.ReplaceAllString(s.function, "")
	frame := function[strings.LastIndexByte(function, '/')+1:] + " " + filepath.Base(m[1])
	if s.top == "" {
		s.top = frame
	}
	// Standard packages have no dot in the first element of their path.
	first, _, inside := strings.Cut(function, "/")
	ours := inside && strings.Contains(first, ".") || strings.HasPrefix(function, "main.")
	if ours && len(s.frames) < ownFrames && !strings.HasPrefix(function, "created by ") {
		s.frames = append(s.frames, frame)
	}
}

// String is the own frames, innermost first, or else the innermost frame of all.
func (s *stack) String() string {
	if len(s.frames) == 0 {
		return s.top
	}
	return strings.Join(s.frames, " < ")
}

func clipped(text string) string {
	if len(text) <= messageBytes {
		return text
	}
	return strings.ToValidUTF8(text[:messageBytes], "") + "..."
}

// extend adds to a message what still fits.
func extend(message *string, sep, text string) {
	if len(*message) < messageBytes {
		*message = clipped(*message + sep + text)
	}
}
