package diagnose

import (
	"fmt"
	"strings"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/lmcache"
)

// whyUnread says why such names are never asked for.
func (s *Diagnosis) whyUnread(g *group) check.Finding {
	never := func(level check.Level, because, do string) check.Finding {
		return check.Finding{Level: level, Means: "they never match: " + because, Do: do}
	}
	switch {
	case g.variant == "<layer>" || g.variant == "<layer>@<tag>":
		return never(check.Info, "engines that store by layer have a key for each layer, and those are not read", "leave use_layerwise off, or rely on the controller")
	case g.variant == "<tag>":
		return never(check.Info, "they are for requests with that tag alone", "")
	case g.variant == "<salt>":
		return never(check.Info, "they are for requests with that salt alone", "")
	case len(s.profiles) == 0 && len(s.broken) > 0:
		return never(check.Warn, "the profile is refused", "correct the profile: "+suggest(g.kind))
	case len(s.profiles) == 0 && s.c.Learns:
		return check.Finding{
			Level: check.Info, Means: "no profile of LMCache is configured: scorers learn how these are hashed when they are asked for a prompt of this model that is among them (lmcache: auto)",
			Do: "ask with a prompt that an engine has had, here by --model and --tokens-file; or say how the engines run LMCache: " + suggest(g.kind),
		}
	case len(s.profiles) == 0:
		return never(check.Warn, "no profile of LMCache is configured", "say how the engines run LMCache: "+suggest(g.kind))
	case s.c.Mode == lmcache.NoEntries:
		return never(check.Warn, "reading entries is off", "set lmcache to auto, set or hset")
	}
	best := s.nearestRead(g.kind, "")
	if best == nil {
		if g.shape == tensors || g.shape == object {
			return never(check.Info, "no profile says that engines share such a store", "give the profile its remote store, redis or resp, if these entries are of engines that serve requests")
		}
		return never(check.Warn, "the profiles that are configured are of a version that writes no such entries", "say how the engines that write them run LMCache: "+suggest(g.kind))
	}
	level := check.Warn
	if g.shape == tensors || g.shape == object {
		level = check.Info
	}
	return never(level, strings.Join(best, "; "), "make the profile that of the engines: "+suggest(g.kind))
}

// nearestRead says in what a kind differs from what is read of the model that is most
// like it. Where the model is "" any is compared; the result is nil when nothing is
// read.
func (s *Diagnosis) nearestRead(k kind, model string) (best []string) {
	score := -1
	for _, r := range s.reads {
		if model != "" && r.model != model {
			continue
		}
		if diff, same := differ(k, r.kind); same > score {
			best, score = diff, same
		}
	}
	return best
}

// differ says in what the entries' kind is another one than what is read, and how much
// is the same.
func differ(has, want kind) (diff []string, same int) {
	say := func(weight int, equal bool, format string, args ...any) {
		if equal {
			same += weight
			return
		}
		diff = append(diff, fmt.Sprintf(format, args...))
	}
	say(8, has.shape == want.shape, "each is %s, and what is read is %s", shapes[has.shape], shapes[want.shape])
	say(4, has.model == want.model, "their model is %q, and the profile's %q", has.model, want.model)
	if has.shape == want.shape && has.shape != owners {
		say(2, has.world == want.world, "their world size is %d, and the profile's %d", has.world, want.world)
		say(1, has.fmt == want.fmt, "they begin with %q, and what is read with %q", has.fmt, want.fmt)
		say(1, has.dtype == want.dtype, "their dtype is %q, and the profile's %q", has.dtype, want.dtype)
	}
	switch {
	case has.width != want.width:
		say(2, false, "their hashes are %s, and the profile's %s", hashForm(has), hashForm(want))
	case has.width == 0 && has.base() != want.base():
		say(2, false, "their hashes are %s, and the profile's %s", hashForm(has), hashForm(want))
	default:
		same += 2
	}
	return diff, same
}

func (k kind) base() int {
	if k.form == lmcache.FormDecimal {
		return 10
	}
	return 16
}

func hashForm(k kind) string {
	switch {
	case k.width > 0:
		return fmt.Sprintf("%d hex digits", 2*k.width)
	case k.base() == 10:
		return "ints in decimal"
	}
	return "ints in hex"
}

// suggest says which version of LMCache writes such names.
func suggest(k kind) string {
	switch {
	case k.shape == owners:
		return "version fork"
	case k.shape == object:
		return "mp, remote store resp"
	case k.form == lmcache.FormDecimal:
		return "version 0.3.3 or 0.3.4"
	case k.form == lmcache.FormDType:
		return "version 0.3.10"
	case k.form == lmcache.FormModel && k.width > 0:
		return "version 0.3.13 or 0.4.1, with " + algorithmOf(k.width)
	case k.form == lmcache.FormModel:
		return "version 0.3.13 to 0.5.6"
	case k.width > 0:
		return "version 0.3.1, or 0.1"
	}
	return "version 0.3.6"
}

func algorithmOf(width int) string {
	if width == 16 {
		return "xxhash or xxhash_cbor"
	}
	return "sha256 or sha256_cbor"
}
