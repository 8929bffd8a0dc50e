package access

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

var (
	// ErrUnauthorized refuses a request whose token or certificate is unknown: send one that is in the
	// server's file of credentials.
	ErrUnauthorized = errors.New("access: the token is not known here")
	// ErrCredentials says that a file cannot be read as one of credentials.
	ErrCredentials = errors.New("access: not a file of credentials")
)

// Bounds of a file of credentials, and of a token.
const (
	maxCredentials = 256 // lines: each is compared with every token that comes
	maxFileBytes   = 1 << 20
	maxTokenBytes  = 512
	minTokenBytes  = 20 // of what Digest takes: a shorter one can be guessed from its digest
	minSaltBytes   = 16
	// maxSaltBytes is the longest cache_salt that vLLM takes, in which it takes none of '@', '/',
	// '\\' and NUL either.
	maxSaltBytes = 128
)

// Caller is the sender of a request.
type Caller struct {
	// Name is the credential's name in the file; empty for callers without one.
	Name string
	// Role is what the caller may do.
	Role Role
	// Salt is mixed into the cache salt of every request of the caller, see CacheSalt; empty
	// leaves salts to the caller. Only callers of role Read have one.
	Salt string
}

// CacheSalt returns the cache salt under which a request of the caller runs that asks for one
// itself, or for none (""). It is the caller's Salt, or the HMAC-SHA256 by it of what is
// asked, in base64url without padding. Callers of different Salts never get the same one, and
// engines take all of them, whatever is asked.
func (c Caller) CacheSalt(asked string) string {
	switch {
	case c.Salt == "":
		return asked
	case asked == "":
		return c.Salt
	}
	return keyedHash([]byte(c.Salt), asked)
}

// Scoped returns the name under which others keep what the caller calls name, such as a request or a
// session. It is a keyed hash of 43 letters, digits, hyphens and underscores, so callers of different
// Salts never share one. Without a Salt, or without a name, it is the name itself.
func (c Caller) Scoped(name string) string {
	if c.Salt == "" || name == "" {
		return name
	}
	// Engines show names in their answers: under the same key as CacheSalt's the caller would
	// read there what its cache salts are.
	key := sha256.Sum256([]byte("kvatlas names\x00" + c.Salt))
	return keyedHash(key[:], name)
}

func keyedHash(key []byte, text string) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// CheckSalt returns an error if salt cannot be the Salt of a caller: 16 to 128 letters, digits,
// hyphens and underscores. The error does not show it.
func CheckSalt(salt string) error {
	if len(salt) < minSaltBytes || len(salt) > maxSaltBytes {
		return fmt.Errorf("access: a salt has %d to %d characters, this one %d", minSaltBytes, maxSaltBytes, len(salt))
	}
	for i := range len(salt) {
		if c := salt[i] | 0x20; (c < 'a' || c > 'z') && (salt[i] < '0' || salt[i] > '9') && salt[i] != '-' && salt[i] != '_' {
			return errors.New("access: a salt has letters, digits, hyphens and underscores only")
		}
	}
	return nil
}

// credential is one line of the file: a digest of a token, or the name in a certificate.
type credential struct {
	caller Caller
	digest [sha256.Size]byte // of the token
	cert   string            // the certificate's name; empty: it is a token
}

// NewToken returns a token of 256 random bits, which needs no slow hash to be safe.
func NewToken() string { return "kva_" + NewSalt() }

// NewSalt returns a Salt of 256 random bits.
func NewSalt() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Digest is how a token stands in the file: "sha256:" and its SHA-256 in hex. Tokens of fewer
// than 20 bytes are refused.
func Digest(token string) (string, error) {
	if len(token) < minTokenBytes || len(token) > maxTokenBytes {
		return "", fmt.Errorf("access: a token has %d to %d bytes, this one %d", minTokenBytes, maxTokenBytes, len(token))
	}
	sum := sha256.Sum256([]byte(token))
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// parse reads a file. Each line has a role, a digest or "cert:NAME", a name, and perhaps "salt=SALT".
// Blank lines and those that begin with # are comments. An error names the line, and never its secret.
func parse(text []byte) ([]credential, error) {
	var all []credential
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		c, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrCredentials, n, err)
		}
		if slices.ContainsFunc(all, func(o credential) bool { return o.cert == c.cert && o.digest == c.digest }) {
			return nil, fmt.Errorf("%w: line %d: this token or certificate stands above already", ErrCredentials, n)
		}
		if slices.ContainsFunc(all, func(o credential) bool {
			return extends(o.caller.Salt, c.caller.Salt) || extends(c.caller.Salt, o.caller.Salt)
		}) {
			return nil, fmt.Errorf("%w: line %d: its salt and one above begin alike up to the end of one: an engine that puts other words behind a salt could make one of the other; take a new salt, or the same", ErrCredentials, n)
		}
		if all = append(all, c); len(all) > maxCredentials {
			return nil, fmt.Errorf("%w: line %d: more than %d credentials", ErrCredentials, n, maxCredentials)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCredentials, err)
	}
	return all, nil
}

// extends reports whether a salt is another one, which there is, with more behind it.
func extends(salt, other string) bool {
	return other != "" && salt != other && strings.HasPrefix(salt, other)
}

func parseLine(line string) (credential, error) {
	words := strings.Fields(line)
	if len(words) != 3 && len(words) != 4 {
		return credential{}, fmt.Errorf("%d words, and it has three: role, sha256:DIGEST or cert:NAME, name; a fourth may be salt=SALT", len(words))
	}
	role, err := ParseRole(words[0])
	if err != nil {
		return credential{}, err
	}
	c := credential{caller: Caller{Name: words[2], Role: role}}
	if len(words) == 4 {
		if c.caller.Salt, err = parseSalt(words[3], role); err != nil {
			return credential{}, err
		}
	}
	kind, value, _ := strings.Cut(words[1], ":")
	switch {
	case kind == "cert" && value != "":
		c.cert = value
	case kind == "sha256" && len(value) == hex.EncodedLen(sha256.Size):
		if _, err := hex.Decode(c.digest[:], []byte(value)); err != nil {
			return credential{}, errors.New("the digest is not hexadecimal")
		}
	default:
		return credential{}, errors.New("the second word is neither sha256: with 64 hexadecimal digits nor cert: with a name; kvatlas token makes such lines")
	}
	return c, nil
}

// parseSalt reads the fourth word of a line.
func parseSalt(word string, role Role) (string, error) {
	salt, ok := strings.CutPrefix(word, "salt=")
	switch {
	case !ok:
		return "", errors.New("the fourth word is not salt=SALT")
	case role != Read:
		return "", fmt.Errorf("a caller with a salt has role read: with %s it could reach what others have", role)
	}
	return salt, CheckSalt(salt)
}

// bearer is the token of a request, if it has one. Only one Authorization header counts, so
// that proxies and the server cannot read different ones.
func bearer(r *http.Request) (token string, given bool, err error) {
	headers := r.Header["Authorization"]
	if len(headers) == 0 {
		return "", false, nil
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	token = strings.TrimSpace(token)
	if len(headers) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxTokenBytes {
		return "", true, fmt.Errorf("%w: send one header Authorization: Bearer TOKEN", ErrUnauthorized)
	}
	return token, true, nil
}

// byToken finds a token's caller. It compares every digest, whichever fits, in constant time.
func byToken(all []credential, token string) (found Caller, ok bool) {
	sum := sha256.Sum256([]byte(token))
	for i := range all {
		c := &all[i]
		if c.cert == "" && subtle.ConstantTimeCompare(c.digest[:], sum[:]) == 1 {
			found, ok = c.caller, true
		}
	}
	return found, ok
}

// byCertificate finds the caller of a verified certificate: by a DNS name of it, or else its
// common name.
func byCertificate(all []credential, cert *x509.Certificate) (Caller, bool) {
	for i := range all {
		if c := &all[i]; c.cert != "" && (slices.Contains(cert.DNSNames, c.cert) || c.cert == cert.Subject.CommonName) {
			return c.caller, true
		}
	}
	return Caller{}, false
}
