package redis_test

import (
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/loads/loadstest"
	"github.com/kvatlas/kvatlas/route/notes"
	notesredis "github.com/kvatlas/kvatlas/route/notes/redis"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

var rewriteForm = flag.Bool("rewrite", false, "write testdata/form.txt anew")

// writeAll makes every kind of key that loads and notes have, at the time of a clock or, without
// one, that of the server.
func writeAll(t *testing.T, s *redistest.Server, clock *loadstest.Clock) {
	t.Helper()
	l := newStore(t, s.Client(), "kva", clock)
	c := notesredis.Config{Client: s.Client(), Prefix: "kva", Timeout: 10 * time.Second}
	if clock != nil {
		c.Now = clock.Now
	}
	n := must.Get(notesredis.New(c))(t)
	ctx, at := t.Context(), store.RankRef{Pod: "10.0.0.1:8000", Rank: 3}
	single := request("single", at.Pod)
	single.Keys, single.Expected = []blockkey.Key{1 << 8, 2 << 8, 3 << 8, 4 << 8, 5 << 8, 6 << 8, 7 << 8, 8 << 8}, 160
	single.Tokens = 131
	single.Candidates[0].RankRef, single.Candidates[0].Generation = at, 7
	done := request("done", at.Pod)
	done.Tokens, done.Candidates[0].Uncached, done.Candidates[0].Work, done.Candidates[0].RankRef = 1000, 1000, 1010, at
	_, err1 := l.Book(ctx, single)
	_, err2 := l.Book(ctx, done)
	_, err3 := l.BookPair(ctx, pair("pair", "p", "d"))
	if clock != nil {
		clock.Advance(100 * time.Millisecond) // which a speed is learnt from
	}
	_, err4 := l.Done(ctx, "m", "done", loads.Done{Cached: -1, Shape: loads.Shape{Quadratic: 0.001}})
	_, err5 := l.Output(ctx, "m", "single", 40)
	_, err6 := l.Turns(ctx, "m", []string{at.Pod}, 1)
	_, err7 := l.Claim(ctx, "m", "audit", time.Hour)
	_, err8 := n.Slice(ctx, notes.Slice{Model: "m", RankRef: at, Blocks: 1, TTL: time.Hour, Max: 1})
	for _, err := range []error{
		err1, err2, err3, err4, err5, err6, err7, err8,
		l.PutSettings(ctx, "m", []byte(`{"beta":3}`)),
		l.PutEngine(ctx, "m", at.Pod, []loads.Engine{{Rank: 3, Running: 2, Waiting: 1}}),
		l.AddTruth(ctx, "m", []loads.Truth{{RankRef: at, Generation: 7, Requests: 1, Predicted: 100, Delivered: 90}}),
		n.Bind(ctx, "m", "chat", at, time.Hour),
		n.PutDemand(ctx, "m", "process", []byte("counted")),
	} {
		must.OK(t, err)
	}
}

// TestDocument compares the tables of docs/redis-internals.md with the keys that are written.
func TestDocument(t *testing.T) {
	doc := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "docs", "redis-internals.md")))(t)
	_, part, _ := strings.Cut(string(doc), "\n## Loads and notes\n")
	part, _, _ = strings.Cut(part, "\n## ")
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(kva[^`]+)` \\| (\\w+) \\|").FindAllStringSubmatch(part, -1) {
		documented[row[1]] = row[2]
	}
	s := redistest.Start(t)
	writeAll(t, s, nil)
	name := keyspace.ModelKeys("kva", "m")("")
	head, model, _ := strings.Cut(name, "}:")
	written := map[string]string{}
	for _, key := range s.Client().Keys(t.Context(), "*").Val() {
		shape := strings.Replace(key, head, "kva{c", 1)
		shape = strings.Replace(shape, model, ":<model>", 1)
		shape = regexp.MustCompile(`:\d+:[^:]+(:8000)?$`).ReplaceAllString(shape, ":<rank>:<pod>")
		shape = strings.Replace(shape, ":audit", ":<what>", 1)
		written[shape] = s.Client().Type(t.Context(), key).Val()
	}
	if !maps.Equal(documented, written) {
		t.Errorf("the document has\n%v\nwritten is\n%v", documented, written)
	}
}

// TestForm compares what some calls write of loads and reservations with what a process that is
// already running reads. If it differs on purpose, give the form the next number, name the
// present one in earlierForms, and run the test with -rewrite.
func TestForm(t *testing.T) {
	s := redistest.Start(t)
	writeAll(t, s, loadstest.NewClock())
	var got strings.Builder
	forms := regexp.MustCompile(`:[lrtm]\d+:`)
	keys := s.Client().Keys(t.Context(), "*").Val()
	slices.Sort(keys)
	for _, key := range keys {
		if !forms.MatchString(key) {
			continue
		}
		fmt.Fprintf(&got, "%s\n", key)
		fields := s.Client().HGetAll(t.Context(), key).Val()
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			fmt.Fprintf(&got, "  %q\n", name)
			for words := range slices.Chunk([]byte(fields[name]), 8) {
				fmt.Fprintf(&got, "    %s\n", hex.EncodeToString(words))
			}
		}
		for _, z := range s.Client().ZRangeWithScores(t.Context(), key, 0, -1).Val() {
			fmt.Fprintf(&got, "  %q %.0f\n", z.Member, z.Score)
		}
	}
	file := filepath.Join("testdata", "form.txt")
	if *rewriteForm {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil { //nolint:gosec // a golden is for all to read
			t.Fatal(err)
		}
	}
	want := must.Get(os.ReadFile(file))(t)
	if got.String() != string(want) {
		t.Errorf("loads or reservations are written in another form than %s has:\n%s", file, got.String())
	}
}
