package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/kvatlas/kvatlas/internal/nearest"
)

// maxFile is the largest configuration file in bytes.
const maxFile = 1 << 20

// ReadFile reads a file, at most one byte more than a configuration file can have: what
// is no regular file may have no end.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// readYAML reads the settings of one YAML file: one mapping of setting names
// to scalars. The place of each is file:line. A list is the same as its members with commas between, a mapping
// the same as its members as name=value.
func readYAML(path string, readFile func(string) ([]byte, error), settings []Setting) (map[string]value, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("config file: %w", err)
	}
	name := filepath.Base(path)
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: the file is larger than the limit, which is %d bytes", name, maxFile)
	}
	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, firstLine(err))
	}
	known := make([]string, len(settings))
	for i := range settings {
		known[i] = settings[i].Name
	}
	out := map[string]value{}
	var errs []error
	for i, doc := range f.Docs {
		pairs, err := pairsOf(doc.Body)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if i > 0 && len(pairs) > 0 {
			return nil, fmt.Errorf("%s: it has several documents, one is read", name)
		}
		for _, p := range pairs {
			key := p.Key.GetToken().Value
			place := fmt.Sprintf("%s:%d", name, p.Key.GetToken().Position.Line)
			v, err := textOf(p.Value)
			switch _, twice := out[key]; {
			case refuseRemoved(place, strings.ReplaceAll(key, "_", "-")) != nil:
				errs = append(errs, refuseRemoved(place, strings.ReplaceAll(key, "_", "-")))
			case !slices.Contains(known, key):
				errs = append(errs, fmt.Errorf("%s: %s: no such setting%s", place, key, nearest.Clause(strings.ReplaceAll(key, "_", "-"), known)))
			case key == "config":
				errs = append(errs, fmt.Errorf("%s: config: a file cannot name another file", place))
			case err != nil:
				errs = append(errs, fmt.Errorf("%s: %s: %w", place, key, err))
			case twice:
				errs = append(errs, fmt.Errorf("%s: %s is there twice", place, key))
			default:
				out[key] = value{text: v, place: place}
			}
		}
	}
	return out, errors.Join(errs...)
}

func pairsOf(n ast.Node) ([]*ast.MappingValueNode, error) {
	switch n := n.(type) {
	case nil, *ast.NullNode, *ast.CommentGroupNode:
		return nil, nil
	case *ast.MappingNode:
		return n.Values, nil
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, nil
	default:
		return nil, errors.New("it must be one mapping of settings, such as listen: 127.0.0.1:8080")
	}
}

// textOf returns the text of a value as a flag would have it.
func textOf(n ast.Node) (string, error) {
	switch n := n.(type) {
	case *ast.SequenceNode:
		parts := make([]string, 0, len(n.Values))
		for _, e := range n.Values {
			t, err := scalar(e)
			if err != nil {
				return "", err
			}
			if strings.Contains(t, ",") {
				return "", fmt.Errorf("a member of a list cannot hold a comma")
			}
			parts = append(parts, t)
		}
		return strings.Join(parts, ","), nil
	case *ast.MappingNode, *ast.MappingValueNode:
		pairs, err := pairsOf(n)
		if err != nil {
			return "", err
		}
		parts := make([]string, 0, len(pairs))
		for _, p := range pairs {
			t, err := scalar(p.Value)
			if err != nil {
				return "", err
			}
			parts = append(parts, p.Key.GetToken().Value+"="+t)
		}
		return strings.Join(parts, ","), nil
	default:
		return scalar(n)
	}
}

func scalar(n ast.Node) (string, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, nil
	case *ast.NullNode:
		return "", errors.New(`it has no value; leave the line out for the default, or write "" for an empty text`)
	default:
		return "", fmt.Errorf("it must be a plain value, not a YAML %s", strings.ToLower(n.Type().String()))
	}
}

// firstLine cuts the excerpt of the source off a syntax error: it could show a
// secret.
func firstLine(err error) error {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(line)
}
