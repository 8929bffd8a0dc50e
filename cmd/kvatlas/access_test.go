package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// reachable is the URL of a server that listens on all addresses.
func reachable(url string) string {
	_, port, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "]:")
	if port == "" {
		_, port, _ = net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	}
	return "http://127.0.0.1:" + port
}

// postAs sends a body and returns the status and the answer.
func postAs(t *testing.T, c *http.Client, url, token, body string) (int, string) {
	t.Helper()
	return sendAs(t, c, http.MethodPost, url, token, strings.NewReader(body))
}

// getAs is a page, and its status, as the caller of a token gets it.
func getAs(t *testing.T, url, token string) (int, string) {
	t.Helper()
	return sendAs(t, http.DefaultClient, http.MethodGet, url, token, http.NoBody)
}

// sendAs makes a request as the caller of a token, or without one where token is "".
func sendAs(t *testing.T, c *http.Client, method, url, token string, body io.Reader) (int, string) {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, url, body))(t)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(r)
	must.OK(t, err)
	defer resp.Body.Close()
	b := must.Get(io.ReadAll(resp.Body))(t)
	return resp.StatusCode, string(b)
}

const addBlocks = `{"op":"add","model":"m","pod":"p","tokens":[1,2,3,4]}`

// TestListenerOfOthers: others reach a server that has no credentials. It answers and takes no writes, and
// logs so at its start, unless a setting allows writes.
func TestListenerOfOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args         []string
		score, write int
		warning      string
	}{
		"loopback":       {[]string{"--listen=127.0.0.1:0"}, 200, 200, ""},
		"others":         {[]string{"--listen=0.0.0.0:0"}, 200, 403, "there are no credentials"},
		"others, IPv6":   {[]string{"--listen=[::]:0"}, 200, 403, "there are no credentials"},
		"told to":        {[]string{"--listen=0.0.0.0:0", "--anonymous=write"}, 200, 200, "everyone who reaches this listener"},
		"nobody at all":  {[]string{"--listen=127.0.0.1:0", "--anonymous=none"}, 403, 403, ""},
		"admin's others": {[]string{"--listen=127.0.0.1:0", "--admin-listen=0.0.0.0:0"}, 200, 200, "admin-listen"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, append([]string{"--block-size=4"}, c.args...)...)
			url := reachable(r.url)
			if status, body := postAs(t, http.DefaultClient, url+"/v1/score", "", `{"model":"m","tokens":[1,2,3,4]}`); status != c.score {
				t.Errorf("score: %d %s", status, body)
			}
			if status, body := postAs(t, http.DefaultClient, url+"/v1/blocks", "", addBlocks); status != c.write {
				t.Errorf("blocks: %d %s", status, body)
			}
			if got := r.stderr.String(); c.warning == "" && strings.Contains(got, `"warn"`) || !strings.Contains(got, c.warning) {
				t.Errorf("log: %s", got)
			}
			if r.admin != "" {
				if status, body := postAs(t, http.DefaultClient, reachable(r.admin)+"/v1/reset", "", `{"all":true}`); status != http.StatusForbidden {
					t.Errorf("reset: %d %s", status, body)
				}
			}
		})
	}
}

// TestCredentials: kvatlas token makes what the server and the commands take, and a token that
// is withdrawn from the file counts no more.
func TestCredentials(t *testing.T) {
	t.Parallel()
	status, line, token := call(t, "", "token", "--role=write", "ingester")
	token = strings.TrimSpace(token)
	if status != cli.ExitOK || strings.Contains(line, token) || token == "" {
		t.Fatalf("%d %q %q", status, line, token)
	}
	path := filepath.Join(t.TempDir(), "credentials")
	must.OK(t, os.WriteFile(path, []byte(line), 0o600))
	r := start(t, "--block-size=4", "--credentials="+path, "--rate-limit=1000")
	c := must.Get(client.New(client.Config{URL: r.url, Token: token}))(t)
	defer c.Close()
	must.Get(c.Blocks(t.Context(), client.BlocksRequest{Op: client.OpAdd, Model: "m", Pod: "p", Tokens: tokens(8)}))(t)
	ask := func(token string) (int, string) {
		var out, errs output
		p := &program{&cli.Program{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Name: "kvatlas", Env: []string{"KVATLAS_TOKEN=" + token}}}
		status := p.run(t.Context(), []string{"score", "--server", r.url, "--model=m", "--tokens=0,7919,15838,23757"})
		return status, out.String() + errs.String()
	}
	if status, text := ask(token); status != cli.ExitOK || !strings.Contains(text, "p ") {
		t.Errorf("with the token: %d %s", status, text)
	}
	for _, wrong := range []string{"", "another token of some length"} {
		if status, text := ask(wrong); status != cli.ExitFailed || !strings.Contains(text, "unauthorized") {
			t.Errorf("with %q: %d %s", wrong, status, text)
		}
	}
	if status, body := postAs(t, http.DefaultClient, r.url+"/v1/reset", token, `{"all":true}`); status != http.StatusForbidden {
		t.Errorf("a writer resets: %d %s", status, body)
	}
	if strings.Contains(r.stderr.String(), token) || !strings.Contains(r.stderr.String(), `"caller":"ingester"`) {
		t.Errorf("the log names the caller and not its token: %s", r.stderr)
	}
	must.OK(t, os.WriteFile(path, []byte("# nobody\n"), 0o600))
	r.await(func() map[string]any {
		if status, _ := ask(token); status == cli.ExitFailed {
			return map[string]any{}
		}
		return nil
	})
	for _, args := range [][]string{{}, {"a", "b"}, {"--role=none", "a"}, {"--role=root", "a"}, {"--token=short", "a"}, {"a b"}, {""}} {
		if status, _, stderr := call(t, "", append([]string{"token"}, args...)...); status != cli.ExitUsage || stderr == "" {
			t.Errorf("token %q: %d %s", args, status, stderr)
		}
	}
}

// TestServeTLS: the API over TLS, and settings that do not go together.
func TestServeTLS(t *testing.T) {
	t.Parallel()
	// A certificate for 127.0.0.1, and a client that trusts it.
	model := httptest.NewTLSServer(http.NotFoundHandler())
	defer model.Close()
	pair := model.TLS.Certificates[0]
	key := must.Get(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))(t)
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, "key": {Type: "PRIVATE KEY", Bytes: key}} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	r := start(t, "--block-size=4", "--tls-cert="+filepath.Join(dir, "cert"), "--tls-key="+filepath.Join(dir, "key"))
	url := "https" + strings.TrimPrefix(r.url, "http")
	if status, body := postAs(t, model.Client(), url+"/v1/blocks", "", addBlocks); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if status, body := postAs(t, http.DefaultClient, r.url+"/v1/blocks", "", addBlocks); status != http.StatusBadRequest {
		t.Errorf("without TLS: %d %s", status, body)
	}
	for want, args := range map[string][]string{
		"TLS takes both":            {"--tls-cert=" + filepath.Join(dir, "cert")},
		"come with TLS":             {"--tls-client-ca=" + filepath.Join(dir, "cert"), "--credentials=x"},
		"set credentials":           {"--tls-cert=a", "--tls-key=b", "--tls-client-ca=c"},
		"engine-networks":           {"--engine-networks=lan"},
		"no such file or directory": {"--credentials=" + filepath.Join(dir, "none")},
		"tls-cert, tls-key":         {"--tls-cert=" + filepath.Join(dir, "key"), "--tls-key=" + filepath.Join(dir, "cert")},
	} {
		status, _, stderr := call(t, "", append([]string{"serve", "--listen=127.0.0.1:0", "--hub-cache=" + dir}, args...)...)
		if status == cli.ExitOK || !strings.Contains(stderr, want) {
			t.Errorf("%q: %d %s", args, status, stderr)
		}
	}
}

// countConnections listens on an address until the test ends. It returns the port, and how many
// have connected so far.
func countConnections(t *testing.T, address string) (port string, connected *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	must.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	connected = new(atomic.Int32)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			connected.Add(1)
			_ = c.Close()
		}
	}()
	_, port, err = net.SplitHostPort(l.Addr().String())
	must.OK(t, err)
	return port, connected
}

// TestEnginesElsewhere: a registration has the server connect to no address outside of
// engine-networks, by events, metrics or questions, whatever name or form it has.
func TestEnginesElsewhere(t *testing.T) {
	t.Parallel()
	port, connected := countConnections(t, "127.0.0.1:0")
	r := start(t, "--block-size=4", "--pods-ask", "--engine-networks=10.0.0.0/8", "--ingest-ttl=1s")
	c := r.client()
	hosts := []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]"}
	for i, host := range hosts {
		at := net.JoinHostPort(strings.Trim(host, "[]"), port)
		err := c.RegisterPod(t.Context(), client.Pod{Name: fmt.Sprintf("p%d", i), Model: "m", Address: at, Engine: "vllm", Events: "tcp://" + at})
		if err != nil {
			t.Fatalf("%s: %v", host, err)
		}
	}
	// Metrics are read of models that are routed.
	if status, body := postAs(t, http.DefaultClient, r.url+"/v1/route", "", `{"model":"m","tokens":[1,2,3,4]}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	for _, message := range []string{"the engine's metrics cannot be read", "cannot connect to the engine's events"} {
		r.await(func() map[string]any {
			for line := range strings.Lines(r.stderr.String()) {
				if strings.Contains(line, message) && strings.Contains(line, "not within engine-networks") {
					return map[string]any{}
				}
			}
			return nil
		})
	}
	if n := connected.Load(); n != 0 {
		t.Errorf("%d connections were made\n%s", n, r.stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Ready(ctx); err != nil {
		t.Error(err)
	}
}

// TestNoPromptIsWritten: what prompts say is in no log line, metric or value of Redis, at the most
// talkative level. It does not matter how they come, or whether they are answered or refused.
func TestNoPromptIsWritten(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := start(t, "--redis="+s.URL(), "--tokenizers="+tokenizers(t), "--log-level=debug", "--block-size=4", "--tokenizer-budget=1m", "--request-timeout=5m", "--usage-window=1h")
	const mark = "xyzzymarkxyzzy"
	text := strings.Repeat("A word of "+mark+" and more. ", 40)
	chat := fmt.Sprintf(`"messages":[{"role":"system","content":%q},{"role":"user","content":%q}],"tools":[{"type":"function","function":{"name":"f","description":%q}}]`, text, text, mark)
	answered := 0
	for _, body := range []struct{ path, fields string }{
		{"/v1/score", fmt.Sprintf(`"prompt":%q,"mode":"sync"`, text)},
		{"/v1/score", fmt.Sprintf(`"prompt":%q,"mode":"sync"`, text)}, // from the prefix store
		{"/v1/score", fmt.Sprintf(`"prompt":%q,"mode":"async","explain":true`, "other "+text)},
		{"/v1/score", fmt.Sprintf(`"prompts":[%q,%q],"mode":"sync"`, text, mark)},
		{"/v1/score", chat + `,"mode":"sync"`},
		{"/v1/score", chat + fmt.Sprintf(`,"mode":"sync","cache_salt":%q,"lora":"adapter"`, mark)},
		{"/v1/route", fmt.Sprintf(`"prompt":%q,"mode":"sync","reserve":true,"request_id":"r","session":"s"`, text)},
		{"/v1/tokenize", fmt.Sprintf(`"prompt":%q`, text)},
		{"/v1/tokenize", chat},
		{"/v1/chat/completions/render", chat},
		{"/v1/completions/render", fmt.Sprintf(`"prompt":%q`, text)},
		{"/v1/messages/render", fmt.Sprintf(`"max_tokens":1,"messages":[{"role":"user","content":%q}]`, text)},
		{"/tokenize", fmt.Sprintf(`"prompt":%q`, text)},
		// Refused.
		{"/v1/score", fmt.Sprintf(`%q:1`, mark)},
		{"/v1/score", fmt.Sprintf(`"prompt":{%q:1}`, mark)},
		{"/v1/score", fmt.Sprintf(`"prompt":%q,"strategy":%q`, text, mark)},
		{"/v1/score", fmt.Sprintf(`"prompt":"%s\ud800"`, mark)},
		{"/v1/score", fmt.Sprintf(`"messages":[{"role":%q,"content":%q}],"chat_template":"{{ raise_exception(%s) }}"`, mark, mark, "'"+mark+"'")},
		{"/v1/tokenize", fmt.Sprintf(`"prompt":%q, %s`, text, mark)},
	} {
		status, answer := postAs(t, http.DefaultClient, r.url+body.path, "", fmt.Sprintf(`{"model":%q,%s}`, demo.Model, body.fields))
		if status == http.StatusOK {
			answered++
		} else if status >= http.StatusInternalServerError {
			t.Errorf("%s %.80s: %d %s", body.path, body.fields, status, answer)
		}
	}
	if answered < 12 {
		t.Errorf("only %d requests were answered\n%s", answered, r.stderr)
	}
	if status, _ := get(t, r.url+"/v1/pods/"+mark); status != http.StatusNotFound {
		t.Errorf("a pod of that name: %d", status)
	}
	_, metrics := get(t, r.url+"/metrics")
	r.end()
	if strings.Contains(r.stderr.String(), mark) || strings.Contains(r.stdout.String(), mark) {
		t.Errorf("the log has it:\n%s", r.stderr)
	}
	if strings.Contains(metrics, mark) {
		t.Error("the metrics have it")
	}
	ctx := t.Context()
	db := s.Client()
	if err := db.ConfigSet(ctx, "rdbcompression", "no").Err(); err != nil { // DUMP compresses by it
		t.Fatal(err)
	}
	keys, err := db.Keys(ctx, "*").Result()
	if err != nil || len(keys) == 0 {
		t.Fatalf("%d keys: %v", len(keys), err)
	}
	for _, key := range keys {
		value := must.Get(db.Dump(ctx, key).Result())(t)
		if strings.Contains(key, mark) || strings.Contains(value, mark) {
			t.Errorf("Redis has it in %q: %q", key, value)
		}
	}
}

// TestTenants: two callers with salts that kvatlas token has made send one prompt through the gateway.
// Engines get it under two salts, and neither caller sees the other's salt, in the API either. The log does
// not show a salt.
func TestTenants(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/completions" {
			b, _ := io.ReadAll(r.Body)
			seen <- string(b)
		}
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
	}))
	defer engine.Close()
	var file string
	var tenants []struct{ token, salt string }
	for _, name := range []string{"one", "two"} {
		status, line, token := call(t, "", "token", "--salt=new", name)
		_, salt, ok := strings.Cut(strings.TrimSpace(line), " salt=")
		if status != cli.ExitOK || !ok || strings.Contains(token, salt) {
			t.Fatalf("%d %q %q", status, line, token)
		}
		file += line
		tenants = append(tenants, struct{ token, salt string }{strings.TrimSpace(token), salt})
	}
	path := filepath.Join(t.TempDir(), "credentials")
	must.OK(t, os.WriteFile(path, []byte(file), 0o600))
	r := start(t, "--roles=score,ingest,gateway", "--gateway-listen=127.0.0.1:0", "--block-size=4", "--credentials="+path, "--log-level=debug", "--pods-approximate",
		"--pods="+strings.TrimPrefix(engine.URL, "http://")+"?model=m")
	at, _ := r.logged("listening")["gateway_address"].(string)
	const prompt = `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}`
	const scored = `{"model":"m","tokens":[1,2,3,4,5,6,7,8,9]}`
	for i, c := range tenants {
		for turn := range 2 {
			status, body := 0, ""
			r.await(func() map[string]any { // until the pod is registered
				if status, body = postAs(t, http.DefaultClient, "http://"+at+"/v1/completions", c.token, prompt); status >= 404 {
					return nil
				}
				return map[string]any{}
			})
			if got := <-seen; status != http.StatusOK || !strings.Contains(got, `"cache_salt":"`+c.salt+`"`) {
				t.Fatalf("tenant %d, turn %d: %d %s, the engine gets %s", i, turn, status, body, got)
			}
		}
		// It may have users of its own, and no fields and pages that reach what others have sent.
		own := strings.Replace(prompt, "{", `{"cache_salt":"users/one",`, 1)
		if status, body := postAs(t, http.DefaultClient, "http://"+at+"/v1/completions", c.token, own); status != http.StatusOK {
			t.Errorf("tenant %d with a salt of its own: %d %s", i, status, body)
		} else if got := <-seen; !strings.Contains(got, `"cache_salt":"`+access.Caller{Salt: c.salt}.CacheSalt("users/one")+`"`) {
			t.Errorf("tenant %d with a salt of its own: the engine gets %s", i, got)
		}
		for _, field := range []string{`"extra_key":"x"`, `"previous_response_id":"resp_1"`, `"kv_transfer_params":{}`} {
			status, body := postAs(t, http.DefaultClient, "http://"+at+"/v1/completions", c.token, strings.Replace(prompt, "{", "{"+field+",", 1))
			if status != http.StatusForbidden || !strings.Contains(body, strings.Split(field, `"`)[1]) {
				t.Errorf("tenant %d with %s: %d %s", i, field, status, body)
			}
		}
		for page, want := range map[string]int{"/v1/models": 200, "/version": 200, "/metrics": 403, "/server_info": 403, "/flush_cache": 403, "/v1/responses/resp_1": 403} {
			if status, body := getAs(t, "http://"+at+page, c.token); status != want {
				t.Errorf("tenant %d asks for %s: %d %s", i, page, status, body)
			}
		}
		status, body := postAs(t, http.DefaultClient, r.url+"/v1/score", c.token, scored)
		if status != http.StatusOK || strings.Contains(body, tenants[1-i].salt) || strings.Contains(body, c.salt) {
			t.Errorf("tenant %d: %d %s", i, status, body)
		}
		if status, body := postAs(t, http.DefaultClient, r.url+"/v1/score", c.token, `{"model":"m","block_keys":["00000000000000aa"]}`); status != http.StatusForbidden {
			t.Errorf("tenant %d by keys: %d %s", i, status, body)
		}
	}
	// Requests and sessions that both give one name are two each.
	for _, c := range tenants {
		status, body := postAs(t, http.DefaultClient, r.url+"/v1/route", c.token, strings.Replace(scored, "{", `{"reserve":true,"request_id":"r1","session":"s1",`, 1))
		if status != http.StatusOK || !strings.Contains(body, `"reservation":"r1"`) || strings.Contains(body, `"again"`) || !strings.Contains(body, `"session":{"state":"new"`) {
			t.Errorf("%d %s", status, body)
		}
	}
	for i, c := range tenants {
		if status, body := postAs(t, http.DefaultClient, r.url+"/v1/requests/r1/end", c.token, `{"model":"m"}`); status != http.StatusOK || !strings.Contains(body, `"known":true`) {
			t.Errorf("tenant %d ends r1: %d %s", i, status, body)
		}
	}
	for _, c := range tenants {
		if strings.Contains(r.stderr.String(), c.salt) || strings.Contains(r.stdout.String(), c.salt) {
			t.Errorf("the log has a salt: %s", r.stderr)
		}
	}
	for _, args := range [][]string{{"--salt=", "a"}, {"--salt", "", "a"}, {"--salt=short", "a"}, {"--salt=new", "--role=write", "a"}, {"--salt=has/a/slash/in/it", "a"}} {
		if status, stdout, stderr := call(t, "", append([]string{"token"}, args...)...); status != cli.ExitUsage || !strings.Contains(stderr, "salt") || stdout != "" {
			t.Errorf("token %q: %d %s%s", args, status, stdout, stderr)
		}
	}
}

// TestGatewayCallers: with credentials the gateway takes callers that it knows, and keeps their
// tokens from the engine.
func TestGatewayCallers(t *testing.T) {
	t.Parallel()
	var seen atomic.Pointer[string]
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/embeddings" {
			key := r.Header.Get("Authorization")
			seen.Store(&key)
		}
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
	}))
	defer engine.Close()
	_, line, token := call(t, "", "token", "client")
	path := filepath.Join(t.TempDir(), "credentials")
	must.OK(t, os.WriteFile(path, []byte(line), 0o600))
	for name, c := range map[string]struct {
		args   []string
		token  string
		status int
		engine string // the Authorization that it sees
	}{
		"known":               {[]string{"--credentials=" + path}, strings.TrimSpace(token), 200, ""},
		"not known":           {[]string{"--credentials=" + path}, "a token of some other caller", 401, ""},
		"none":                {[]string{"--credentials=" + path}, "", 401, ""},
		"none where they may": {[]string{"--credentials=" + path, "--anonymous=read"}, "", 200, ""},
		"the engine's key":    {nil, "sk-of-the-engine", 200, "Bearer sk-of-the-engine"},
	} {
		t.Run(name, func(t *testing.T) {
			seen.Store(nil)
			r := start(t, append([]string{"--roles=score,ingest,gateway", "--gateway-listen=127.0.0.1:0", "--pods=" + strings.TrimPrefix(engine.URL, "http://") + "?model=m"}, c.args...)...)
			at, _ := r.logged("listening")["gateway_address"].(string)
			var status int
			var body string
			r.await(func() map[string]any { // until the pod is registered
				if status, body = postAs(t, http.DefaultClient, "http://"+at+"/v1/embeddings", c.token, `{"model":"m","input":"x"}`); status >= 404 {
					return nil
				}
				return map[string]any{}
			})
			if status != c.status {
				t.Fatalf("%d %s", status, body)
			}
			if key := seen.Load(); (c.status == 200) != (key != nil) || key != nil && *key != c.engine {
				t.Errorf("the engine saw %v", key)
			}
			if c.status == 401 { // its connection ends, though the rest of its body does not come
				if got := raw(t, at, rawPost("/v1/embeddings", "Content-Length: 10\r\n", "{"), false); fmt.Sprint(got) != "[401]" {
					t.Errorf("a body that does not come whole gets %v", got)
				}
			}
		})
	}
}
