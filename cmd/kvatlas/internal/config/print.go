package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
)

// WriteYAML writes the configuration as a file that could be read again,
// secrets masked, each line with the origin of its value.
func (l *Loaded) WriteYAML(w io.Writer) error {
	var b strings.Builder
	section := ""
	for _, s := range Settings() {
		if s.Name == "config" {
			continue // the file cannot name itself
		}
		if s.Section != section {
			section = s.Section
			fmt.Fprintf(&b, "\n# %s\n", section)
		}
		text, err := yamlScalar(&s, s.text(&l.Config))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%-44s # %s\n", s.Name+": "+text, l.Origins[s.Name])
	}
	_, err := io.WriteString(w, strings.TrimPrefix(b.String(), "\n"))
	return err
}

// plainYAML matches texts that YAML reads as they stand, if it reads them as
// texts at all.
var plainYAML = regexp.MustCompile(`^[A-Za-z0-9/.][A-Za-z0-9/._,=+@*:-]*$`)

// yamlScalar quotes a text where YAML would read something else.
func yamlScalar(s *Setting, text string) (string, error) {
	if s.IsSwitch() || s.Placeholder() == "N" {
		return text, nil
	}
	if plainYAML.MatchString(text) {
		var read any
		if err := yaml.Unmarshal([]byte(text), &read); err == nil && read == any(text) {
			return text, nil
		}
	}
	// A JSON string is one of YAML.
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(text)
	return strings.TrimSpace(b.String()), err
}
