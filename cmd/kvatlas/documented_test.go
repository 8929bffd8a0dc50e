package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
)

// page is a document of the repository.
type page struct {
	name string // from the root
	text string
}

// pages are all documents but those of test data.
func pages(t *testing.T) (all []page) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || d.Name() != ".." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		all = append(all, page{strings.TrimPrefix(filepath.ToSlash(path), "../../"), string(text)})
		return err
	})
	if err != nil || len(all) < 25 {
		t.Fatalf("%d pages: %v", len(all), err)
	}
	return all
}

var (
	fences    = regexp.MustCompile("(?m)^ *```(\\w*)\n((?:.*\n)*?) *```$")
	codeSpans = regexp.MustCompile("`([^`\n]+(?:\n[^`\n]+)?)`")
	indented  = regexp.MustCompile(`(?m)^    \S.*$`)
	comments  = regexp.MustCompile(`(?m)(^|\s)#.*$`)
)

// commands are the lines that a page has readers type: of blocks, and of code within lines.
func (p page) commands() (lines []string) {
	add := func(text string) {
		text = strings.ReplaceAll(text, "\\\n", " ")
		lines = append(lines, strings.Split(comments.ReplaceAllString(text, ""), "\n")...)
	}
	for _, m := range fences.FindAllStringSubmatch(p.text, -1) {
		if m[1] != "json" && m[1] != "yaml" && m[1] != "python" {
			add(m[2])
		}
	}
	rest := fences.ReplaceAllString(p.text, "")
	for _, m := range indented.FindAllString(rest, -1) {
		add(m)
	}
	for _, m := range codeSpans.FindAllStringSubmatch(rest, -1) {
		lines = append(lines, strings.ReplaceAll(m[1], "\n", " "))
	}
	return lines
}

// helps has the help of commands.
type helps struct {
	t     *testing.T
	texts map[string]string
}

// help is a command's help text; ok reports whether there is a command of these words.
func (h *helps) help(words ...string) (text string, ok bool) {
	name := strings.Join(words, " ")
	if _, seen := h.texts[name]; !seen {
		status, out, _ := call(h.t, "", append(slices.Clone(words), "--help")...)
		if status != cli.ExitOK {
			out = ""
		} else if name != "serve" && strings.Contains(out, "kvatlas serve") {
			serve, _ := h.help("serve") // it takes those flags, too
			out += serve
		}
		h.texts[name] = out
	}
	return h.texts[name], h.texts[name] != ""
}

// hasFlag reports whether a help lists a flag, or has it in an example.
func hasFlag(help, flag string) bool {
	return regexp.MustCompile(`(?m)^\s+(?:kvatlas .*)?--?` + regexp.QuoteMeta(flag) + `(?:[\s=]|$)`).MatchString(help)
}

// split cuts a command line into words at blanks outside of quotes, and ends it where another
// command or a redirection begins.
func split(line string) (words []string) {
	var word strings.Builder
	var quote rune
	some := false
	end := func() {
		if some {
			words = append(words, word.String())
		}
		word.Reset()
		some = false
	}
	for _, c := range line {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			} else {
				word.WriteRune(c)
			}
		case c == '\'' || c == '"':
			quote, some = c, true
		case c == ' ' || c == '\t':
			end()
		case strings.ContainsRune("|&;<>()", c):
			end()
			return words
		default:
			word.WriteRune(c)
			some = true
		}
	}
	end()
	return words
}

// flagsOfOthers are flags in code spans that are no flags of kvatlas, and whose they are.
var flagsOfOthers = map[string]string{
	"kv-events-config": "vLLM, SGLang", "enable-prompt-tokens-details": "vLLM", "served-model-name": "vLLM, SGLang", "trust-remote-code": "vLLM",
	"enable-metrics": "SGLang", "enable-cache-report": "SGLang", "data-binary": "curl", "enable-scale-out": "vLLM", "coordinator-url": "LMCache",
}

var programs = regexp.MustCompile(`(?:^|[\s;|&(="$])(?:bin/)?kvatlas ([a-z][^\n]*)`)

// TestDocumentedCommands checks that all exists that the pages tell readers to type: commands and
// their flags, paths of the API, targets of make, scripts, programs and tests.
func TestDocumentedCommands(t *testing.T) {
	h := &helps{t, map[string]string{}}
	api := apiPaths(t)
	makefile := must.Get(os.ReadFile("../../Makefile"))(t)
	usage, _ := h.help("help")
	var all strings.Builder // the helps of all commands
	words := []string{"inspect events", "inspect play", "inspect keys", "doctor lmcache"}
	for _, m := range regexp.MustCompile(`(?m)^  kvatlas ([a-z]+) `).FindAllStringSubmatch(usage, -1) {
		words = append(words, m[1])
	}
	for _, w := range words {
		text, ok := h.help(strings.Fields(w)...)
		if !ok {
			t.Errorf("kvatlas %s has no help", w)
		}
		all.WriteString(text)
	}
	seen := map[string]int{}
	tests := testFiles(t)
	for _, p := range pages(t) {
		wrong := func(line, format string, args ...any) {
			t.Errorf("%s: %q: %s", p.name, strings.TrimSpace(line), fmt.Sprintf(format, args...))
		}
		for _, line := range p.commands() {
			for _, m := range programs.FindAllStringSubmatch(line, -1) {
				words := split(m[1])
				if len(words) == 0 || !regexp.MustCompile(`^[a-z]+$`).MatchString(words[0]) {
					continue
				}
				name := words[:1]
				help, ok := h.help(name...)
				if !ok {
					wrong(line, "there is no kvatlas %s", words[0])
					continue
				}
				if len(words) > 1 && (words[0] == "inspect" || words[0] == "doctor" && words[1] == "lmcache") && !strings.HasPrefix(words[1], "-") {
					if name = words[:2]; words[0] == "inspect" {
						if help, ok = h.help(name...); !ok {
							wrong(line, "there is no kvatlas %s", strings.Join(name, " "))
							continue
						}
					} else {
						help, _ = h.help(name...)
					}
				}
				seen["commands"]++
				for _, w := range words[len(name):] {
					flag, isFlag := strings.CutPrefix(w, "-")
					flag, _, _ = strings.Cut(strings.TrimPrefix(flag, "-"), "=")
					if !isFlag || flag == "" || !regexp.MustCompile(`^[a-z][a-z0-9-]*$`).MatchString(flag) {
						continue
					}
					if seen["flags"]++; !hasFlag(help, flag) && flag != "help" {
						wrong(line, "kvatlas %s has no flag --%s", strings.Join(name, " "), flag)
					}
				}
			}
			if m := regexp.MustCompile(`^--([a-z][a-z0-9-]+)`).FindStringSubmatch(line); m != nil {
				if seen["flags"]++; !hasFlag(all.String(), m[1]) && flagsOfOthers[m[1]] == "" && !strings.Contains(othersPages, p.name+" ") && !inSource("cmd/kvbench", `"`+m[1]+`"`) {
					wrong(line, "no command has the flag --%s", m[1])
				}
			}
			for _, m := range regexp.MustCompile(`(?:^|[\s&;])make ([a-z]+)`).FindAllStringSubmatch(line, -1) {
				if seen["make"]++; !regexp.MustCompile(`(?m)^` + m[1] + `:`).Match(makefile) {
					wrong(line, "make has no target %s", m[1])
				}
			}
			for _, m := range regexp.MustCompile(`(?:^|[\s=(])((?:scripts|real|examples|deploy|docs|bench)/[\w./-]+\.(?:sh|py|go|yaml|json|jsonl|md|txt))\b`).FindAllStringSubmatch(line, -1) {
				seen["files"]++
				if _, err := os.Stat("../../" + m[1]); err != nil {
					wrong(line, "there is no file %s", m[1])
				}
			}
			if name := strings.TrimSpace(line); strings.HasPrefix(name, "Test") && testName.MatchString(name) {
				if seen["tests"]++; tests[name] == "" && name != "TestCase" { // which is a beginning
					wrong(line, "there is no such test")
				}
			}
			checkGo(line, seen, func(format string, args ...any) { wrong(line, format, args...) })
			for _, m := range regexp.MustCompile(`(?:^(?:(GET|POST|PUT|DELETE) )?|(?:\$K|127\.0\.0\.1:80\d\d|localhost:80\d\d))(/(?:v1|healthz|readyz|metrics|openapi\.json|tokenize|detokenize)[^\s'"?#]*)`).FindAllStringSubmatch(line, -1) {
				if seen["paths"]++; !knownPath(api, m[1], m[2]) {
					wrong(line, "neither the API nor an engine has %s", m[2])
				}
			}
		}
	}
	t.Logf("%v", seen)
	for what, least := range map[string]int{"commands": 90, "flags": 180, "paths": 180, "make": 30, "files": 30, "tests": 250} {
		if seen[what] < least {
			t.Errorf("only %d %s are found in the pages", seen[what], what)
		}
	}
}

// othersPages have flags of other programs throughout, each with a blank behind it.
const othersPages = "real/README.md rust/README.md examples/writers/README.md "

// checkGo checks what go run, go test and go build are given.
func checkGo(line string, seen map[string]int, wrong func(string, ...any)) {
	m := regexp.MustCompile(`\bgo (run|test|build) (.*)`).FindStringSubmatch(line)
	if m == nil {
		return
	}
	words := split(m[2])
	var dirs []string
	pattern := ""
	for i, w := range words {
		if strings.HasPrefix(w, "./") {
			dir := strings.TrimSuffix(strings.TrimSuffix(w, "..."), "/")
			if _, err := os.Stat("../../" + dir); err != nil {
				wrong("there is no folder %s", dir)
				return
			}
			dirs = append(dirs, dir)
		}
		if (w == "-run" || w == "-bench") && i+1 < len(words) {
			pattern = words[i+1]
		}
		if m[1] == "run" && len(dirs) > 0 && strings.HasPrefix(w, "-") {
			flag, _, _ := strings.Cut(strings.TrimLeft(w, "-"), "=")
			if seen["flags"]++; flag != "" && !inSource(dirs[0], `"`+flag+`"`) {
				wrong("%s has no flag -%s", dirs[0], flag)
			}
		}
	}
	seen["tests"]++
	if pattern == "" || m[1] != "test" || len(dirs) == 0 {
		return
	}
	first, _, _ := strings.Cut(pattern, "/")
	re, err := regexp.Compile(first)
	if err != nil || first == "^$" {
		return
	}
	found := false
	for _, dir := range dirs {
		_ = filepath.WalkDir("../../"+dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !found && strings.HasSuffix(path, "_test.go") {
				text, _ := os.ReadFile(path)
				for _, f := range testNames.FindAllStringSubmatch(string(text), -1) {
					found = found || re.MatchString(f[1])
				}
			}
			return err
		})
	}
	if !found {
		wrong("no test of %v is named by %s", dirs, pattern)
	}
}

// testFiles are the sources of the files that each test stands in.
func testFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	must.OK(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() != ".." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, f := range testNames.FindAllStringSubmatch(string(source), -1) {
			files[f[1]] += string(source)
		}
		return err
	}))
	return files
}

// TestFaults holds docs/faults.md to the tests: each that it names is there, and each test of
// a case is named.
func TestFaults(t *testing.T) {
	page := must.Get(os.ReadFile("../../docs/faults.md"))(t)
	named := map[string]bool{}
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(page), -1) {
		named[name] = true
	}
	delete(named, "TestCase") // the pattern that runs them
	files := testFiles(t)
	for name := range named {
		if files[name] == "" {
			t.Errorf("the page names %s, which is no test", name)
		}
	}
	for name := range files {
		if strings.HasPrefix(name, "TestCase") && !named[name] {
			t.Errorf("the page does not name %s", name)
		}
	}
}

// TestDocumentedLinks: what a page links to within the repository is there, headings too.
func TestDocumentedLinks(t *testing.T) {
	headings := map[string]map[string]bool{}
	for _, p := range pages(t) {
		headings[p.name] = map[string]bool{}
		for _, m := range regexp.MustCompile("(?m)^#+ (.*)$").FindAllStringSubmatch(fences.ReplaceAllString(p.text, ""), -1) {
			headings[p.name][anchor(m[1])] = true
		}
		for _, m := range regexp.MustCompile(`<a id="([^"]+)">`).FindAllStringSubmatch(p.text, -1) {
			headings[p.name][m[1]] = true
		}
	}
	links := 0
	for _, p := range pages(t) {
		for _, m := range regexp.MustCompile(`\]\(([^()\s]+)\)`).FindAllStringSubmatch(fences.ReplaceAllString(p.text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			file, heading, some := strings.Cut(m[1], "#")
			to := p.name
			if file != "" {
				to = path.Join(path.Dir(p.name), file)
			}
			if _, err := os.Stat("../../" + to); err != nil {
				t.Errorf("%s links to %s, which is not there", p.name, m[1])
			} else if known, page := headings[to]; some && page && !known[heading] {
				t.Errorf("%s links to %s, which has no such heading", p.name, m[1])
			}
		}
	}
	if links < 300 {
		t.Errorf("only %d links are found", links)
	}
}

// anchor is the name that GitHub gives a heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(heading, "$1")) {
		switch {
		case c == ' ':
			b.WriteByte('-')
		case c == '-' || c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c):
			b.WriteRune(c)
		}
	}
	return b.String()
}

var testName = regexp.MustCompile(`^Test\w+$`)

var testNames = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)

// inSource reports whether a program's source, or that of the packages beside and below it, has a text.
func inSource(dir, text string) (found bool) {
	for _, root := range []string{"../../" + dir, "../../bench"} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !found && strings.HasSuffix(path, ".go") {
				source, _ := os.ReadFile(path)
				found = strings.Contains(string(source), text)
			}
			return err
		})
	}
	return found
}

// apiPaths are the methods of each path of the API's description.
func apiPaths(t *testing.T) map[string][]string {
	t.Helper()
	text := must.Get(os.ReadFile("../../server/openapi.json"))(t)
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	must.OK(t, json.Unmarshal(text, &doc))
	paths := map[string][]string{}
	for path, methods := range doc.Paths {
		for m := range methods {
			paths[path] = append(paths[path], strings.ToUpper(m))
		}
	}
	return paths
}

// pathsOfEngines are those of engines, and of what stands beside kvatlas.
var pathsOfEngines = []string{
	"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/models",
}

// knownPath reports whether a path, or the beginning of one, is of the API or of engines. A
// method without it is any.
func knownPath(api map[string][]string, method, path string) bool {
	path = strings.TrimRight(path, ".,:;)/*`")
	for _, known := range pathsOfEngines {
		if path == known {
			return true
		}
	}
	parts := strings.Split(path, "/")
	for known, methods := range api {
		ks := strings.Split(known, "/")
		if len(parts) > len(ks) || method != "" && (len(parts) != len(ks) || !slices.Contains(methods, method)) {
			continue
		}
		same := true
		for i, part := range parts {
			same = same && (part == ks[i] || strings.HasPrefix(ks[i], "{"))
		}
		if same {
			return true
		}
	}
	return false
}
