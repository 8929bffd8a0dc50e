package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/nearest"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// mask stands for a secret wherever it would be printed.
const mask = "***"

var errMasked = errors.New(`the secret is masked ("` + mask + `"), as --print-config writes it; put the real one in`)

// Bytes is a number of bytes. Its text is a whole number with an optional unit
// B, KiB, MiB, GiB or TiB (KB, MB, ... are powers of 1000).
type Bytes int64

var byteUnits = []struct {
	name string
	size int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1}, {"", 1},
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Bytes) UnmarshalText(text []byte) error {
	s := string(text)
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n > math.MaxInt64/u.size || n < math.MinInt64/u.size {
			break
		}
		*b = Bytes(n * u.size)
		return nil
	}
	return fmt.Errorf("%q is no size such as 1048576, 512KiB or 2GiB", s)
}

// MarshalText writes the size in the largest binary unit that divides it.
func (b Bytes) MarshalText() ([]byte, error) {
	for _, u := range byteUnits[:4] {
		if b != 0 && int64(b)%u.size == 0 {
			return fmt.Appendf(nil, "%d%s", int64(b)/u.size, u.name), nil
		}
	}
	return strconv.AppendInt(nil, int64(b), 10), nil
}

// String returns the text of the size.
func (b Bytes) String() string {
	t, _ := b.MarshalText() // it cannot fail
	return string(t)
}

// Media are words of engines for where blocks are, and the tiers that they mean, as a
// valid text; see event.Media.
type Media string

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Media) UnmarshalText(text []byte) error {
	var words event.Media
	if err := words.UnmarshalText(text); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "event: "))
	}
	*m = Media(words.String())
	return nil
}

// Words are all of them, those that are known without saying included.
func (m Media) Words() (*event.Media, error) {
	words := new(event.Media)
	err := words.UnmarshalText([]byte(m))
	return words, err
}

// Secret is a text that is masked wherever it is printed. string(s) is the
// secret itself.
type Secret string

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Secret) UnmarshalText(text []byte) error {
	if string(text) == mask {
		return errMasked
	}
	*s = Secret(text)
	return nil
}

// MarshalText masks the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String masks the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// GoString masks the secret for %#v.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// SecretURL is a URL whose passwords are masked wherever it is printed.
// string(u) is the URL itself.
type SecretURL string

// UnmarshalText implements encoding.TextUnmarshaler.
func (u *SecretURL) UnmarshalText(text []byte) error {
	if strings.Contains(string(text), ":"+mask+"@") || strings.Contains(string(text), "="+mask) {
		return errMasked
	}
	*u = SecretURL(text)
	return nil
}

// MarshalText masks the passwords.
func (u SecretURL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// GoString masks the passwords for %#v.
func (u SecretURL) GoString() string { return strconv.Quote(u.String()) }

// String returns the URL with its password, and the query parameters that are
// named like one, masked. It does not parse: what is no URL is masked as well.
func (u SecretURL) String() string {
	s := string(u)
	// The last @ ends the user information even where a password holds a
	// character that should have been escaped, such as / or ?.
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		start := 0
		if i := strings.Index(s, "://"); i >= 0 && i < at {
			start = i + len("://")
		}
		user, _, found := strings.Cut(s[start:at], ":")
		if found {
			user += ":" + mask
		}
		s = s[:start] + user + s[at:]
	}
	s, query, found := strings.Cut(s, "?")
	if !found {
		return s
	}
	params := strings.Split(query, "&")
	for i, p := range params {
		if name, _, _ := strings.Cut(p, "="); strings.Contains(strings.ToLower(name), "pass") {
			params[i] = name + "=" + mask
		}
	}
	return s + "?" + strings.Join(params, "&")
}

// Roles are the parts that a process plays. The text is a comma-separated
// list.
type Roles []string

// RoleScore answers scoring requests over HTTP; RoleIngest reads engines' events and
// keeps the index true to them; RoleGateway passes clients' requests on to engines.
const (
	RoleScore   = "score"
	RoleIngest  = "ingest"
	RoleGateway = "gateway"
)

// theRoles are those of this version.
var theRoles = []string{RoleScore, RoleIngest, RoleGateway}

// Has reports whether a role is among them.
func (r Roles) Has(role string) bool { return slices.Contains(r, role) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Roles) UnmarshalText(text []byte) error {
	var roles Roles
	for name := range strings.SplitSeq(string(text), ",") {
		name = strings.TrimSpace(name)
		if !slices.Contains(theRoles, name) {
			return fmt.Errorf("%q is no role; this version has %s%s", name, strings.Join(theRoles, ", "), nearest.Clause(name, theRoles))
		}
		if slices.Contains(roles, name) {
			return fmt.Errorf("role %q is named twice", name)
		}
		roles = append(roles, name)
	}
	if !roles.Has(RoleScore) {
		return fmt.Errorf("role %s cannot be left out in this version: %q", RoleScore, text)
	}
	*r = roles
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (r Roles) MarshalText() ([]byte, error) { return []byte(strings.Join(r, ",")), nil }

// Weights are what a block counts by the tier that holds it. The text names
// tiers, such as "cpu=0.7,disk=0"; those left out keep their defaults.
type Weights scorer.Weights

// UnmarshalText implements encoding.TextUnmarshaler.
func (w *Weights) UnmarshalText(text []byte) error {
	out := Weights(scorer.DefaultWeights())
	var seen [store.NumTiers]bool
	for part := range strings.SplitSeq(string(text), ",") {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("%q is no tier=weight", part)
		}
		tier, err := store.ParseTier(strings.TrimSpace(name))
		if err != nil {
			return fmt.Errorf("%q is no tier; there are gpu, cpu, disk, shared", name)
		}
		if seen[tier] {
			return fmt.Errorf("tier %s is named twice", tier)
		}
		seen[tier] = true
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil || !(v >= 0 && v <= 1000) {
			return fmt.Errorf("weight %q of tier %s is no number within 0 and 1000", value, tier)
		}
		out[tier] = v
	}
	*w = out
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (w Weights) MarshalText() ([]byte, error) {
	var b []byte
	for t, v := range w {
		if t > 0 {
			b = append(b, ',')
		}
		b = append(b, store.Tier(t).String()+"="...)
		b = strconv.AppendFloat(b, v, 'g', -1, 64)
	}
	return b, nil
}

// parseBool reads a switch as people write it in flags, shells and YAML.
func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	default:
		return false, fmt.Errorf("%q is neither true nor false", s)
	}
}

// Names is a list of names. The text is comma-separated; spaces around a name
// are dropped.
type Names []string

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *Names) UnmarshalText(text []byte) error {
	var names Names
	if len(strings.TrimSpace(string(text))) > 0 {
		for name := range strings.SplitSeq(string(text), ",") {
			name = strings.TrimSpace(name)
			switch {
			case name == "":
				return errors.New("a name in the list is empty")
			case slices.Contains(names, name):
				return fmt.Errorf("%s is named twice", name)
			}
			names = append(names, name)
		}
	}
	*n = names
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (n Names) MarshalText() ([]byte, error) { return []byte(strings.Join(n, ",")), nil }
