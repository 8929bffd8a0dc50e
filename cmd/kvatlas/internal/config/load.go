package config

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/internal/nearest"
)

// Loader collects values from the three places and makes a Config of them.
type Loader struct {
	fs       *flag.FlagSet
	settings []Setting
	flags    map[string]string // raw texts by setting, as given on the command line
	defaults map[string]string
}

// NewLoader adds a flag for each setting to fs. The flags only note their
// texts: these are judged by Load, together with all others, so that no error
// of package flag can quote a secret.
func NewLoader(fs *flag.FlagSet) *Loader {
	l := &Loader{fs: fs, settings: Settings(), flags: map[string]string{}, defaults: map[string]string{}}
	for i := range l.settings {
		s := &l.settings[i]
		note := func(text string) error { l.flags[s.Name] = text; return nil }
		if s.IsSwitch() {
			fs.BoolFunc(s.Name, s.Doc(), note)
		} else {
			fs.Func(s.Name, s.Doc(), note)
		}
	}
	return l
}

// Setting is the setting that a flag stands for; a nil Loader has none.
func (l *Loader) Setting(name string) (s Setting, ok bool) {
	if l == nil {
		return s, false
	}
	i := slices.IndexFunc(l.settings, func(s Setting) bool { return s.Name == name })
	if i < 0 {
		return s, false
	}
	return l.settings[i], true
}

// SetDefault replaces the default of a setting for this load.
func (l *Loader) SetDefault(name, text string) { l.defaults[name] = text }

// Loaded is a valid configuration and where its values come from.
type Loaded struct {
	Config
	// Origins says for each setting where its value comes from: "default",
	// "--listen", "KVATLAS_LISTEN" or "kvatlas.yaml:3".
	Origins map[string]string
}

// Load makes the configuration out of the flags, of env ("NAME=value" each, as
// os.Environ gives it) and of the file that --config or KVATLAS_CONFIG names,
// which readFile reads. Its error joins all that is wrong.
func (l *Loader) Load(env []string, readFile func(string) ([]byte, error)) (*Loaded, error) {
	var errs []error
	vars, err := l.readEnv(env)
	errs = append(errs, err)

	var file map[string]value
	path := cmp.Or(l.flags["config"], vars["config"].text)
	if path != "" {
		file, err = readYAML(path, readFile, l.settings)
		errs = append(errs, err)
	}

	out := &Loaded{Origins: map[string]string{}}
	for i := range l.settings {
		s := &l.settings[i]
		text, origin := l.defaultOf(s), "default"
		if v, ok := file[s.Name]; ok {
			text, origin = v.text, v.place
		}
		if v, ok := vars[s.Name]; ok {
			text, origin = v.text, v.place
		}
		if t, ok := l.flags[s.Name]; ok {
			text, origin = t, "--"+s.Name
		}
		out.Origins[s.Name] = origin
		if err := s.set(&out.Config, text); err != nil {
			errs = append(errs, &settingError{Setting: s.Name, Origin: origin, Err: err})
		}
	}
	if errors.Join(errs...) == nil {
		// Rules between settings make sense only where each is right by itself.
		errs = append(errs, out.validate())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

func (l *Loader) defaultOf(s *Setting) string {
	if d, ok := l.defaults[s.Name]; ok {
		return d
	}
	return s.Default
}

// Given names a setting as it was given, for errors: --name, the variable,
// or the name and its line in the file.
func (l *Loaded) Given(setting string) string {
	origin := l.Origins[setting]
	if strings.HasPrefix(origin, "--") || strings.HasPrefix(origin, envPrefix) {
		return origin
	}
	return setting + " (" + origin + ")"
}

// settingError says which setting is wrong and where its value was given.
type settingError struct {
	// Setting is the setting's name, Origin as in Loaded.Origins.
	Setting, Origin string
	Err             error
}

// Error implements error.
func (e *settingError) Error() string {
	if strings.HasPrefix(e.Origin, "--") || strings.HasPrefix(e.Origin, envPrefix) {
		return fmt.Sprintf("%s: %v", e.Origin, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Origin, e.Setting, e.Err)
}

// Unwrap gives the reason.
func (e *settingError) Unwrap() error { return e.Err }

// value is a text and where it was found.
type value struct{ text, place string }

// otherVariables are KVATLAS_ variables that other commands and the build
// scripts read; a shell that exports them may still run serve.
var otherVariables = []string{
	"KVATLAS_SERVER", // kvatlas score
	"KVATLAS_TOKEN",  // as it
	"KVATLAS_CACHE",  // scripts/build-libtokenizers.sh
}

// testVariables begins the names that only tests read.
const testVariables = envPrefix + "TEST_"

// serviceLink matches the variables that Kubernetes puts into every container
// for each Service of its namespace. A Service named kvatlas or kvatlas-redis
// makes ones that begin like ours.
var serviceLink = regexp.MustCompile(`^KVATLAS_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

func (l *Loader) readEnv(env []string) (map[string]value, error) {
	byEnv := map[string]string{}
	byAlias := map[string]string{}
	for i := range l.settings {
		s := &l.settings[i]
		byEnv[s.Env] = s.Name
		if s.Alias != "" {
			byAlias[s.Alias] = s.Name
		}
	}
	out := map[string]value{}
	var errs []error
	for _, kv := range env {
		name, text, _ := strings.Cut(kv, "=")
		if setting, ok := byAlias[name]; ok && text != "" {
			if _, ours := out[setting]; !ours {
				out[setting] = value{text, name}
			}
			continue
		}
		if !strings.HasPrefix(name, envPrefix) {
			continue
		}
		setting, ok := byEnv[name]
		switch {
		case ok:
			out[setting] = value{text, name}
		case slices.Contains(otherVariables, name), strings.HasPrefix(name, testVariables), serviceLink.MatchString(name):
		case refuseRemoved(name, settingOf(name)) != nil:
			errs = append(errs, refuseRemoved(name, settingOf(name)))
		default:
			errs = append(errs, fmt.Errorf("%s: no such setting%s", name, nearest.Clause(name, slices.Sorted(maps.Keys(byEnv)))))
		}
	}
	return out, errors.Join(errs...)
}

// FlagError says of an error of the loader's flag set that the flag was a setting once, or
// which known one is nearest; other errors are returned as they are.
func (l *Loader) FlagError(err error) error {
	if name, ok := unknownFlag(err); ok {
		if gone := refuseRemoved("--"+name, name); gone != nil {
			return gone
		}
	}
	return FlagError(l.fs, err)
}

// unknownFlag is the name, without dashes, of the flag that err says is not known.
func unknownFlag(err error) (name string, ok bool) {
	if err == nil {
		return "", false
	}
	name, ok = strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	return strings.TrimLeft(name, "-"), ok
}

// FlagError adds the nearest known flag to the error of a flag set that does
// not know a flag; other errors are returned as they are.
func FlagError(fs *flag.FlagSet, err error) error {
	name, ok := unknownFlag(err)
	if !ok {
		return err
	}
	var known []string
	fs.VisitAll(func(f *flag.Flag) { known = append(known, f.Name) })
	near := nearest.Word(name, known)
	if near != "" {
		near = " (did you mean --" + near + "?)"
	}
	return fmt.Errorf("--%s: no such flag%s", name, near)
}
