package config

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestWriteYAML(t *testing.T) {
	got := must.Get(load(t,
		[]string{"--config=/etc/k.yaml", "--listen=:9000"},
		[]string{"KVATLAS_REDIS=rediss://kv:hunter2@redis.example:6380/1", "HF_TOKEN=hf_abcdef"},
		"block-size: 16\ntier-weights: {disk: 0}\nredis-prefix: 'true'\n"))(t)
	var b bytes.Buffer
	must.OK(t, got.WriteYAML(&b))
	golden(t, filepath.Join("testdata", "print-config.yaml"), b.Bytes())
}

// What is printed is a file that gives the same configuration.
func TestWrittenYAMLReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ -~]{0,12}`)
		args := []string{
			"--tokenizers=" + text.Draw(t, "tokenizers"),
			"--hub-cache=" + rapid.StringMatching(`[^\p{Cc}]{0,12}`).Draw(t, "cache"),
			"--listen=" + rapid.StringMatching(`[a-z0-9]{0,3}:[0-9]{1,4}`).Draw(t, "listen"),
			"--redis-prefix=" + rapid.StringMatching(`[A-Za-z0-9_.:-]{1,8}`).Draw(t, "prefix"),
			fmt.Sprintf("--score-budget=%v", rapid.Int64Range(1e6, 9e9).Draw(t, "budget")/1e6*1e6) + "ns",
			fmt.Sprintf("--prefix-cache-bytes=%d", rapid.Int64Range(1<<20, 1<<40).Draw(t, "bytes")),
			fmt.Sprintf("--strict-ready=%v", false),
		}
		want := must.Get(load(t, args, nil, ""))(t)
		var b bytes.Buffer
		must.OK(t, want.WriteYAML(&b))
		got, err := load(t, []string{"--config=/etc/k.yaml"}, nil, b.String())
		if err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
		got.File = ""
		if fmt.Sprintf("%#v", got.Config) != fmt.Sprintf("%#v", want.Config) {
			t.Fatalf("got  %+v\nwant %+v\n%s", got.Config, want.Config, b.String())
		}
	})
}

// The document's table of settings is that of the struct, and its fixed limits are those
// that are refused as settings.
func TestDocument(t *testing.T) {
	path := filepath.Join("..", "..", "..", "..", "docs", "configuration.md")
	text := must.Get(os.ReadFile(path))(t)
	doc := string(text)
	for name, table := range map[string]string{"settings": settingsTable(), "fixed": fixedTable()} {
		begin, end := "<!-- "+name+": begin -->\n", "<!-- "+name+": end -->\n"
		head, rest, ok1 := strings.Cut(doc, begin)
		_, tail, ok2 := strings.Cut(rest, end)
		if !ok1 || !ok2 {
			t.Fatalf("%s lacks the lines %q and %q", path, begin, end)
		}
		doc = head + begin + table + end + tail
	}
	golden(t, path, []byte(doc))
}

func fixedTable() string {
	var b strings.Builder
	b.WriteString("\n| limit | value |\n|---|---|\n")
	for i := range removed {
		r := &removed[i]
		fmt.Fprintf(&b, "| `%s` | %s |\n", r.name, r.now())
	}
	return b.String() + "\n"
}

func settingsTable() string {
	var b strings.Builder
	section := ""
	cell := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + strings.ReplaceAll(s, "|", `\|`) + "`"
	}
	for _, s := range Settings() {
		if s.Section != section {
			section = s.Section
			fmt.Fprintf(&b, "\n### %s\n\n| flag and key | default | values | what it is |\n|---|---|---|---|\n", section)
		}
		name := cell(s.Name)
		if s.Alias != "" {
			name += ", or the variable " + cell(s.Alias)
		}
		values := s.Placeholder()
		switch {
		case s.Min != "" && s.Max != "":
			values = cell(s.Min) + " to " + cell(s.Max)
		case s.OneOf != nil:
			values = cell(strings.Join(s.OneOf, "`, `"))
		default:
			values = strings.ReplaceAll(strings.ToLower(values), "|", " or ")
		}
		doc := s.Doc()
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, cell(s.Default), values, strings.ToUpper(doc[:1])+doc[1:])
	}
	return b.String() + "\n"
}

// golden compares with a file, or writes it with -rewrite.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *rewrite {
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o777))
		must.OK(t, os.WriteFile(path, got, 0o666))
		return
	}
	want := must.Get(os.ReadFile(path))(t)
	if !bytes.Equal(got, want) {
		t.Errorf("%s is out of date: look at the difference and run go test with -rewrite\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

// The sample is one that works.
func TestExample(t *testing.T) {
	l := NewLoader(flag.NewFlagSet("", flag.ContinueOnError))
	l.flags["config"] = filepath.Join("..", "..", "..", "..", "examples", "kvatlas.yaml")
	got := must.Get(l.Load(nil, os.ReadFile))(t)
	if string(got.Redis) != "redis://redis:6379/0" || got.DrainDelay != 10*time.Second {
		t.Errorf("got %+v", got.Config)
	}
}
