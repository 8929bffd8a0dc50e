package server

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/bits"
	"net/http"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// scanner reads one JSON text (RFC 8259) in one pass, straight into the fields
// of a request. encoding/json takes 8 to 15 times as long over a long array of
// tokens, since it looks at every byte twice and at every number through
// reflection; that was most of the time of a request.
//
// It takes exactly what encoding/json takes with DisallowUnknownFields, less
// what that lets pass: repeated fields, names in another case, null, data
// after the value, invalid UTF-8 and lone surrogates. FuzzDecode holds the two
// against each other.
type scanner struct {
	data  []byte
	pos   int
	path  []byte // the field being read, for errors
	plain []byte // the last string that had escapes, without them
}

// start begins a text.
func (s *scanner) start(data []byte) {
	s.data, s.pos, s.path = data, 0, s.path[:0]
}

// field reads one field of T.
type field[T any] struct {
	name string
	read func(*scanner, *T) error
}

// fields are what an object may hold, at most 64.
type fields[T any] []field[T]

// decode reads the text as one object and nothing after it. It returns the set
// of fields that were there, by their place in fs.
func decode[T any](s *scanner, fs fields[T], dst *T) (seen uint64, err error) {
	s.space()
	if s.pos == len(s.data) {
		return 0, &apiError{status: http.StatusBadRequest, code: codeInvalidJSON, message: "the body is empty, it must be a JSON object"}
	}
	seen, err = object(s, fs, dst)
	if err != nil {
		return 0, err
	}
	s.space()
	if s.pos < len(s.data) {
		return 0, s.syntax("end of the body")
	}
	return seen, nil
}

func object[T any](s *scanner, fs fields[T], dst *T) (seen uint64, err error) {
	if !s.take('{') {
		return 0, s.unexpected("an object")
	}
	base := len(s.path)
	s.space()
	if s.take('}') {
		return 0, nil
	}
	for {
		s.space()
		name, err := s.string("a field's name")
		if err != nil {
			return 0, err
		}
		s.path = append(s.path[:base], name...)
		i := 0
		for i < len(fs) && fs[i].name != string(name) {
			i++
		}
		if i == len(fs) {
			return 0, &apiError{status: http.StatusBadRequest, code: codeUnknownField, param: clipText(string(s.path)), message: "there is no such field"}
		}
		if seen&(1<<i) != 0 {
			return 0, s.wrong("is given twice")
		}
		seen |= 1 << i
		s.space()
		if !s.take(':') {
			return 0, s.syntax("':'")
		}
		s.space()
		if err := fs[i].read(s, dst); err != nil {
			return 0, err
		}
		s.path = s.path[:base]
		s.space()
		if s.take('}') {
			return seen, nil
		}
		if !s.take(',') {
			return 0, s.syntax("',' or '}'")
		}
	}
}

// array reads the elements of an array, at most limit.
func (s *scanner) array(what string, limit int, element func() error) error {
	if !s.take('[') {
		return s.unexpected(what)
	}
	s.space()
	if s.take(']') {
		return nil
	}
	base := len(s.path)
	for n := 0; ; n++ {
		if n == limit {
			return s.tooMany(limit)
		}
		s.space()
		s.element(n)
		if err := element(); err != nil {
			return err
		}
		s.path = s.path[:base]
		s.space()
		if s.take(']') {
			return nil
		}
		if !s.take(',') {
			return s.syntax("',' or ']'")
		}
	}
}

// tokens appends an array of token ids to dst. This is where most bytes of
// most requests pass.
func (s *scanner) tokens(dst []uint32, limit int) ([]uint32, error) {
	if !s.take('[') {
		return dst, s.unexpected("an array of tokens")
	}
	s.space()
	if s.take(']') {
		return dst, nil
	}
	first, data := len(dst), s.data
	for {
		if len(dst)-first == limit {
			return dst, s.tooMany(limit)
		}
		// A local position stays in a register.
		i := s.pos
		if v, n := shortNumber(data[i:]); n > 0 && data[i+n] == ',' {
			dst = append(dst, v)
			s.pos = i + n + 1
			continue
		}
		if i < len(data) && isSpace(data[i]) {
			s.space()
			i = s.pos
		}
		start := i
		var v uint64
		for i < len(data) {
			d := data[i] - '0'
			if d > 9 {
				break
			}
			v = v*10 + uint64(d)
			i++
		}
		n := i - start
		if n == 0 || n > 10 || v > math.MaxUint32 || (n > 1 && data[start] == '0') {
			return dst, s.badToken(len(dst) - first)
		}
		if i < len(data) && isSpace(data[i]) {
			s.pos = i
			s.space()
			i = s.pos
		}
		if i == len(data) {
			s.pos = i
			return dst, s.syntax("',' or ']'")
		}
		dst = append(dst, uint32(v))
		switch data[i] {
		case ',':
			s.pos = i + 1
		case ']':
			s.pos = i + 1
			return dst, nil
		case '.', 'e', 'E':
			return dst, s.badToken(len(dst) - first - 1)
		default:
			s.pos = i
			return dst, s.syntax("',' or ']'")
		}
	}
}

// shortNumber reads the 1 to 7 digits that b begins with and says how many they
// are; 0 stands for all else, and for what is near the end of b. It takes the
// digits together instead of one by one, which halves the time of a long list:
// their number varies from token to token, so a loop over them is mispredicted
// at every end.
func shortNumber(b []byte) (v uint32, n int) {
	if len(b) < 8 {
		return 0, 0
	}
	w := binary.LittleEndian.Uint64(b) ^ 0x3030303030303030 // digits become 0 to 9
	stop := ((w + 0x0606060606060606) | w) & 0xf0f0f0f0f0f0f0f0
	n = bits.TrailingZeros64(stop) / 8
	if n == 0 || n == 8 || (w&0xff == 0 && n > 1) {
		return 0, 0
	}
	w <<= 64 - 8*n // as if zeros stood in front, to make 8 digits
	w = (w * (10<<8 + 1)) >> 8 & 0x00ff00ff00ff00ff
	w = (w * (100<<16 + 1)) >> 16 & 0x0000ffff0000ffff
	w = (w * (10000<<32 + 1)) >> 32
	return uint32(w), n
}

// badToken says what is wrong with the element at s.pos.
func (s *scanner) badToken(n int) error {
	s.element(n)
	_, err := s.uint(math.MaxUint32, "a whole number")
	if err == nil {
		err = s.syntax("a token")
	}
	return err
}

// blockKeys appends an array of block keys to dst.
func (s *scanner) blockKeys(dst []blockkey.Key, limit int) ([]blockkey.Key, error) {
	if !s.take('[') {
		return dst, s.unexpected("an array of block keys")
	}
	s.space()
	if s.take(']') {
		return dst, nil
	}
	base := len(s.path)
	for first := len(dst); ; {
		if len(dst)-first == limit {
			return dst, s.tooMany(limit)
		}
		s.space()
		k, ok := s.plainKey()
		if !ok {
			s.element(len(dst) - first)
			var err error
			if k, err = s.escapedKey(); err != nil {
				return dst, err
			}
			s.path = s.path[:base]
		}
		dst = append(dst, k)
		s.space()
		if s.take(']') {
			return dst, nil
		}
		if !s.take(',') {
			return dst, s.syntax("',' or ']'")
		}
	}
}

// plainKey reads a block key that is written without escapes, as all are.
func (s *scanner) plainKey() (blockkey.Key, bool) {
	b := s.data[s.pos:]
	if len(b) < 18 || b[0] != '"' || b[17] != '"' {
		return 0, false
	}
	v, ok := hex16(b[1:17])
	if ok {
		s.pos += 18
	}
	return blockkey.Key(v), ok
}

// escapedKey reads a block key of any spelling, or says what is wrong with it.
func (s *scanner) escapedKey() (blockkey.Key, error) {
	b, err := s.string("a string of 16 hex digits")
	if err != nil {
		return 0, err
	}
	k, err := blockkey.ParseKey(string(b))
	if err != nil {
		return 0, s.wrong("is not a block key: it takes a string of 16 hex digits")
	}
	return k, nil
}

// element puts the place in an array into the path.
func (s *scanner) element(n int) {
	s.path = append(s.path, '[')
	s.path = append(strconv.AppendInt(s.path, int64(n), 10), ']')
}

func hex16(b []byte) (v uint64, ok bool) {
	for _, c := range b {
		d := hexDigit[c]
		if d > 15 {
			return 0, false
		}
		v = v<<4 | uint64(d)
	}
	return v, true
}

// hexDigit is the value of a hex digit, 0xff for what is none.
var hexDigit = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range byte(10) {
		t['0'+i] = i
	}
	for i := range byte(6) {
		t['a'+i], t['A'+i] = 10+i, 10+i
	}
	return t
}()

// string reads a string. The bytes are valid until the next one is read.
func (s *scanner) string(what string) ([]byte, error) {
	if !s.take('"') {
		return nil, s.unexpected(what)
	}
	start := s.pos
	ascii := s.run()
	if s.pos < len(s.data) && s.data[s.pos] == '"' {
		b := s.data[start:s.pos]
		s.pos++
		if !ascii && !utf8.Valid(b) {
			return nil, s.notUTF8(start)
		}
		return b, nil
	}
	return s.escaped(start, ascii)
}

// escaped reads on a string whose first escape (or fault) is at s.pos.
func (s *scanner) escaped(start int, ascii bool) ([]byte, error) {
	out := s.plain[:0]
	out = append(out, s.data[start:s.pos]...)
	defer func() { s.plain = out }()
	for {
		if s.pos == len(s.data) {
			return nil, s.syntax("the end of a string")
		}
		switch c := s.data[s.pos]; {
		case c == '"':
			if !ascii && !utf8.Valid(out) {
				return nil, s.notUTF8(start)
			}
			s.pos++
			return out, nil
		case c != '\\':
			return nil, s.syntax("no control character in a string (write it as an escape)")
		}
		s.pos++
		if s.pos == len(s.data) {
			return nil, s.syntax("the rest of an escape")
		}
		switch c := s.data[s.pos]; c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, err := s.unicode()
			if err != nil {
				return nil, err
			}
			out = utf8.AppendRune(out, r)
		default:
			return nil, s.syntax("one of \"\\/bfnrtu after a backslash")
		}
		s.pos++
		from := s.pos
		ascii = s.run() && ascii
		out = append(out, s.data[from:s.pos]...)
	}
}

// unicode reads the digits of a \u escape, both halves of a pair, and leaves
// s.pos at the last digit.
func (s *scanner) unicode() (rune, error) {
	r, err := s.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if b := s.data[s.pos:]; len(b) > 2 && b[1] == '\\' && b[2] == 'u' {
		s.pos += 2
		low, err := s.hex4()
		if err != nil {
			return 0, err
		}
		if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
			return r, nil
		}
	}
	return 0, s.wrong("has half of a surrogate pair, which is no character")
}

func (s *scanner) hex4() (rune, error) {
	b := s.data[s.pos+1:]
	var r rune
	for i := range 4 {
		if i == len(b) || hexDigit[b[i]] > 15 {
			s.pos += 1 + i
			return 0, s.syntax("4 hex digits after \\u")
		}
		r = r<<4 | rune(hexDigit[b[i]])
	}
	s.pos += 4
	return r, nil
}

// run moves s.pos over the bytes that stand for themselves in a string, and
// says whether all of them were ASCII. It looks at 8 bytes at once.
func (s *scanner) run() (ascii bool) {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	data, i := s.data, s.pos
	var high uint64
	for len(data)-i >= 8 {
		w := binary.LittleEndian.Uint64(data[i:])
		quote, back := w^ones*'"', w^ones*'\\'
		// The top bit of each byte that is below 0x20, a quote or a backslash;
		// the lowest bit set is always right, those above it may not be.
		stop := ((w - ones*0x20) &^ w) | ((quote - ones) &^ quote) | ((back - ones) &^ back)
		if stop &= tops; stop != 0 {
			n := bits.TrailingZeros64(stop) / 8
			high |= w & (1<<(8*n) - 1)
			s.pos = i + n
			return high&tops == 0
		}
		high |= w
		i += 8
	}
	for ; i < len(data); i++ {
		c := data[i]
		if c < 0x20 || c == '"' || c == '\\' {
			break
		}
		high |= uint64(c)
	}
	s.pos = i
	return high&tops == 0
}

// text reads a string into memory of its own.
func (s *scanner) text(dst *string) error {
	b, err := s.string("a string")
	if err == nil {
		*dst = string(b)
	}
	return err
}

// bool reads true or false.
func (s *scanner) bool(dst *bool) error {
	switch b := s.data[s.pos:]; {
	case bytes.HasPrefix(b, []byte("true")):
		*dst, s.pos = true, s.pos+4
	case bytes.HasPrefix(b, []byte("false")):
		*dst, s.pos = false, s.pos+5
	default:
		return s.unexpected("true or false")
	}
	return nil
}

// uint reads a whole number from 0 to limit; what says in words what it is.
func (s *scanner) uint(limit uint64, what string) (uint64, error) {
	start := s.pos
	raw, err := s.raw(what)
	if err != nil {
		return 0, err
	}
	if c := raw[0]; c != '-' && (c < '0' || c > '9') {
		s.pos = start
		return 0, s.unexpected(what)
	}
	v, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil || v > limit {
		return 0, s.wrong("is " + clipText(string(raw)) + ", it must be a whole number from 0 to " + strconv.FormatUint(limit, 10))
	}
	return v, nil
}

// raw reads any value without looking into it, and checks that it is JSON.
func (s *scanner) raw(what string) ([]byte, error) {
	start, depth := s.pos, 0
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case '"':
			if _, err := s.string(what); err != nil {
				return nil, err
			}
		case '{', '[':
			depth++
			s.pos++
		case '}', ']':
			if depth == 0 {
				return s.checked(start, what)
			}
			depth--
			s.pos++
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return s.checked(start, what)
			}
			s.pos++
		default:
			s.pos++
			continue
		}
		if depth == 0 {
			break
		}
	}
	return s.checked(start, what)
}

func (s *scanner) checked(start int, what string) ([]byte, error) {
	b := s.data[start:s.pos]
	if !json.Valid(b) {
		s.pos = start
		return nil, s.syntax(what)
	}
	return b, nil
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

func (s *scanner) space() {
	for s.pos < len(s.data) && isSpace(s.data[s.pos]) {
		s.pos++
	}
}

func (s *scanner) take(c byte) bool {
	if s.pos < len(s.data) && s.data[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

func (s *scanner) at(c byte) bool { return s.pos < len(s.data) && s.data[s.pos] == c }

// The errors. All of them say the place.

// syntax is for what is no JSON.
func (s *scanner) syntax(want string) *apiError {
	found := "the end of the body"
	if s.pos < len(s.data) {
		found = strconv.QuoteToASCII(string(s.data[s.pos : s.pos+1]))
	}
	return &apiError{
		status: http.StatusBadRequest, code: codeInvalidJSON, param: clipText(string(s.path)),
		message: "expected " + want + " at byte " + strconv.Itoa(s.pos) + ", found " + found,
	}
}

// unexpected is for a value of another kind than the field takes.
func (s *scanner) unexpected(want string) *apiError {
	if s.pos == len(s.data) {
		return s.syntax(want)
	}
	var kind string
	b := s.data[s.pos:]
	switch c := b[0]; {
	case c == '"':
		kind = "a string"
	case c == '{':
		kind = "an object"
	case c == '[':
		kind = "an array"
	case c == '-' || (c >= '0' && c <= '9'):
		kind = "a number"
	case bytes.HasPrefix(b, []byte("true")), bytes.HasPrefix(b, []byte("false")):
		kind = "true or false"
	case bytes.HasPrefix(b, []byte("null")):
		kind = "null"
	default:
		return s.syntax(want)
	}
	if len(s.path) == 0 {
		return &apiError{status: http.StatusBadRequest, code: codeInvalidJSON, message: "expected " + want + " at byte " + strconv.Itoa(s.pos) + ", found " + kind}
	}
	if kind == "null" && s.path[len(s.path)-1] != ']' {
		kind += " (leave the field out instead)"
	}
	return s.wrong("takes " + want + ", not " + kind)
}

// wrong is for a value that the field cannot have.
func (s *scanner) wrong(why string) *apiError {
	p := clipText(string(s.path))
	return invalid(p, "%s %s", p, why)
}

// refused is for a value that the index does not take.
func (s *scanner) refused(err error) *apiError {
	return invalid(clipText(string(s.path)), "%s", plain(err, store.ErrInvalid))
}

func (s *scanner) tooMany(limit int) *apiError {
	p := string(s.path)
	return tooLarge(p, "%s has more than %d elements, the limit", p, limit)
}

func (s *scanner) notUTF8(start int) *apiError {
	b := s.data[start:]
	at := start
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			break
		}
		b, at = b[n:], at+n
	}
	return &apiError{
		status: http.StatusBadRequest, code: codeInvalidJSON, param: clipText(string(s.path)),
		message: "a string is not UTF-8 at byte " + strconv.Itoa(at),
	}
}

// clipText keeps what a client sent readable in an error.
func clipText(t string) string {
	const most = 64
	if len(t) <= most {
		return t
	}
	n := most
	for n > 0 && !utf8.RuneStart(t[n]) {
		n--
	}
	return t[:n] + "..."
}
