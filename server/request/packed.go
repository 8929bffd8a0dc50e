package request

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
)

// TokensType is the media type of a body whose prompt is tokens in binary. It has a JSON
// object with the other fields in one line, and a line feed. The tokens follow, up to the end
// of the body, u32 little-endian.
const TokensType = "application/vnd.kvatlas.tokens"

// IsTokensType reports whether a Content-Type is TokensType, with parameters or without.
func IsTokensType(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(t), TokensType)
}

// CutTokens cuts a body of TokensType into its object and its tokens.
func CutTokens(body []byte) (head, tokens []byte, err error) {
	head, tokens, found := bytes.Cut(body, []byte{'\n'})
	if !found {
		return nil, nil, refusal.Invalid("tokens", "there is no line feed between the object and the tokens: a body of %s has the object in one line", TokensType)
	}
	return head, tokens, nil
}

// ReadBinary reads the tokens behind the object, and returns the object's form with them.
func (in *Input) ReadBinary(f scan.Form, tokens []byte) (scan.Form, error) {
	switch most := in.Limits.MaxTokens; {
	case f.Has("tokens"):
		return f, refusal.Invalid("tokens", "tokens are given twice, in the object and behind it")
	case len(tokens)%4 != 0:
		return f, refusal.Invalid("tokens", "there are %d bytes behind the object, which are no whole tokens: they have 4 bytes each, little-endian", len(tokens))
	case len(tokens)/4 > most:
		return f, refusal.TooLarge("tokens", "tokens has more than %d elements, the limit", most)
	}
	in.Tokens = appendTokens(in.Tokens[:0], tokens)
	return f.With("tokens"), nil
}

// appendTokens appends u32 little-endian, of which raw has whole ones.
func appendTokens(dst []uint32, raw []byte) []uint32 {
	n := len(dst)
	dst = slices.Grow(dst, len(raw)/4)[:n+len(raw)/4]
	for i := n; len(raw) >= 4; i++ {
		dst[i] = binary.LittleEndian.Uint32(raw)
		raw = raw[4:]
	}
	return dst
}

var (
	errNotBase64   = errors.New("request: not base64")
	errPartOfToken = errors.New("request: not whole tokens")
)

// appendPacked appends tokens that are u32 little-endian in base64 (RFC 4648, section 4), with
// padding or without.
//
// Sixteen digits are three tokens. They are looked up in tables that have each digit's bits
// where they belong, so that no bytes lie between text and tokens.
func appendPacked(dst []uint32, b []byte) ([]uint32, error) {
	whole := len(b) / 16 * 16
	if whole > 0 && whole == len(b) {
		whole -= 16 // which may have padding
	}
	dst = slices.Grow(dst, len(b)*3/16+3)
	for ; whole > 0; whole -= 16 {
		x, y, z, w := triple(b[0:4]), triple(b[4:8]), triple(b[8:12]), triple(b[12:16])
		if (x|y|z|w)>>24 != 0 {
			return dst, errNotBase64
		}
		dst = append(dst, x|y<<24, y>>8|z<<16, z>>16|w<<8)
		b = b[16:]
	}
	enc := base64.RawStdEncoding
	if len(b)%4 == 0 {
		enc = base64.StdEncoding
	}
	var raw [12]byte
	n, err := enc.Strict().Decode(raw[:], b)
	// The decoder skips line ends; then it gives less than the digits make.
	if digits := bytes.TrimRight(b, "="); err != nil || n != base64.RawStdEncoding.DecodedLen(len(digits)) {
		return dst, errNotBase64
	}
	if n%4 != 0 {
		return dst, errPartOfToken
	}
	return appendTokens(dst, raw[:n]), nil
}

// triple returns the three bytes that four digits are, the first one lowest, and more where
// one is none.
func triple(b []byte) uint32 {
	_ = b[3]
	return digits[0][b[0]] | digits[1][b[1]] | digits[2][b[2]] | digits[3][b[3]]
}

// digits are the bits of a digit of base64 in each of four places, within three bytes of which
// the first is lowest. A value of 1<<24 is no digit.
var digits = func() (t [4][256]uint32) {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	for c := range 256 {
		v := uint32(strings.IndexByte(alphabet, byte(c)))
		if v > 63 {
			t[0][c], t[1][c], t[2][c], t[3][c] = 1<<24, 1<<24, 1<<24, 1<<24
			continue
		}
		t[0][c], t[1][c], t[2][c], t[3][c] = v<<2, v>>4|v&15<<12, v>>2<<8|v&3<<22, v<<16
	}
	return t
}()
