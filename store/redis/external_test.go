package redis

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/external"
)

// TestForeign walks keys of others, on a single server and on a cluster.
func TestForeign(t *testing.T) {
	t.Run("single", func(t *testing.T) {
		s := redistest.Start(t)
		testForeign(t, "redis://"+s.Addr, s.Client())
	})
	t.Run("cluster", func(t *testing.T) {
		c := redistest.StartCluster(t, 3, false)
		testForeign(t, c.URL(), c.Client())
	})
}

func testForeign(t *testing.T, url string, client redis.UniversalClient) {
	x := must.Get(Open(Config{URL: url, NoSweep: true, Entries: true}))(t)
	t.Cleanup(func() { _ = x.Close() })
	ctx := t.Context()
	for i := range 1200 {
		must.OK(t, client.Set(ctx, fmt.Sprintf("a@%d", i), "10.0.0.1:8000", 0).Err())
	}
	must.OK(t, client.Set(ctx, "big@0", strings.Repeat("x", external.MaxText+1), 0).Err())
	must.OK(t, client.Set(ctx, "unread@0", "x", 0).Err())
	must.OK(t, client.HSet(ctx, "hash@0", "10.0.0.1", "v").Err())
	must.OK(t, client.LPush(ctx, "list@0", "x").Err())
	must.OK(t, client.Set(ctx, "plain", "x", 0).Err())
	must.OK(t, client.Set(ctx, x.space.Names.Prefix+"{own}@", "x", 0).Err())
	must.OK(t, client.PExpire(ctx, "hash@0", 1e12).Err())

	seen := map[string]external.Key{}
	scan := external.Scan{
		Match: "*@*", MaxKeys: 5000, MaxSteps: 1000,
		Want: func(name string) (tell, read bool) { return true, !strings.HasPrefix(name, "unread") },
		Each: func(k external.Key) { seen[k.Name] = k },
	}
	before := x.Stats().RoundTrips
	all, err := x.External().Scan(ctx, scan)
	if n := x.Stats().RoundTrips - before; n < 4 {
		t.Errorf("%d round trips are counted; to find, ask the type and the size, and read are 4 at least", n)
	}
	if err != nil || !all || len(seen) != 1204 {
		t.Fatalf("%v %v, %d keys", all, err, len(seen))
	}
	for name, want := range map[string]external.Key{
		"a@7":      {Name: "a@7", Type: "string", Size: 13, Text: "10.0.0.1:8000"},
		"big@0":    {Name: "big@0", Type: "string", Size: external.MaxText + 1},
		"unread@0": {Name: "unread@0", Type: "string", Size: 1},
		"hash@0":   {Name: "hash@0", Type: "hash", Aged: true, Size: 1, Fields: map[string]string{"10.0.0.1": "v"}},
		"list@0":   {Name: "list@0", Type: "list"},
	} {
		got := seen[name]
		if !maps.Equal(got.Fields, want.Fields) {
			t.Errorf("%s: %v, want %v", name, got.Fields, want.Fields)
		}
		got.Fields, want.Fields = nil, nil
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}

	clear(seen)
	scan.MaxKeys = 100
	if all, err := x.External().Scan(ctx, scan); err != nil || all || len(seen) < 100 || len(seen) > 300 {
		t.Errorf("bounded: %v %v, %d keys", all, err, len(seen))
	}

	got, err := x.External().Has(ctx, []string{"a@3", "nobody@3", "list@0"})
	if err != nil || !slices.Equal(got, []bool{true, false, true}) {
		t.Errorf("%v %v", got, err)
	}

	for _, p := range []store.Pod{{Name: "p0", Model: "m", Address: "http://10.0.0.1:8000/"}, {Name: "10.0.0.2:8000", Model: "m"}, {Name: "10.0.0.2:8001", Model: "m"}} {
		must.Get(x.Register(ctx, p))(t)
	}
	// The port is LMCache's: a host alone is enough where one pod of the model has it.
	owners, err := x.EntryOwners(ctx, "m", []string{"10.0.0.1:8000", "10.0.0.1", "10.0.0.1:8200", "10.0.0.2", "10.0.0.2:8001", "10.0.0.2:8200", "x"})
	if want := []string{"p0", "p0", "p0", "", "10.0.0.2:8001", "", ""}; err != nil || !slices.Equal(owners, want) {
		t.Errorf("%q %v, want %q", owners, err, want)
	}
}
