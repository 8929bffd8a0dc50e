package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Files are the files of a model that say how its chats are rendered. Those that
// the model does not have are nil.
type Files struct {
	// Config is tokenizer_config.json: templates (chat_template) and the names
	// of special tokens.
	Config []byte
	// SpecialTokens is special_tokens_map.json. It counts only for old models,
	// whose Config has no added_tokens_decoder.
	SpecialTokens []byte
	// Template is chat_template.jinja, before all others.
	Template []byte
	// Processor is chat_template.json, which older multimodal models have. It is
	// used for requests without tools.
	Processor []byte
	// Named are additional_chat_templates/NAME.jinja, by NAME.
	Named map[string][]byte
}

const (
	maxConfigFile   = 8 << 20
	maxNamedFiles   = 64
	templatesFolder = "additional_chat_templates"
)

// FileNames returns the names of the files and folders, beside tokenizer.json,
// that ReadFiles reads. A new modification time of one is a new version of the
// model's chats.
func FileNames() []string {
	return []string{
		"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.jinja2",
		"chat_template.json", templatesFolder,
	}
}

// ReadFiles reads the files of the model whose folder dir is. A folder that has
// none of them is no error; NewRenderer says so.
func ReadFiles(dir string) (Files, error) {
	var f Files
	for _, want := range []struct {
		to    *[]byte
		names []string
		limit int64
	}{
		{&f.Config, []string{"tokenizer_config.json"}, maxConfigFile},
		{&f.SpecialTokens, []string{"special_tokens_map.json"}, maxConfigFile},
		{&f.Template, []string{"chat_template.jinja", "chat_template.jinja2"}, MaxTemplateBytes},
		{&f.Processor, []string{"chat_template.json"}, maxConfigFile},
	} {
		for _, name := range want.names {
			data, err := readFile(filepath.Join(dir, name), want.limit)
			if err != nil {
				return Files{}, err
			}
			if data != nil {
				*want.to = data
				break
			}
		}
	}
	entries, err := os.ReadDir(filepath.Join(dir, templatesFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Files{}, fmt.Errorf("chat: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".jinja")
		if !ok {
			continue
		}
		if len(f.Named) == maxNamedFiles {
			return Files{}, fmt.Errorf("chat: %s has more than %d templates", templatesFolder, maxNamedFiles)
		}
		data, err := readFile(filepath.Join(dir, templatesFolder, e.Name()), MaxTemplateBytes)
		if err != nil {
			return Files{}, err
		}
		if f.Named == nil {
			f.Named = map[string][]byte{}
		}
		f.Named[name] = data
	}
	return f, nil
}

// readFile reads a regular file; nil when there is none.
func readFile(path string, limit int64) ([]byte, error) {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("chat: %s is not a regular file", filepath.Base(path))
	}
	if fi.Size() > limit {
		return nil, fmt.Errorf("chat: %s is %d bytes, the limit is %d", filepath.Base(path), fi.Size(), limit)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	return data, nil
}

// templates are the templates of a model by name, and its special tokens.
type templates struct {
	named     map[string]string
	single    bool // there is one, without a name
	processor string
	tokens    []member // variables of special tokens, as JSON strings
}

// The names that transformers gives a meaning.
const (
	defaultName = "default"
	toolUseName = "tool_use"
)

// parseFiles finds the templates as transformers does: chat_template.jinja and
// the additional ones replace all that tokenizer_config.json has.
func parseFiles(f Files) (*templates, error) {
	t := &templates{named: map[string]string{}}
	config, err := fileObject(f.Config, "tokenizer_config.json")
	if err != nil {
		return nil, err
	}
	if err := t.readTokens(config, f.SpecialTokens); err != nil {
		return nil, err
	}
	if f.Template != nil {
		t.named[defaultName] = string(f.Template)
		t.single = len(f.Named) == 0
	}
	for name, src := range f.Named {
		t.named[name] = string(src)
	}
	if len(t.named) == 0 {
		if err := t.readConfig(get(config, "chat_template")); err != nil {
			return nil, err
		}
	}
	// A processor takes chat_template.jinja before chat_template.json.
	if f.Processor != nil && f.Template == nil {
		p, err := fileObject(f.Processor, "chat_template.json")
		if err != nil {
			return nil, err
		}
		src := get(p, "chat_template")
		if first(src) != '"' {
			return nil, fmt.Errorf("%w: chat_template.json: chat_template is not a string", ErrFiles)
		}
		t.processor = text(src)
	}
	return t, nil
}

// readConfig takes the templates of tokenizer_config.json: one string, or a list
// of {"name","template"}.
func (t *templates) readConfig(raw json.RawMessage) error {
	wrong := fmt.Errorf("%w: tokenizer_config.json: chat_template is neither a string nor a list of {name, template}", ErrFiles)
	switch first(raw) {
	case 0, 'n':
	case '"':
		t.named[defaultName], t.single = text(raw), true
	case '[':
		for _, e := range elements(raw) {
			if first(e) != '{' {
				return wrong
			}
			ms := members(e)
			name, src := get(ms, "name"), get(ms, "template")
			if first(name) != '"' || first(src) != '"' {
				return wrong
			}
			t.named[text(name)] = text(src)
		}
	case '{':
		for _, m := range members(raw) {
			if first(m.value) != '"' {
				return wrong
			}
			t.named[m.key] = text(m.value)
		}
	default:
		return wrong
	}
	return nil
}

// readTokens takes the special tokens that have a name (bos_token, image_token,
// ...), which templates see as variables.
func (t *templates) readTokens(config []member, specialMap []byte) error {
	take := func(ms []member, suffix string) {
		for _, m := range ms {
			if content := tokenContent(m.value); content != nil && strings.HasSuffix(m.key, suffix) {
				t.tokens = put(t.tokens, m.key, content)
			}
		}
	}
	takeAll := func(ms []member) {
		take(ms, "_token")
		if extra := get(ms, "extra_special_tokens"); first(extra) == '{' {
			take(members(extra), "")
		}
	}
	takeAll(config)
	if get(config, "added_tokens_decoder") != nil {
		return nil
	}
	ms, err := fileObject(specialMap, "special_tokens_map.json")
	takeAll(ms)
	return err
}

// tokenContent returns the text of a token, which is a string or an object with
// content.
func tokenContent(raw json.RawMessage) json.RawMessage {
	if first(raw) == '{' {
		raw = get(members(raw), "content")
	}
	if first(raw) != '"' {
		return nil
	}
	return raw
}

func fileObject(data []byte, name string) ([]member, error) {
	if data == nil {
		return nil, nil
	}
	if !json.Valid(data) || first(data) != '{' {
		return nil, fmt.Errorf("%w: %s is not a JSON object", ErrFiles, name)
	}
	return members(data), nil
}

// choose returns the template for a request that asks for given, and whether it
// is one of the model's. Given is a name or a template itself; empty asks for
// neither.
func (t *templates) choose(given string, tools bool) (src string, own bool, err error) {
	if given != "" {
		if src, ok := t.named[given]; ok && !t.single {
			return src, true, nil
		}
		// Every template but one that says always the same has a brace.
		if !strings.Contains(given, "{") {
			return "", false, fmt.Errorf("%w: the model has no template %.100q%s", ErrNoTemplate, given, t.names())
		}
		return given, false, nil
	}
	if t.processor != "" && !tools {
		return t.processor, true, nil
	}
	if src, ok := t.named[toolUseName]; ok && tools {
		return src, true, nil
	}
	if src, ok := t.named[defaultName]; ok {
		return src, true, nil
	}
	if len(t.named) > 0 {
		return "", false, fmt.Errorf("%w: the model has several, none of which is the default%s", ErrNoTemplate, t.names())
	}
	return "", false, fmt.Errorf("%w: the model has none, and the request brings none", ErrNoTemplate)
}

// names lists the names of the templates.
func (t *templates) names() string {
	if t.single || len(t.named) == 0 {
		return ""
	}
	return "; it has " + strings.Join(slices.Sorted(maps.Keys(t.named)), ", ")
}
