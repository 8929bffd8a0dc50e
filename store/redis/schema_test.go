package redis

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// schemaDocument is the documents of the data model.
func schemaDocument(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, name := range []string{"redis-schema.md", "redis-internals.md", "redis-log.md"} {
		b := must.Get(os.ReadFile(filepath.Join("..", "..", "docs", name)))(t)
		all.Write(b)
	}
	return all.String()
}

// TestDocument holds docs/redis-schema.md, redis-internals.md and redis-log.md to the code.
func TestDocument(t *testing.T) {
	doc := schemaDocument(t)
	var table strings.Builder
	for p := range keyspace.Tags {
		fmt.Fprintf(&table, "%02x ", keyspace.Tags[p])
		if p%16 == 15 {
			line := strings.TrimSpace(table.String())
			if !strings.Contains(doc, line) {
				t.Errorf("the table of keyspace.Tags has no line %s", line)
			}
			table.Reset()
		}
	}
	scripts, err := filepath.Glob("lua/*.lua")
	if err != nil || len(scripts) == 0 {
		t.Fatal(scripts, err)
	}
	for _, path := range scripts {
		if name := filepath.Base(path); !strings.Contains(doc, "`"+name+"`") {
			t.Errorf("%s is not mentioned", name)
		}
	}
	n := keyspace.NewNames("kva")
	for _, key := range []string{n.Meta, n.Count, n.Epoch, n.Pods, n.Live, n.Gen, n.Sweep, n.Own(""), n.Records, n.Prefix + "{c}:high", n.Prefix + "{c}:s", n.Prefix + "{g<generation>}:m`", n.Prefix + "{g<generation>}:f`", n.Prefix + "{g<generation>}:p:<pages>:<n>`", n.Prefix + "{g<generation>}:s"} {
		if !strings.Contains(doc, "`"+key) {
			t.Errorf("the key %s is not mentioned", key)
		}
	}
	for _, example := range []string{"6f47ea9c9dc7b735", "78079501a1855707", "6b76617b3b7d78079501a1855707", "bd52aa25bb453dca", "6b76617b517dbd52aa25bb453dca"} {
		if !strings.Contains(doc, example) {
			t.Errorf("the worked example lacks %s", example)
		}
	}
}

// TestStrangersScript makes the calls of the document's example, knowing nothing but the document, and reads
// what it wrote.
func TestStrangersScript(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	ctx := t.Context()
	read := func(name string) string {
		b := must.Get(os.ReadFile(filepath.Join("lua", name)))(t)
		return string(b)
	}
	const pod, model = "10.0.0.1:8000", "meta-llama/Llama-3.1-8B"
	reg := []string{"kva{reg}:meta", "kva{reg}:count", "kva{reg}:epoch", "kva{reg}:pods", "kva{reg}:live", "kva{reg}:gen", "kva{reg}:s", "kva{reg}:own:" + pod}
	text := `{"name":"` + pod + `","model":"` + model + `"}`
	eval := func(want any, script string, keys []string, args ...string) {
		t.Helper()
		var list []any
		for _, a := range args {
			list = append(list, a)
		}
		if got, err := plain.Eval(ctx, script, keys, list...).Result(); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got %v, %v; want %v", got, err, want)
		}
	}
	eval(1, read("registry.lua")+read("register.lua"), reg, "1", "64", pod, text, "30000", "16384")
	for p := range keyspace.Tags {
		eval(0, read("mark.lua"), []string{"kva{" + keyspace.Tags[p:p+1] + "}:high"}, "4096")
	}
	eval(1, read("registry.lua")+read("reserve.lua"), reg, "1", "64", "0", "4096")
	eval([]any{"1"}, read("registry.lua")+read("guard.lua")+read("holders.lua"), reg, "1", "64", pod, text, "16384", "131072", "0", "0", "1", "0", "gpu", "1")
	blocks := []string{"kva{;}\x78\x07\x95\x01\xa1\x85\x57\x07", "kva{Q}\xbd\x52\xaa\x25\xbb\x45\x3d\xca"}
	eval(0, read("guard.lua")+read("apply.lua"), append([]string{"kva{reg}:live", "kva{reg}:own:" + pod}, blocks...), "1", "0", "0", "1", "0/gpu", "1", "+1", "2")
	if got := plain.MGet(ctx, blocks...).Val(); !slices.Equal(got, []any{"1", "1"}) {
		t.Fatalf("the blocks are %v", got)
	}

	x := open(t, Config{URL: s.URL()})
	var keys []blockkey.Key
	for _, k := range []string{"1675479374679433266", "15138076886435007231"} {
		v := must.Get(strconv.ParseUint(k, 10, 64))(t)
		keys = append(keys, blockkey.Key(v))
	}
	f := &firsts{}
	must.OK(t, x.Lookup(ctx, &store.Query{Model: blockkey.ModelOf(model), Keys: keys, Fold: f}))
	if !slices.Equal(f.ids, []store.HolderID{1, 1}) || f.reg.Pods[0].Name != pod {
		t.Fatalf("found the holders %v of the pods %v", f.ids, f.reg.Pods)
	}
}
