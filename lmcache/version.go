package lmcache

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrVersion is wrapped by errors about versions of LMCache.
var ErrVersion = errors.New("lmcache: version")

// Version is a line of releases of LMCache that make keys and hashes alike.
type Version uint8

// The lines. A constant has the number of its first release.
const (
	// V01 is 0.1 up to 2025-04-15: SHA-256 in a chain of hex, of tokens as 64 bits.
	V01 Version = iota
	// VFork is neuralmagic's fork, which llm-d v0.1 used: as 0.3.1, and in Redis
	// under a ForkKey. It gives the last short chunk a key whatever is set.
	VFork
	// V031 is 0.3.1 and 0.3.2: the same chain, of tokens as 32 bits.
	V031
	// V033 is 0.3.3: hashes are ints, written in decimal, of a tuple of two.
	V033
	// V034 is 0.3.4 and 0.3.5: of a tuple of three, the third is None. Tags.
	V034
	// V036 is 0.3.6 to 0.3.9: ints in hex.
	V036
	// V0310 is 0.3.10 to 0.3.12: the dtype behind the hash.
	V0310
	// V0313 is 0.3.13 to 0.3.15: no fmt; hashes may be bytes.
	V0313
	// V041 is 0.4.1 to 0.4.5: the third element is the empty tuple.
	V041
	// V046 is 0.4.6 to 0.5.6: bytes are folded to ints.
	V046

	numVersions
)

var versions = [numVersions]string{
	"0.1", "fork", "0.3.1", "0.3.3", "0.3.4", "0.3.6", "0.3.10", "0.3.13", "0.4.1", "0.4.6",
}

// String returns the first release of the line.
func (v Version) String() string {
	if v < numVersions {
		return versions[v]
	}
	return fmt.Sprintf("version(%d)", uint8(v))
}

// release is a release as a number that sorts, 0.3.10 above 0.3.9.
func release(major, minor, patch int) int { return major<<20 | minor<<10 | patch }

var (
	newest = release(0, 5, 6)
	firsts = [numVersions]int{
		V01: release(0, 1, 0), V031: release(0, 3, 1), V033: release(0, 3, 3),
		V034: release(0, 3, 4), V036: release(0, 3, 6), V0310: release(0, 3, 10),
		V0313: release(0, 3, 13), V041: release(0, 4, 1), V046: release(0, 4, 6),
	}
)

// VersionOf returns the line of a release of LMCache, "0.5.6" or "v0.5.6.post1", and
// VFork of "fork". What follows the third number is not looked at. Releases that were not measured, 0.2 and
// those after 0.5.6, are an error.
func VersionOf(s string) (Version, error) {
	if s == versions[VFork] {
		return VFork, nil
	}
	var n [3]int
	parts := strings.SplitN(strings.TrimPrefix(s, "v"), ".", 4)
	for i := range min(len(parts), len(n)) {
		digits := parts[i]
		if i == 2 { // 2rc1, 2-alpha
			digits = digits[:len(digits)-len(strings.TrimLeft(digits, "0123456789"))]
		}
		v, err := strconv.ParseUint(digits, 10, 10)
		if err != nil {
			return 0, fmt.Errorf("%w: %q is no release of LMCache, say 0.5.6 or fork", ErrVersion, clip(s))
		}
		n[i] = int(v)
	}
	if len(parts) < 2 {
		return 0, fmt.Errorf("%w: %q is no release of LMCache, say 0.5.6 or fork", ErrVersion, clip(s))
	}
	r := release(n[0], n[1], n[2])
	switch {
	case r > newest:
		return 0, fmt.Errorf("%w: %s is newer than 0.5.6, the last that is known; say 0.5.6 if it still makes the same keys", ErrVersion, clip(s))
	case r < firsts[V01]:
		return 0, fmt.Errorf("%w: %s is older than 0.1", ErrVersion, clip(s))
	case r >= release(0, 2, 0) && r < firsts[V031]:
		return 0, fmt.Errorf("%w: %s was not measured; say 0.1 if it hashes tokens as 64 bits, 0.3.1 if as 32", ErrVersion, clip(s))
	}
	for v := numVersions - 1; v > V01; v-- {
		if v != VFork && r >= firsts[v] {
			return v, nil
		}
	}
	return V01, nil
}

// Form returns the string form of the line's keys.
func (v Version) Form() Form {
	switch {
	case v == V033 || v == V034:
		return FormDecimal
	case v <= V036:
		return FormHex
	case v == V0310:
		return FormDType
	default:
		return FormModel
	}
}

// hexChain reports whether the hash is SHA-256 in a chain of hex, which has neither
// algorithm nor seed.
func (v Version) hexChain() bool { return v <= V031 }
