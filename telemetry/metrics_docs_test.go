package telemetry

import (
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

var rewrite = flag.Bool("rewrite", false, "write series.txt anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// described are the series of a server that has everything, a line each: name and labels, and
// behind a tab the HELP text.
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
		rows = append(rows, name+"\t"+f[2]+"\n")
	}
	// By name: a letter of a longer name comes behind the end of a shorter one.
	slices.SortFunc(rows, func(a, b string) int {
		name := func(row string) string { return row[:strings.IndexAny(row, "{\t")] }
		return strings.Compare(name(a), name(b))
	})
	return rows
}

// TestMetricsAreDocumented holds series.txt against the HELP texts of all series, and
// docs/metrics.md against the names in it. With -rewrite it writes the file.
func TestMetricsAreDocumented(t *testing.T) {
	const path = "series.txt"
	want := strings.Join(described(t), "")
	if *rewrite {
		must.OK(t, os.WriteFile(path, []byte(want), 0o644)) //nolint:gosec // a list for all to read
		return
	}
	if list := must.Get(os.ReadFile(path))(t); string(list) != want {
		t.Errorf("%s has other metrics than there are: go test ./telemetry -run Metrics -rewrite\n%s", path, want)
	}
	page := must.Get(os.ReadFile("../docs/metrics.md"))(t)
	for _, m := range regexp.MustCompile("`(kvatlas_[a-z0-9_]*[a-z0-9])[`{]").FindAllSubmatch(page, -1) {
		if name := string(m[1]); !strings.Contains("\n"+want, "\n"+name+"\t") && !strings.Contains("\n"+want, "\n"+name+"{") {
			t.Errorf("docs/metrics.md names %s, which is no series", name)
		}
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
				if !strings.Contains("\n"+want, "\n"+m[1]+"\t") && !strings.Contains("\n"+want, "\n"+m[1]+"{") {
					t.Errorf("%s: %s is not in the list", f, m[1])
				}
			}
		}
	}
}
