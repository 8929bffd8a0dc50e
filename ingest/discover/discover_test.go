package discover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

func TestParsePod(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1:8000":                          "{Name:10.0.0.1:8000",
		"[fd00::1]:80?model=a%2Fb":               "{Name:[fd00::1]:80 Model:a/b",
		"h:1?name=x&ranks=4&engine=y":            "{Name:x Model: Aliases:[] Adapters:[] Address:h:1 Role: Ranks:4 Engine:y",
		"h:1?model=m&aliases=a,b%2Fc&adapters=x": "{Name:h:1 Model:m Aliases:[a b/c] Adapters:[x]",
		"h:1?events=tcp://h:2&replay=tcp://h:3&block_size=16&role=decode": "{Name:h:1 Model: Aliases:[] Adapters:[] Address: Role:decode Ranks:0 Engine: Events:tcp://h:2 Replay:tcp://h:3 BlockSize:16",
	} {
		p, err := ParsePod(text)
		if err != nil || !strings.HasPrefix(fmt.Sprintf("%+v", p), want) {
			t.Errorf("%s: got %+v, %v", text, p, err)
		}
	}
	for text, want := range map[string]string{
		"": "no host:port", "h": "no host:port", ":1": "no host:port", "h:0": "no host:port", "h:70000": "no host:port",
		"h:1?color=red": "color is not one of", "h:1?ranks=x": `ranks is "x"`, "h:1?ranks=2000": "0 to 1024", "h:1?role=x": "role is not one of",
		"h:1?model=a&model=b": "twice", "h:1?name=": "pod name is empty", "h:1?%": "invalid", "h:1?aliases=a,": "name of aliases is empty",
	} {
		if _, err := ParsePod(text); !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	if _, err := ParseList([]string{"h:1", "h:1"}); !errors.Is(err, ErrSpec) {
		t.Errorf("twice: got %v", err)
	}
	// Another model of one pod stands beside it, and is not read where that is.
	l := must.Get(ParseList([]string{"h:1?model=a&role=decode", "h:1?model=b"}))(t)
	template := Template{EventsPort: 5557}
	for i, want := range []store.Pod{{Name: "h:1", Model: "a", Role: "decode", Events: "tcp://h:5557"}, {Name: "h:1?model=b", Model: "b", Address: "h:1"}} {
		if template.fill(&l[i]); !reflect.DeepEqual(l[i], want) {
			t.Errorf("got %+v, want %+v", l[i], want)
		}
	}
	for text, list := range map[string][]string{
		"of one model": {"h:1?model=a&events=tcp://h:2", "h:1?model=b&events=tcp://h:2"},
		"there twice":  {"h:1?model=a", "h:1?model=b", "h:1?model=b"},
		"the limit is": {"h:1?model=a", "h:1?model=" + strings.Repeat("b", 250)},
	} {
		if _, err := ParseList(list); !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), text) {
			t.Errorf("%.60q: got %v, want %s", list, err, text)
		}
	}
}

// names is a resolver whose answers change.
type names struct {
	mu   sync.Mutex // protects all below
	ips  map[string][]netip.Addr
	srv  []*net.SRV
	fail error
}

func (n *names) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return nil, n.fail
	}
	if n.ips[host] == nil {
		return nil, &net.DNSError{Name: host, IsNotFound: true}
	}
	return n.ips[host], nil
}

func (n *names) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.srv == nil && n.fail == nil {
		return "", nil, &net.DNSError{IsNotFound: true}
	}
	return "", n.srv, n.fail
}

func ips(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &names{ips: map[string][]netip.Addr{"svc": ips("10.0.0.2", "10.0.0.1", "::ffff:10.0.0.2", "fd00::1")}}
		d := must.Get(NewDNS("svc:80?model=m&ranks=2", n, time.Second, 3))(t)
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		var failed []error
		done := make(chan error)
		go func() {
			done <- d.Watch(ctx, Watcher{Failed: func(err error) { failed = append(failed, err) }, Report: func(pods []Found) {
				line := ""
				for _, p := range pods {
					line += fmt.Sprint(p.Pod.Name, "=", p.Pod.Model, p.Pod.Ranks, " ")
				}
				got = append(got, line)
			}})
		}()
		step := func(reports, failures int, last string) {
			t.Helper()
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			if len(got) != reports || got[len(got)-1] != last || len(failed) != failures {
				t.Errorf("got %q, %v", got, failed)
			}
			failed = nil
		}
		const all = "10.0.0.1:80=m2 10.0.0.2:80=m2 [fd00::1]:80=m2 "
		step(1, 0, all)
		n.set(func() { n.fail = errors.New("no answer") })
		step(1, 1, all) // the last answer stands
		n.set(func() { n.fail, n.ips["svc"] = nil, ips("10.0.0.9") })
		step(2, 0, "10.0.0.9:80=m2 ")
		n.set(func() { n.ips["svc"] = ips("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4") })
		step(2, 1, "10.0.0.9:80=m2 ")
		n.set(func() { delete(n.ips, "svc") })
		step(3, 1, "")
		time.Sleep(time.Hour)
		step(3, 0, "") // once
		n.set(func() { n.fail = errors.New("no answer") })
		step(3, 1, "")
		n.set(func() { n.fail = nil })
		step(3, 1, "")
		n.set(func() { n.ips["svc"] = ips("10.0.0.9") })
		step(4, 0, "10.0.0.9:80=m2 ")
		for port := range 3 {
			n.set(func() {
				n.fail = &net.DNSError{Name: "svc", Err: fmt.Sprintf("read udp 10.0.0.1:%d->10.0.0.10:53: i/o timeout", port), IsTimeout: true}
			})
			step(4, map[int]int{0: 1}[port], "10.0.0.9:80=m2 ")
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestSRV(t *testing.T) {
	n := &names{ips: map[string][]netip.Addr{"a.svc": ips("10.0.0.1"), "b.svc": ips("10.0.0.2")}}
	d := must.Get(NewDNS("_http._tcp.svc", n, time.Second, 10))(t)
	if got, missing, err := d.resolve(t.Context()); err != nil || len(got) != 0 || missing != "_http._tcp.svc" {
		t.Errorf("no records: got %v, %q, %v", got, missing, err)
	}
	n.srv = []*net.SRV{{Target: "b.svc.", Port: 81}, {Target: "a.svc.", Port: 80}, {Target: "gone.", Port: 1}}
	if got, missing, err := d.resolve(t.Context()); err != nil || fmt.Sprint(got) != "[10.0.0.1:80 10.0.0.2:81]" || missing != "gone" {
		t.Errorf("got %v, %q, %v", got, missing, err)
	}
	for _, text := range []string{"", "h", "h:x", "h:1?events=tcp://h:1", "h:1?name=x", "h:1?color=red"} {
		if _, err := NewDNS(text, n, time.Second, 1); !errors.Is(err, ErrSpec) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// engine answers as engines do.
// anywhere asks engines at any address.
var anywhere = (*access.Networks)(nil).Client()

func engine(t *testing.T, pages map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		switch {
		case !ok:
			http.NotFound(w, r)
		case page == "down":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, page)
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(anywhere.CloseIdleConnections)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestAsk(t *testing.T) {
	const vllm = `{"object":"list","data":[{"id":"lora","owned_by":"vllm","parent":"m"},{"id":"m","owned_by":"vllm","parent":null}]}`
	const names = `{"data":[{"id":"sql","owned_by":"vllm","root":"/l/sql","parent":"n"},{"id":"m","owned_by":"vllm","root":"/models/m","parent":null},{"id":"n","owned_by":"vllm","root":"/models/m"},
		{"id":"other","owned_by":"vllm","root":"/models/other"},{"id":"o","owned_by":"vllm","root":"/models/m"},{"id":"chat","owned_by":"vllm","parent":"m"},{"id":"theirs","parent":"other"},{"id":"m","root":"/models/m"},{"id":""}]}`
	source := func(events, replay string) string {
		return fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":%q,"replay_endpoint":%s,"topic":""}`, events, replay)
	}
	for name, c := range map[string]struct {
		pages map[string]string
		pod   store.Pod
		want  store.Pod
		err   string
	}{
		"vllm": {pages: map[string]string{"/v1/models": vllm, "/kv_event_sources": `{"0":` + source("tcp://*:5557", `"tcp://*:5600"`) + `}`},
			want: store.Pod{Model: "m", Adapters: []string{"lora"}, Engine: "vllm", Events: "tcp://*:5557", Replay: "tcp://*:5600", Ranks: 1}},
		"vllm by offsets": {pages: map[string]string{"/v1/models": vllm, "/kv_event_sources": `{"1":` + source("tcp://h:8", "null") + `,"0":` + source("tcp://h:7", "null") + `}`},
			want: store.Pod{Model: "m", Adapters: []string{"lora"}, Engine: "vllm", Events: "tcp://h:7", Ranks: 2}},
		"vllm anywhere": {pages: map[string]string{"/v1/models": vllm, "/kv_event_sources": `{"1":` + source("tcp://h:9", "null") + `,"0":` + source("tcp://h:7", "null") + `}`},
			want: store.Pod{Model: "m", Adapters: []string{"lora"}, Engine: "vllm", Events: "tcp://h:7,tcp://h:9", Ranks: 2}},
		"names": {pages: map[string]string{"/v1/models": names}, want: store.Pod{Model: "m", Aliases: []string{"n", "o"}, Adapters: []string{"sql", "chat"}, Engine: "vllm"}},
		"names of what is filed otherwise": {pages: map[string]string{"/v1/models": names}, pod: store.Pod{Model: "org/m", Engine: "vllm"},
			want: store.Pod{Model: "org/m", Aliases: []string{"m", "n", "o"}, Adapters: []string{"sql", "chat"}, Engine: "vllm"}},
		"names of the second model": {pages: map[string]string{"/v1/models": names}, pod: store.Pod{Model: "other", Engine: "vllm"},
			want: store.Pod{Model: "other", Adapters: []string{"theirs"}, Engine: "vllm"}},
		"names that are known": {pages: map[string]string{"/v1/models": names}, pod: store.Pod{Model: "m", Adapters: []string{"a"}, Engine: "vllm"},
			want: store.Pod{Model: "m", Adapters: []string{"a"}, Engine: "vllm"}},
		"vllm without events":   {pages: map[string]string{"/v1/models": vllm, "/kv_event_sources": `{}`}, want: store.Pod{Model: "m", Adapters: []string{"lora"}, Engine: "vllm"}},
		"sources that are none": {pages: map[string]string{"/v1/models": vllm, "/kv_event_sources": `{"error":"no such page"}`}, want: store.Pod{Model: "m", Adapters: []string{"lora"}, Engine: "vllm"}},
		"sources of others":     {pages: map[string]string{"/v1/models": vllm, "/kv_event_sources": `{"detail":{"status":404}}`}, want: store.Pod{Model: "m", Adapters: []string{"lora"}, Engine: "vllm"}},
		"a list of sources":     {pages: map[string]string{"/v1/models": vllm, "/kv_event_sources": `[]`}, want: store.Pod{Model: "m", Adapters: []string{"lora"}, Engine: "vllm"}},
		"any path at a proxy": {pages: map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"me"}]}`, "/kv_event_sources": `{"status":"ok"}`, "/server_info": `{"kv_events":true}`},
			want: store.Pod{Model: "m"}},
		"an old vllm": {pages: map[string]string{"/v1/models": vllm}, want: store.Pod{Model: "m", Adapters: []string{"lora"}, Engine: "vllm"}},
		"sglang": {pages: map[string]string{"/v1/models": `{"data":[{"id":"s","owned_by":"sglang"}]}`,
			"/server_info": `{"page_size":1,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"","block_size":64,"dp_size":4,"replay_endpoint_port_base":5600}}`},
			want: store.Pod{Model: "s", Engine: "sglang", Events: "tcp://*:5557", Replay: "tcp://*:5600", Ranks: 4, BlockSize: 64}},
		"sglang without events": {pages: map[string]string{"/v1/models": `{"data":[{"id":"s","owned_by":"sglang"}]}`, "/server_info": `{"kv_events":null}`},
			want: store.Pod{Model: "s", Engine: "sglang"}},
		"what is known stands": {pages: map[string]string{}, pod: store.Pod{Model: "x", Engine: "y", Events: "z"}, want: store.Pod{Model: "x", Engine: "y", Events: "z"}},
		"down":                 {pages: map[string]string{"/v1/models": "down"}, err: "status 503"},
		"no model":             {pages: map[string]string{"/v1/models": `{"data":[]}`}, err: "has no model"},
		"no JSON":              {pages: map[string]string{"/v1/models": `<html>`}, err: "invalid character"},
		"long":                 {pages: map[string]string{"/v1/models": strings.Repeat(" ", 5<<20)}, err: "more than"},
		"an odd rank":          {pages: map[string]string{"/v1/models": vllm, "/kv_event_sources": `{"7":` + source("tcp://h:7", "null") + `}`}, err: `rank "7"`},
		"an odd port":          {pages: map[string]string{"/v1/models": `{"data":[{"id":"s","owned_by":"sglang"}]}`, "/server_info": `{"kv_events":{"endpoint_port_base":70000}}`}, err: "port 70000"},
	} {
		p := c.pod
		p.Name = engine(t, c.pages)
		c.want.Name = p.Name
		err := (&Asker{Client: anywhere}).Ask(t.Context(), &p)
		if c.err != "" {
			if c.want = c.pod; err == nil || !strings.Contains(err.Error(), c.err) || p.Model != c.pod.Model || p.Events != "" {
				t.Errorf("%s: got %+v, %v; want %s", name, p, err, c.err)
			}
			continue
		}
		if err != nil || fmt.Sprint(p) != fmt.Sprint(c.want) {
			t.Errorf("%s: got %+v, %v; want %+v", name, p, err, c.want)
		}
	}
	well := store.Pod{Name: "x", Address: "http://" + engine(t, map[string]string{"/health": ""})}
	if err := (&Asker{Client: anywhere}).Healthy(t.Context(), &well); err != nil {
		t.Error(err)
	}
	well.Address = engine(t, map[string]string{"/health": "down"})
	if err := (&Asker{Client: anywhere}).Healthy(t.Context(), &well); err == nil {
		t.Error("an engine that is down is healthy")
	}
}

// tap is a source that tests turn.
type tap struct {
	ends bool
	pods chan []Found
}

func (s *tap) Watch(ctx context.Context, w Watcher) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p := <-s.pods:
			w.Report(p)
		}
	}
}
func (s *tap) Ends() bool     { return s.ends }
func (s *tap) String() string { return "tap" }

// refusing is an index that can be made to refuse.
type refusing struct {
	store.Index
	away, full atomic.Bool
}

func (x *refusing) Registry(ctx context.Context) (*store.Registry, error) {
	if x.away.Load() {
		return nil, fmt.Errorf("%w: away", store.ErrUnavailable)
	}
	return x.Index.Registry(ctx)
}

func (x *refusing) Register(ctx context.Context, p store.Pod) (bool, error) {
	if x.away.Load() || x.full.Load() {
		return false, fmt.Errorf("%w: refused", store.ErrUnavailable)
	}
	return x.Index.Register(ctx, p)
}

// TestIndexThatRefusesIsToldOnce has many pods, of which each is refused.
func TestIndexThatRefusesIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := must.Get(memory.New(memory.Config{}))(t)
		x := &refusing{Index: in}
		var list List
		for i := range 100 {
			list = append(list, store.Pod{Name: fmt.Sprintf("p%d:1", i), Model: "m"})
		}
		var mu sync.Mutex
		var told []string
		found := 0
		r := must.Get(New(Config{Index: x, Sources: []Source{list}, Lease: 9 * time.Second, Observer: Observer{
			Registered: func(store.Pod) { mu.Lock(); defer mu.Unlock(); found++ },
			Failed:     func(err error) { mu.Lock(); defer mu.Unlock(); told = append(told, err.Error()) },
		}}))(t)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		x.away.Store(true)
		running.Go(func() { _ = r.Run(ctx) })
		want := func(after time.Duration, pods, least, most int, words string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if found != pods || len(told) < least || len(told) > most || !strings.Contains(strings.Join(told, "\n"), words) {
				t.Errorf("%d pods, told of %q; want %d, %d to %d times %q", found, told, pods, least, most, words)
			}
			told = nil
		}
		want(time.Hour, 0, 1, 1, "away")
		x.away.Store(false)
		want(10*time.Second, 100, 0, 0, "")
		x.full.Store(true)
		want(time.Minute, 100, 19, 21, "refused (and so for 99 other pods)") // once a pass
		x.away.Store(true)
		want(time.Minute, 100, 1, 1, "away")
		cancel()
		running.Wait()
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestTooManyPods: too many pods are reported when they begin to be too many, not in each pass.
func TestTooManyPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := must.Get(memory.New(memory.Config{}))(t)
		source := &tap{pods: make(chan []Found)}
		var told []string // read when all rest
		r := must.Get(New(Config{Index: x, Sources: []Source{source}, MaxPods: 2, Template: Template{Model: "m"}, Observer: Observer{
			Failed: func(err error) { told = append(told, err.Error()) },
		}}))(t)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = r.Run(ctx) })
		for _, step := range []struct {
			pods int
			want []string
		}{
			{2, nil},
			{4, []string{"discover: 4 pods are found, the limit is 2; the last ones are left out"}},
			{3, nil}, // the same news
			{1, nil},
			{3, []string{"discover: 3 pods are found, the limit is 2; the last ones are left out"}},
		} {
			var found []Found
			for i := range step.pods {
				found = append(found, Found{Pod: store.Pod{Name: fmt.Sprintf("p%d:1", i)}})
			}
			source.pods <- found
			time.Sleep(time.Hour)
			synctest.Wait()
			if n := len(x.Cached().Pods); !slices.Equal(told, step.want) || n != min(step.pods, 2) {
				t.Errorf("%d pods: %d are registered, told of %q, want %q", step.pods, n, told, step.want)
			}
			told = nil
		}
		cancel()
		running.Wait()
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestSame tells two findings apart by each field of a pod: one that is the same is not asked
// of its engine again.
func TestSame(t *testing.T) {
	values := map[reflect.Kind]any{reflect.Bool: true, reflect.String: "x", reflect.Int: 1, reflect.Int64: store.Seconds(1), reflect.Slice: []string{"x"}, reflect.Map: map[string]string{"x": "y"}, reflect.Pointer: &store.PartOf{Pod: "x"}}
	for field := range reflect.TypeFor[store.Pod]().Fields() {
		var a, b Found
		reflect.ValueOf(&b.Pod).Elem().FieldByIndex(field.Index).Set(reflect.ValueOf(values[field.Type.Kind()]))
		if same(&a, &b) || !same(&a, &a) || !same(&b, &b) {
			t.Errorf("%s makes no difference", field.Name)
		}
	}
	if same(&Found{Life: "1"}, &Found{Life: "2"}) {
		t.Error("two lives are the same")
	}
}

func TestRegistrar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := must.Get(memory.New(memory.Config{}))(t)
		stays, ends := &tap{pods: make(chan []Found)}, &tap{ends: true, pods: make(chan []Found)}
		var mu sync.Mutex
		var told []string
		say := func(s string) { mu.Lock(); defer mu.Unlock(); told = append(told, s) }
		config := Config{
			Index: x, Sources: []Source{stays, ends}, Lease: 9 * time.Second,
			Template: Template{Model: "m", EventsPort: 5557, ReplayPort: 5600, Ranks: 2},
			Observer: Observer{Registered: func(p store.Pod) { say("+" + p.Name) }, Retired: func(p string) { say("-" + p) }, Failed: func(err error) { say(err.Error()) }},
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for range 2 { // replicas of which one finds nothing by itself
			r := must.Get(New(config))(t)
			running.Go(func() { _ = r.Run(ctx) })
			config.Sources = nil
		}
		want := func(after time.Duration, pods string, news ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			reg := must.Get(x.Registry(t.Context()))(t)
			got := ""
			for _, p := range reg.Pods {
				got += p.Name + " "
			}
			mu.Lock()
			defer mu.Unlock()
			// Sources do not wait for each other.
			slices.Sort(told)
			slices.Sort(news)
			if got != pods || strings.Join(told, ",") != strings.Join(news, ",") {
				t.Errorf("there are %q, told of %q; want %q, %q", got, told, pods, news)
			}
			told = nil
		}
		a, b := Found{Pod: store.Pod{Name: "a:1"}}, Found{Pod: store.Pod{Name: "b:1", Model: "other", Events: "tcp://e:1"}, Life: "1"}
		stays.pods <- []Found{a}
		ends.pods <- []Found{b}
		want(time.Second, "a:1 b:1 ", "+a:1", "+b:1")
		reg, _ := x.Registry(t.Context())
		if p := reg.Pods[0]; p.Model != "m" || p.Events != "tcp://a:5557" || p.Replay != "tcp://a:5600" || p.Ranks != 2 {
			t.Errorf("a is %+v", p)
		}
		if p := reg.Pods[1]; p.Model != "other" || p.Events != "tcp://e:1" || p.Replay != "" || p.Labels[LifeLabel] != "1" {
			t.Errorf("b is %+v", p)
		}
		want(time.Minute, "a:1 b:1 ") // renewed
		gen := must.Get(x.Begin(t.Context(), "b:1", 0, 1))(t)
		b.Life = "2"
		ends.pods <- []Found{b}
		want(time.Second, "a:1 b:1 ", "+b:1")
		if _, err := x.TakeOver(t.Context(), gen, 2); !errors.Is(err, store.ErrEnded) {
			t.Errorf("the last life goes on: %v", err)
		}
		stays.pods <- nil
		ends.pods <- nil
		want(time.Second, "a:1 ", "-b:1")
		want(9*time.Second, "") // a's lease is over
		stays.pods <- []Found{{Pod: store.Pod{Name: "c:1", Role: "x"}}}
		want(time.Minute, "", `discover: the pod c:1: store: invalid argument: role is not one of prefill, decode, both`)
		cancel()
		running.Wait()
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Pods of which no events are known are approximate where the template says so.
func TestTemplateApproximate(t *testing.T) {
	for _, x := range []struct {
		template Template
		pod      store.Pod
		want     bool
	}{
		{Template{Approximate: true}, store.Pod{Name: "h:1"}, true},
		{Template{Approximate: true}, store.Pod{Name: "h:1", Events: "tcp://h:2"}, false},
		{Template{Approximate: true, EventsPort: 5557}, store.Pod{Name: "h:1"}, false},
		{Template{}, store.Pod{Name: "h:1"}, false},
		{Template{}, store.Pod{Name: "h:1", Approximate: true}, true},
	} {
		p := x.pod
		if x.template.fill(&p); p.Approximate != x.want {
			t.Errorf("%+v of %+v", p, x)
		}
	}
}

// TestRegistryThatIsLost: pods of a registry that has none of them any more come back at once. One
// that was taken out alone does with its next renewal.
func TestRegistryThatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := must.Get(memory.New(memory.Config{}))(t)
		list := List{{Name: "a:1", Model: "m"}, {Name: "b:1", Model: "m"}}
		r := must.Get(New(Config{Index: x, Sources: []Source{list}, Lease: 30 * time.Second}))(t)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = r.Run(ctx) })
		want := func(after time.Duration, pods int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			reg, err := x.Registry(ctx)
			if err != nil || len(reg.Pods) != pods {
				t.Fatalf("%d pods, want %d: %v", len(reg.Pods), pods, err)
			}
		}
		retire := func(names ...string) {
			for _, name := range names {
				must.Get(x.Retire(ctx, name))(t)
			}
			if _, err := x.Registry(ctx); err != nil { // as a lookup reads it
				t.Fatal(err)
			}
		}
		want(time.Second, 2)
		retire("a:1", "b:1")
		want(2*lookEvery, 2)
		retire("a:1")
		want(2*lookEvery, 1)
		want(10*time.Second, 2)
		cancel()
		running.Wait()
		must.OK(t, x.Close())
	})
}

// starting is an engine that answers from a time on.
type starting struct {
	at    time.Time
	asked int
}

func (s *starting) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked++
	if time.Now().Before(s.at) {
		return nil, errors.New("connection refused")
	}
	w := httptest.NewRecorder()
	if r.URL.Path == "/v1/models" {
		_, _ = w.WriteString(`{"object":"list","data":[{"id":"m","object":"model"}]}`)
	} else {
		http.NotFound(w, r)
	}
	return w.Result(), nil
}

// TestEngineThatStarts registers a pod soon after its engine can be asked. An engine that never can
// be is not asked much more often than its registration would be renewed.
func TestEngineThatStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := must.Get(memory.New(memory.Config{}))(t)
		engine := &starting{at: time.Now().Add(1200 * time.Millisecond)}
		r := must.Get(New(Config{Index: x, Sources: []Source{List{{Name: "a:1"}}}, Lease: 30 * time.Second, Asker: &Asker{Client: &http.Client{Transport: engine}}}))(t)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = r.Run(ctx) })
		time.Sleep(1600 * time.Millisecond) // asked at 0, 0.5 and 1.5 s
		synctest.Wait()
		if reg, err := x.Registry(ctx); err != nil || len(reg.Pods) != 1 {
			t.Errorf("%d pods 0.4 s after the engine can be asked: %v", len(reg.Pods), err)
		}
		cancel()
		running.Wait()

		never := &starting{at: time.Now().Add(time.Hour)}
		r = must.Get(New(Config{Index: x, Sources: []Source{List{{Name: "b:1"}}}, Lease: 30 * time.Second, Asker: &Asker{Client: &http.Client{Transport: never}}}))(t)
		ctx, cancel = context.WithCancel(t.Context())
		running.Go(func() { _ = r.Run(ctx) })
		time.Sleep(105 * time.Second)
		synctest.Wait()
		// At 0, 0.5, 1.5, 3.5, 7.5, 15.5 s and each 10 s then.
		if never.asked < 13 || never.asked > 16 {
			t.Errorf("it was asked %d times in 105 s", never.asked)
		}
		cancel()
		running.Wait()
		must.OK(t, x.Close())
	})
}
