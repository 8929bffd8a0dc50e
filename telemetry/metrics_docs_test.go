package telemetry

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/tokenpool"
)

var rewrite = flag.Bool("rewrite", false, "write the table of docs/metrics.md anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// described are the series of a server that has everything, as rows of a table: name
// and labels, and the HELP text.
func described(t *testing.T) []string {
	t.Helper()
	m := NewMetrics()
	var n atomic.Int64
	m.Snapshots()
	must.Get(m.Routing(nil))(t)
	for _, err := range []error{
		m.Watch(Server{
			Version: "v", Backend: "b", InFlight: &n, InFlightBytes: &n, Streams: &n,
			Index: func() (s store.Stats) { return s }, Registry: func() *store.Registry { return &store.Registry{} },
			Tokenizers: func() (s tokenpool.Stats) { return s }, Models: func() []tokenpool.Model { return nil },
		}),
		m.PrefixStore(nil), m.Ingest(nil, nil, nil), m.LMCacheController(nil), m.LMCacheCoordinator(nil), m.LMCacheEntries(nil), m.Replica(nil), m.EngineLoads(nil), m.Gateway().Watch(nil),
	} {
		must.OK(t, err)
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		m.registry.Describe(descs)
		close(descs)
	}()
	form := regexp.MustCompile(`^Desc\{fqName: "(kvatlas_[a-z0-9_]+)", help: "([^"]*)",(?: unit: "[^"]*",)? constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	label := regexp.MustCompile(`(\w+)=`)
	var rows []string
	for d := range descs {
		f := form.FindStringSubmatch(d.String())
		if f == nil {
			if !strings.Contains(d.String(), `fqName: "go_`) && !strings.Contains(d.String(), `fqName: "process_`) {
				t.Errorf("%s", d)
			}
			continue
		}
		var labels []string
		for _, l := range label.FindAllStringSubmatch(f[3], -1) {
			labels = append(labels, l[1])
		}
		if f[4] != "" {
			labels = append(labels, strings.Split(f[4], ",")...)
		}
		name := f[1]
		if len(labels) > 0 {
			name += "{" + strings.Join(labels, ",") + "}"
		}
		rows = append(rows, "| `"+name+"` | "+strings.ReplaceAll(f[2], "|", `\|`)+" |\n")
	}
	// By name: a letter of a longer name comes behind the end of a shorter one.
	slices.SortFunc(rows, func(a, b string) int {
		name := func(row string) string { return row[:3+strings.IndexAny(row[3:], "{`")] }
		return strings.Compare(name(a), name(b))
	})
	return rows
}

// TestMetricsAreDocumented holds the table of docs/metrics.md against the HELP texts of
// all series. With -rewrite it writes the table.
func TestMetricsAreDocumented(t *testing.T) {
	rows := described(t)
	const path, begin, end = "../docs/metrics.md", "<!-- metrics: begin -->\n", "<!-- metrics: end -->\n"
	page := must.Get(os.ReadFile(path))(t)
	before, rest, ok1 := bytes.Cut(page, []byte(begin))
	table, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok1 || !ok2 {
		t.Fatalf("%s has no place for the metrics", path)
	}
	want := "| series | |\n|---|---|\n" + strings.Join(rows, "")
	if *rewrite {
		text := slices.Concat(before, []byte(begin), []byte(want), []byte(end), after)
		if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // a page is for all to read
			t.Fatal(err)
		}
		return
	}
	if string(table) != want {
		t.Errorf("%s has other metrics than there are: go test ./telemetry -run Metrics -rewrite\n%s", path, want)
	}
	// None is made elsewhere, where the table does not see it.
	name := regexp.MustCompile(`"(kvatlas_[a-z0-9_]*[a-z0-9])"`)
	for _, glob := range []string{"*.go", "../server/*.go", "../cmd/kvatlas/*.go"} {
		files, err := filepath.Glob(glob)
		if err != nil || len(files) == 0 {
			t.Fatal(glob, err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			text := must.Get(os.ReadFile(f))(t)
			for _, m := range name.FindAllStringSubmatch(string(text), -1) {
				if !strings.Contains(want, "`"+m[1]+"`") && !strings.Contains(want, "`"+m[1]+"{") {
					t.Errorf("%s: %s is not in the table", f, m[1])
				}
			}
		}
	}
}
