package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
)

// load runs the whole way: arguments, environment, and one file named k.yaml.
func load(t interface{ Helper() }, args, env []string, file string) (*Loaded, error) {
	t.Helper()
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	l := NewLoader(flags)
	if err := flags.Parse(args); err != nil {
		return nil, l.FlagError(err)
	}
	return l.Load(env, func(path string) ([]byte, error) {
		if path != "/etc/k.yaml" {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		return []byte(file), nil
	})
}

func TestDefaultsAreValid(t *testing.T) {
	got, err := load(t, nil, nil, "")
	if err != nil {
		t.Fatalf("the defaults are refused: %v", err)
	}
	for _, s := range Settings() {
		if o := got.Origins[s.Name]; o != "default" {
			t.Errorf("%s comes from %q", s.Name, o)
		}
		if text := s.text(&got.Config); text != s.Default {
			t.Errorf("%s: default %q is written %q; write it as it is printed", s.Name, s.Default, text)
		}
		if doc := s.Doc(); len(doc) < 20 || !strings.HasSuffix(doc, ".") {
			t.Errorf("%s: its doc comment is no sentence: %q", s.Name, doc)
		}
		if serviceLink.MatchString(s.Env) {
			t.Errorf("%s: Kubernetes may set %s", s.Name, s.Env)
		}
		if slices.Contains(otherVariables, s.Env) || strings.HasPrefix(s.Env, testVariables) {
			t.Errorf("%s: %s has another meaning", s.Name, s.Env)
		}
	}
}

func TestPrecedence(t *testing.T) {
	const file = "score-budget: 4ms\n"
	for _, tc := range []struct {
		name   string
		args   []string
		env    []string
		want   time.Duration
		origin string
	}{
		{"default", nil, nil, 50 * time.Millisecond, "default"},
		{"file", nil, []string{"KVATLAS_CONFIG=/etc/k.yaml"}, 4 * time.Millisecond, "k.yaml:1"},
		{"file by flag", []string{"--config", "/etc/k.yaml"}, nil, 4 * time.Millisecond, "k.yaml:1"},
		{"flag names the file", []string{"--config", "/etc/k.yaml"}, []string{"KVATLAS_CONFIG=/nowhere"}, 4 * time.Millisecond, "k.yaml:1"},
		{"variable over file", nil, []string{"KVATLAS_CONFIG=/etc/k.yaml", "KVATLAS_SCORE_BUDGET=3ms"}, 3 * time.Millisecond, "KVATLAS_SCORE_BUDGET"},
		{"flag over all", []string{"--score-budget=2ms"}, []string{"KVATLAS_CONFIG=/etc/k.yaml", "KVATLAS_SCORE_BUDGET=3ms"}, 2 * time.Millisecond, "--score-budget"},
		{"last flag", []string{"--score-budget=2ms", "-score-budget", "1ms"}, nil, time.Millisecond, "--score-budget"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := must.Get(load(t, tc.args, tc.env, file))(t)
			if got.ScoreBudget != tc.want || got.Origins["score-budget"] != tc.origin {
				t.Errorf("got %v from %s, want %v from %s", got.ScoreBudget, got.Origins["score-budget"], tc.want, tc.origin)
			}
		})
	}
}

func TestAliases(t *testing.T) {
	got, err := load(t, nil, []string{"HF_TOKEN=hf_x", "HF_ENDPOINT=http://mirror:81", "HF_HUB_OFFLINE=1", "KVATLAS_HUB_ENDPOINT=https://ours"}, "")
	must.OK(t, err)
	if string(got.HubToken) != "hf_x" || got.Origins["hub-token"] != "HF_TOKEN" {
		t.Errorf("token %q from %s", string(got.HubToken), got.Origins["hub-token"])
	}
	if got.HubEndpoint != "https://ours" || got.Origins["hub-endpoint"] != "KVATLAS_HUB_ENDPOINT" {
		t.Errorf("our own variable is not the stronger one: %s from %s", got.HubEndpoint, got.Origins["hub-endpoint"])
	}
	if !got.HubOffline {
		t.Error("HF_HUB_OFFLINE=1 is not honoured")
	}
	// The order in the environment does not matter.
	got, err = load(t, nil, []string{"KVATLAS_HUB_ENDPOINT=https://ours", "HF_ENDPOINT=http://mirror:81", "HF_TOKEN="}, "")
	if err != nil || got.HubEndpoint != "https://ours" || got.Origins["hub-token"] != "default" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestEveryValueForm(t *testing.T) {
	const file = `
# a comment
listen: "[::1]:9000"
admin-listen: :9001
roles: [score]
strict-ready: yes
redis: redis://user:pa:ss@host:6379/3
drain-delay: 0s
index-max-pods: 5000
tier-weights:
  cpu: 0.25
  shared: 0
prefix-cache-bytes: 2GiB
max-body-bytes: 10MB
strategy: coverage
`
	got := must.Get(load(t, []string{"--config=/etc/k.yaml"}, nil, file))(t)
	c := got.Config
	if c.Listen != "[::1]:9000" || c.AdminListen != ":9001" || !slices.Equal(c.Roles, Roles{"score"}) || !c.StrictReady ||
		string(c.Redis) != "redis://user:pa:ss@host:6379/3" || c.DrainDelay != 0 || c.IndexMaxPods != 5000 ||
		c.TierWeights != (Weights{1, 0.25, 0.5, 0}) || c.PrefixCacheBytes != 2<<30 || c.MaxBodyBytes != 10e6 || c.Strategy != "coverage" {
		t.Errorf("got %+v", c)
	}
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		env  []string
		file string
		want []string
	}{
		{name: "unknown flag", args: []string{"--lisen=x"}, want: []string{"--lisen: no such flag (did you mean --listen?)"}},
		{name: "far flag", args: []string{"--xyzzyxyzzy"}, want: []string{"--xyzzyxyzzy: no such flag"}},
		{name: "flag without value", args: []string{"--listen"}, want: []string{"flag needs an argument: -listen"}},
		{name: "unknown variable", env: []string{"KVATLAS_SCORE_BUGDET=1s"}, want: []string{"KVATLAS_SCORE_BUGDET: no such setting (did you mean KVATLAS_SCORE_BUDGET?)"}},
		{name: "unknown key", file: "listen: :1\nscore_budget: 1s\n", want: []string{"k.yaml:2: score_budget: no such setting (did you mean score-budget?)"}},
		{name: "two wrongs", env: []string{"KVATLAS_SCORE_BUDGET=5x"}, file: "block-size: 0\n", want: []string{`KVATLAS_SCORE_BUDGET: "5x" is no duration`, "k.yaml:1: block-size: 0 is out of range, it must be at least 1"}},
		{name: "number", args: []string{"--block-size=many"}, want: []string{`--block-size: "many" is no whole number`}},
		{name: "too large", args: []string{"--prefix-cache-bytes=2TiB"}, want: []string{"--prefix-cache-bytes: 2TiB is out of range, it must be at most 1TiB"}},
		{name: "size overflow", args: []string{"--prefix-cache-bytes=99999999999TiB"}, want: []string{"is no size"}},
		{name: "line end", env: []string{"KVATLAS_LISTEN=:8080\n"}, want: []string{"KVATLAS_LISTEN: its value has a control character at byte 5 of 6"}},
		{name: "not UTF-8", env: []string{"KVATLAS_TOKENIZERS=\xff"}, want: []string{"KVATLAS_TOKENIZERS: its value is not UTF-8"}},
		{name: "switch", env: []string{"KVATLAS_STRICT_READY=maybe"}, want: []string{`KVATLAS_STRICT_READY: "maybe" is neither true nor false`}},
		{name: "word", args: []string{"--prefix-cache=mru"}, want: []string{`"mru" is not one of lru, trie, none`}},
		{name: "no role", args: []string{"--roles="}, want: []string{`"" is no role`}},
		{name: "no score", args: []string{"--roles=ingest"}, want: []string{"role score cannot be left out"}},
		{name: "pods", args: []string{"--pods=h:1,x"}, want: []string{`pods: invalid text: "x" is no host:port`}},
		{name: "pod twice", args: []string{"--pods=h:1,h:1?model=m"}, want: []string{"pods: invalid text: the pod h:1 is there twice"}},
		{name: "no model", args: []string{"--pods=10.0.0.1:8000"}, want: []string{"pods: 10.0.0.1:8000: nothing says which model it serves: write 10.0.0.1:8000?model=NAME, or set pods-model for all pods, or pods-ask to ask the engine"}},
		{name: "one without model", args: []string{"--pods=g:1?model=m,h:1?role=both"}, want: []string{"pods: h:1?role=both: nothing says which model it serves: write h:1?role=both&model=NAME"}},
		{name: "no model of names", args: []string{"--pods-dns=h:1"}, want: []string{"pods-dns: h:1: nothing says which model it serves: write h:1?model=NAME"}},
		{name: "port of events", args: []string{"--pods=h:1?model=m&events=tcp://h:99999"}, want: []string{`pods: h:1?model=m&events=tcp://h:99999: events of h:1/0: "tcp://h:99999": the port is "99999"`, `port is "99999"`}},
		{name: "no port of events", args: []string{"--pods=g:1,h:1?events=tcp://h", "--pods-model=m"}, want: []string{"pods: h:1?events=tcp://h: events of h:1", "missing port"}},
		{name: "scheme of events", args: []string{"--pods=h:1?events=http://h:5557", "--pods-model=m"}, want: []string{"pods: h:1?events=http://h:5557: events of h:1", `"http"`}},
		{name: "replay", args: []string{"--pods=h:1?events=tcp://h:5557&replay=tcp://h:0", "--pods-model=m"}, want: []string{"replay of h:1", `port is "0"`}},
		{name: "one endpoint for both", args: []string{"--pods=h:1?model=m&events=tcp://h:5557&replay=tcp://h:5557"}, want: []string{`pods: h:1?model=m&events=tcp://h:5557&replay=tcp://h:5557: replay of h:1/0: "tcp://h:5557" is where the events of rank 0 are; the replay socket has an endpoint of its own`}},
		{name: "replay at the next rank's events", args: []string{"--pods=h:1?ranks=2", "--pods-model=m", "--pods-port-events=5557", "--pods-port-replay=5558"}, want: []string{`pods: h:1?ranks=2: replay of h:1/0: "tcp://h:5558" is where the events of rank 1 are`}},
		{name: "one port for both", args: []string{"--pods=h:1", "--pods-model=m", "--pods-port-events=5557", "--pods-port-replay=5557"}, want: []string{"pods-port-replay: from 5557 on, as pods-port-events from 5557 on, the ports of pods-ranks (1) would be of both"}},
		{name: "ports that meet", args: []string{"--pods-dns=h:1", "--pods-model=m", "--pods-port-events=5558", "--pods-port-replay=5557", "--pods-ranks=2"}, want: []string{"pods-port-replay: from 5557 on, as pods-port-events from 5558 on, the ports of pods-ranks (2)"}},
		{name: "ranks beyond the ports", args: []string{"--pods=h:1?events=tcp://h:65535&ranks=2", "--pods-model=m"}, want: []string{"events of h:1", "rank 1 would have port 65535+1"}},
		{name: "endpoints and ranks", args: []string{"--pods=h:1?events=tcp://h:1%2Ctcp://h:2&ranks=3", "--pods-model=m"}, want: []string{"2 endpoints for 3 ranks"}},
		{name: "ports of all", args: []string{"--pods-kubernetes=a=b", "--pods-port-events=65535", "--pods-ranks=2"}, want: []string{"pods-port-events: 65535 is rank 0's, and the last of pods-ranks (2) would have port 65536"}},
		{name: "replay ports of all", args: []string{"--pods-port-replay=65535", "--pods-ranks=3"}, want: []string{"pods-port-replay: 65535 is", "port 65537"}},
		{name: "ranks of one", args: []string{"--pods=h:1?ranks=3", "--pods-model=m", "--pods-port-events=65535"}, want: []string{"pods: h:1?ranks=3: events of h:1", "port 65535+1"}},
		{name: "bind unasked", args: []string{"--pods=h:1?events=bind%2Btcp://*:5557", "--pods-model=m"}, want: []string{"pods: h:1?events=bind%2Btcp://*:5557: events of h:1", "lets no engine connect to it; ingest-bind lets them"}},
		{name: "bind with a space", args: []string{"--pods=h:1?events=bind+tcp://*:5557", "--pods-model=m", "--ingest-bind=*"}, want: []string{"write bind%2Btcp"}},
		{name: "bind elsewhere", args: []string{"--pods=h:1?events=bind%2Btcp://10.0.0.2:5557", "--pods-model=m", "--ingest-bind=10.0.0.1"}, want: []string{"engines can connect to 10.0.0.1, write *"}},
		{name: "bind with CURVE", args: []string{"--pods=h:1?events=bind%2Btcp://*:5557", "--pods-model=m", "--ingest-bind=*", "--ingest-curve-keys=/k", "--ingest-curve-server=/s"}, want: []string{"pods: h:1?events=bind%2Btcp://*:5557: ", "CURVE"}},
		{name: "tokens", args: []string{"--max-tokens=0"}, want: []string{"--max-tokens: 0 is out of range"}},
		{name: "names of pods", args: []string{"--pods-dns=a:b"}, want: []string{`pods-dns: invalid text: "a:b"`}},
		{name: "labels of pods", args: []string{"--pods-kubernetes=a in"}, want: []string{"pods-kubernetes: invalid text: kubernetes: "}},
		{name: "labels and pool", args: []string{"--pods-kubernetes=a=b", "--pods-kubernetes-pool=p"}, want: []string{"give either a selector of labels or the name"}},
		{name: "pool without namespace", args: []string{"--pods-kubernetes-pool=p"}, want: []string{"an InferencePool needs its namespace"}},
		{name: "half of CURVE", args: []string{"--ingest-curve-keys=/k"}, want: []string{"ingest-curve-keys and ingest-curve-server go together"}},
		{name: "topic", args: []string{"--ingest-topic=kv@{ip}"}, want: []string{"ingest-topic, ingest-bind: the topic \"kv@{ip}\" has {ip}"}},
		{name: "bind", args: []string{"--ingest-bind=eth0"}, want: []string{"\"eth0\" is no address of this machine"}},
		{name: "media", args: []string{"--ingest-media=tape=hbm"}, want: []string{"--ingest-media: \"tape=hbm\""}},
		{name: "copies", args: []string{"--ingest-copies=some"}, want: []string{"\"some\" is not one of infer, all, none"}},
		{name: "role twice", args: []string{"--roles=score,score"}, want: []string{"named twice"}},
		{name: "tier", args: []string{"--tier-weights=hbm=1"}, want: []string{`"hbm" is no tier; there are gpu, cpu, disk, shared`}},
		{name: "weight", args: []string{"--tier-weights=cpu=NaN"}, want: []string{`weight "NaN" of tier cpu`}},
		{name: "address", args: []string{"--listen=8080"}, want: []string{`listen: "8080" is no address host:port`}},
		{name: "port", args: []string{"--listen=:99999"}, want: []string{`listen: port "99999"`}},
		{name: "same address", args: []string{"--listen=:8080", "--admin-listen=:8080"}, want: []string{"admin-listen: it is the same address as listen"}},
		{name: "strict without redis", args: []string{"--strict-ready"}, want: []string{"strict-ready: it is about Redis"}},
		{name: "budgets", args: []string{"--request-timeout=90ms"}, want: []string{"request-timeout: 90ms leaves no time"}},
		{name: "body", args: []string{"--max-body-bytes=1GiB"}, want: []string{"max-in-flight-bytes: 256MiB is less than max-body-bytes (1GiB)"}},
		{name: "prompt", args: []string{"--max-body-bytes=1KiB"}, want: []string{"max-prompt-bytes: 1MiB is more than max-body-bytes (1KiB)"}},
		{name: "usage window", args: []string{"--usage-window=10ms"}, want: []string{"usage-window: 10ms is too short"}},
		{name: "prefix", args: []string{"--redis-prefix=a{b"}, want: []string{"redis-prefix"}},
		{name: "hub", args: []string{"--hub-endpoint=huggingface.co"}, want: []string{"hub-endpoint"}},
		{name: "redis scheme", args: []string{"--redis=http://h"}, want: []string{`redis: the URL's scheme "http" is unknown`}},
		{name: "redis without host", args: []string{"--redis=redis://"}, want: []string{"redis: "}},
		{name: "no file", args: []string{"--config=/nowhere.yaml"}, want: []string{"config file: open /nowhere.yaml: file does not exist"}},
		{name: "syntax", file: "listen: [\n", want: []string{"k.yaml: "}},
		{name: "a list", file: "- a\n", want: []string{"k.yaml: it must be one mapping of settings"}},
		{name: "documents", file: "listen: :1\n---\nlisten: :2\n", want: []string{"several documents"}},
		{name: "key twice", file: "listen: :1\nlisten: :2\n", want: []string{"k.yaml: ", "listen"}},
		{name: "no value", file: "listen:\n", want: []string{"k.yaml:1: listen: it has no value"}},
		{name: "nested", file: "roles: [[score]]\n", want: []string{"k.yaml:1: roles: it must be a plain value, not a YAML sequence"}},
		{name: "anchor", file: "listen: &a :1\n", want: []string{"it must be a plain value, not a YAML anchor"}},
		{name: "file in file", file: "config: x\n", want: []string{"a file cannot name another file"}},
		{name: "large file", file: strings.Repeat("#\n", maxFile), want: []string{"larger than the limit, which is 1048576 bytes"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.file != "" {
				tc.args = append(tc.args, "--config=/etc/k.yaml")
			}
			_, err := load(t, tc.args, tc.env, tc.file)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error is\n%v\nwant it to hold\n%s", err, w)
				}
			}
			if n := strings.Count(err.Error(), "\n") + 1; tc.name != "two wrongs" && n != 1 {
				t.Errorf("%d lines for one wrong:\n%v", n, err)
			}
		})
	}
}

// TestPodsThatCanBe has endpoints that look wrong and are not.
func TestPodsThatCanBe(t *testing.T) {
	for _, args := range [][]string{
		{"--pods=h:1", "--pods-model=m"},
		{"--pods=h:1?events=tcp://*:5557&replay=tcp://0.0.0.0:5565&ranks=8", "--pods-model=m"},
		{"--pods=h:1?events=ipc:///run/events.sock", "--pods-model=m"},
		{"--pods=h:1", "--pods-model=m", "--pods-port-events=5557", "--pods-port-replay=5559", "--pods-ranks=2"},
		{"--pods=h:1?events=bind%2Btcp://*:5557", "--pods-model=m", "--ingest-bind=*"},
		{"--pods=h:1?events=bind%2Btcp://10.0.0.1:5557", "--pods-model=m", "--ingest-bind=10.0.0.1"},
		{"--pods=h:1?events=bind%2Btcp://*:5557", "--roles=score"}, // others read it
		{"--pods=h:1", "--roles=score"},
		{"--pods=h:1", "--pods-ask"},
		{"--pods-dns=h:1?model=m"},
		{"--pods=h:1?events=tcp://h:1%2Ctcp://h:2", "--pods-ask"},        // two ranks, as the engine says
		{"--pods=h:1?ranks=3", "--pods-port-events=65535", "--pods-ask"}, // only where the engine does not say
	} {
		if _, err := load(t, args, nil, ""); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestSettingErrorIsFound(t *testing.T) {
	_, err := load(t, nil, []string{"KVATLAS_BLOCK_SIZE=x"}, "")
	var se *settingError
	if !errors.As(err, &se) || se.Setting != "block-size" || se.Origin != "KVATLAS_BLOCK_SIZE" {
		t.Errorf("got %#v", err)
	}
}

// Kubernetes sets these in a namespace with Services named kvatlas and
// kvatlas-redis; they are no settings of ours and no errors.
func TestServiceLinksAreNoSettings(t *testing.T) {
	env := []string{
		"KVATLAS_SERVICE_HOST=10.0.0.1", "KVATLAS_SERVICE_PORT=8080", "KVATLAS_SERVICE_PORT_HTTP=8080",
		"KVATLAS_PORT=tcp://10.0.0.1:8080", "KVATLAS_PORT_8080_TCP=tcp://10.0.0.1:8080",
		"KVATLAS_PORT_8080_TCP_PROTO=tcp", "KVATLAS_PORT_8080_TCP_PORT=8080", "KVATLAS_PORT_8080_TCP_ADDR=10.0.0.1",
		"KVATLAS_REDIS_SERVICE_HOST=10.0.0.2", "KVATLAS_REDIS_PORT=tcp://10.0.0.2:6379",
		"KVATLAS_TEST_REDIS=x", "KVATLAS_SERVER=x", "KVATLAS_CACHE=x", "PATH=/bin", "NOVALUE",
	}
	if _, err := load(t, nil, env, ""); err != nil {
		t.Error(err)
	}
}

// Whatever is wrong with a secret, no message shows it.
func TestErrorsHideSecrets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secret := "s3cr3t" + rapid.StringMatching(`[!-~]{0,8}`).Draw(t, "secret")
		scheme := rapid.SampledFrom([]string{"redis://", "rediss+cluster://", "http://", "", "redis:", "%zz://", ":"}).Draw(t, "scheme")
		tail := rapid.SampledFrom([]string{"@host:1", "@", "@host:port", "@[::1", "@h?x=%zz"}).Draw(t, "tail")
		url := scheme + "user:" + secret + tail
		_, err := load(t, []string{"--redis=" + url, "--block-size=0"}, []string{"HF_TOKEN=" + secret + "\n"}, "")
		if err == nil {
			t.Fatal("accepted")
		}
		file := fmt.Sprintf("redis: %q\nhub-token: %q\nlisten: [", url, secret)
		_, err2 := load(t, []string{"--config=/etc/k.yaml"}, nil, file)
		if text := fmt.Sprint(err, err2); strings.Contains(text, "s3cr3t") {
			t.Fatalf("it shows: %s", text)
		}
		if text := fmt.Sprintf("%v %+v %#v", SecretURL(url), SecretURL(url), SecretURL(url)); strings.Contains(text, "s3cr3t") {
			t.Fatalf("it shows: %s", text)
		}
	})
}

func TestMaskedSecretsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"--redis=redis://u:***@h"}, {"--hub-token=***"}} {
		if _, err := load(t, args, nil, ""); !errors.Is(err, errMasked) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestSecretURL(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		"redis://h:6379/0":                 "redis://h:6379/0",
		"redis://user@h":                   "redis://user@h",
		"redis://user:pw@h:1/0":            "redis://user:***@h:1/0",
		"redis://:pw@h":                    "redis://:***@h",
		"redis://u:p/w?x#@h":               "redis://u:***@h",
		"redis://u:p@h1:1,u:p@h2":          "redis://u:***@h2",
		"redis://h?sentinel_password=x&db": "redis://h?sentinel_password=***&db",
		"u:p@h":                            "u:***@h",
	} {
		if got := SecretURL(in).String(); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// The setting takes the strategies that there are.
func TestStrategies(t *testing.T) {
	var want []string
	for _, s := range scorer.Strategies() {
		want = append(want, string(s))
	}
	for _, s := range Settings() {
		if s.Name == "strategy" && !slices.Equal(s.OneOf, want) {
			t.Errorf("it takes %q, want %q", s.OneOf, want)
		}
	}
}

// The default in the tag is the one of package scorer.
func TestDefaultTierWeights(t *testing.T) {
	got, err := load(t, nil, nil, "")
	if err != nil || got.TierWeights != Weights(scorer.DefaultWeights()) {
		t.Errorf("got %v, %v, want %v", got.TierWeights, err, scorer.DefaultWeights())
	}
}
