package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/must"
)

// raw sends bytes over a connection of their own and returns the status of each answer that
// comes until the server closes it. With halfClose it sends that no more will come.
func raw(t *testing.T, address, text string, halfClose bool) (statuses []int) {
	t.Helper()
	c := must.Get(net.Dial("tcp", address))(t)
	defer c.Close()
	must.OK(t, c.SetDeadline(time.Now().Add(patience)))
	// A server that has refused need not read the rest.
	go func() {
		_, _ = io.WriteString(c, text)
		if halfClose {
			_ = c.(*net.TCPConn).CloseWrite()
		}
	}()
	for r := bufio.NewReader(c); ; {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return statuses
		}
		statuses = append(statuses, resp.StatusCode)
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return statuses
		}
	}
}

const scoreBody = `{"model":"m","tokens":[1]}`

func rawPost(path, headers, body string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n" + body
}

// chunked is a body in chunks.
func chunked(body string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body) }

// manyHeaders are so many bytes of headers.
func manyHeaders(n int) string {
	return strings.Repeat("X-Many: "+strings.Repeat("a", 90)+"\r\n", n/100)
}

var length = fmt.Sprintf("Content-Length: %d\r\n", len(scoreBody))

// abuse are requests that no client sends by mistake, as bytes, and the statuses of the answers.
var abuse = map[string]struct {
	text string
	want []int
}{
	"a request":                       {rawPost("/v1/score", length, scoreBody), []int{200}},
	"two, one behind the other":       {rawPost("/v1/score", length, scoreBody) + rawPost("/v1/score", length, scoreBody), []int{200, 200}},
	"chunks":                          {rawPost("/v1/score", "Transfer-Encoding: chunked\r\n", chunked(scoreBody)), []int{200}},
	"two lengths":                     {rawPost("/v1/score", length+"Content-Length: 5\r\n", scoreBody), []int{400}},
	"two lengths in one":              {rawPost("/v1/score", "Content-Length: 26, 26\r\n", scoreBody), []int{400}},
	"a length below zero":             {rawPost("/v1/score", "Content-Length: -1\r\n", scoreBody), []int{400}},
	"a length with a sign":            {rawPost("/v1/score", "Content-Length: +26\r\n", scoreBody), []int{400}},
	"a length beyond all numbers":     {rawPost("/v1/score", "Content-Length: 99999999999999999999\r\n", scoreBody), []int{400}},
	"a length of a terabyte":          {rawPost("/v1/score", "Content-Length: 1099511627776\r\n", scoreBody), []int{413}},
	"a body that ends early":          {rawPost("/v1/score", "Content-Length: 100\r\n", scoreBody), []int{400}},
	"an encoding that is unknown":     {rawPost("/v1/score", "Transfer-Encoding: xchunked\r\n", chunked(scoreBody)), []int{501}},
	"an encoding twice":               {rawPost("/v1/score", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunked(scoreBody)), []int{501}},
	"an encoding with a blank":        {rawPost("/v1/score", "Transfer-Encoding : chunked\r\n", chunked(scoreBody)), []int{400}},
	"chunks without an end":           {rawPost("/v1/score", "Transfer-Encoding: chunked\r\n", "1a\r\n"+scoreBody), []int{400}},
	"a chunk of no length":            {rawPost("/v1/score", "Transfer-Encoding: chunked\r\n", "zz\r\n"+scoreBody), []int{400}},
	"a chunk beyond all numbers":      {rawPost("/v1/score", "Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\n"+scoreBody), []int{400}},
	"a packed body":                   {rawPost("/v1/score", length+"Content-Encoding: gzip\r\n", scoreBody), []int{415}},
	"a header without a colon":        {rawPost("/v1/score", length+"Nonsense\r\n", scoreBody), []int{400}},
	"a header of nothing":             {rawPost("/v1/score", length+": nothing\r\n", scoreBody), []int{400}},
	"a header with NUL":               {rawPost("/v1/score", length+"X-A: a\x00b\r\n", scoreBody), []int{400}},
	"a header that begins folded":     {"POST /v1/score HTTP/1.1\r\n folded: x\r\nHost: x\r\n" + length + "\r\n" + scoreBody, []int{400}},
	"headers beyond the bound":        {rawPost("/v1/score", length+manyHeaders(200<<10), scoreBody), []int{431}},
	"one header beyond the bound":     {rawPost("/v1/score", length+"X-Long: "+strings.Repeat("a", 200<<10)+"\r\n", scoreBody), []int{431}},
	"a path beyond the bound":         {rawPost("/v1/"+strings.Repeat("a", 200<<10), length, scoreBody), []int{431}},
	"no host":                         {"POST /v1/score HTTP/1.1\r\n" + length + "\r\n" + scoreBody, []int{400}},
	"two hosts":                       {rawPost("/v1/score", "Host: y\r\n"+length, scoreBody), []int{400}},
	"a host with a blank":             {"POST /v1/score HTTP/1.1\r\nHost: a b\r\n" + length + "\r\n" + scoreBody, []int{400}},
	"an old version":                  {"GET /healthz HTTP/0.9\r\nHost: x\r\n\r\n", []int{505}},
	"a version of its own":            {"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n", []int{505}},
	"no version":                      {"GET /healthz\r\n\r\n", []int{400}},
	"a preface of HTTP/2":             {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{404}},
	"TLS at a port without":           {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00", 100), []int{400}},
	"Redis at a port of HTTP":         {"*1\r\n$4\r\nPING\r\n", []int{400}},
	"a method with a blank before it": {" GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", []int{400}},
	"an upgrade":                      {"GET /v1/pods HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", []int{200}},
	"an expectation that is unknown":  {rawPost("/v1/score", length+"Expect: 200-ok\r\n", scoreBody), []int{417}},
	"a path outside":                  {"GET /v1/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", []int{404}},
	"another server's address":        {"GET http://169.254.169.254/latest/meta-data HTTP/1.1\r\nHost: x\r\n\r\n", []int{404}},
	"a tunnel":                        {"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: x\r\n\r\n", []int{404}},
	"TRACE":                           {"TRACE /v1/score HTTP/1.1\r\nHost: x\r\n\r\n", []int{405}},
}

// TestAbuse: what requests of no client get, byte by byte, and that the server is there behind
// each of them.
func TestAbuse(t *testing.T) {
	t.Parallel()
	r := start(t, "--block-size=4")
	address := strings.TrimPrefix(r.url, "http://")
	for name, c := range abuse {
		// A server may take a client that sends no more for gone, so each request that is served has another
		// behind it.
		text, want, served := c.text, c.want, c.want[0] == http.StatusOK
		if served {
			text, want = text+"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", slices.Concat(want, []int{http.StatusOK})
		}
		got := raw(t, address, text, !served)
		if len(got) > 0 && got[0] == http.StatusMethodNotAllowed && c.want[0] == http.StatusNotFound {
			got[0] = http.StatusNotFound
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s gets %v, want %v", name, got, want)
		}
		if status, body := get(t, r.url+"/healthz"); status != 200 {
			t.Fatalf("after %s: %d %s", name, status, body)
		}
	}
	if strings.Contains(r.stderr.String(), "panic") {
		t.Errorf("log: %s", r.stderr)
	}
}

// TestAbusePage holds docs/abuse.md to the tests. Those that it names are there, and the cases of
// those that are tables stand there under the same words. All of this page's are named with the
// statuses that they get.
func TestAbusePage(t *testing.T) {
	var text string
	for _, p := range pages(t) {
		if p.name == "docs/abuse.md" {
			text = p.text
		}
	}
	files := testFiles(t)
	tables := []string{
		"TestTokens", "TestAdmit", "TestFilesThatAreRefused", "TestCertificates", "TestListenerOfOthers", "TestAbuse", "TestSmuggling",
		"TestSaltOfAClient", "TestSaltOfAReader", "TestAddressForms", "TestNetworks", "TestRebinding", "TestRedirects",
	}
	rows := regexp.MustCompile("(?m)^\\| (.+?) \\| (.+?) \\| `(Test\\w+)` \\|$").FindAllStringSubmatch(text, -1)
	gets := map[string]string{}
	cases := 0
	for _, r := range rows {
		for words := range strings.SplitSeq(r[1], "; ") {
			cases++
			words = strings.Trim(words, "`")
			switch source := files[r[3]]; {
			case source == "":
				t.Errorf("%q: there is no %s", words, r[3])
			case slices.Contains(tables, r[3]) && !strings.Contains(source, words):
				t.Errorf("%s has no case %q", r[3], words)
			}
			if r[3] == "TestAbuse" {
				gets[words] = r[2]
			}
		}
	}
	if said := fmt.Sprintf(" %d cases", cases); cases < 200 || !strings.Contains(text, said) {
		t.Errorf("there are %d cases, and the page says another number", cases)
	}
	for name, c := range abuse {
		if want := strings.ReplaceAll(strings.Trim(fmt.Sprint(c.want), "[]"), " ", ", "); gets[name] != want {
			t.Errorf("the page says that %s gets %q, and it is %s", name, gets[name], want)
		}
	}
}

// TestSmuggling: a proxy and an engine could see the end of some requests in different places.
// These reach the engine as one request, or not at all, and what the gateway adds cannot be forged.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // protects seen
	var seen []string
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		if r.URL.Path != "/health" && r.URL.Path != "/v1/models" && r.URL.Path != "/metrics" {
			seen = append(seen, r.Method+" "+r.RequestURI)
			if r.Header.Get("X-Kvatlas-Why")+r.Header.Get("X-Hop") != "" || !strings.HasSuffix(r.Header.Get("X-Forwarded-For"), "127.0.0.1") {
				seen = append(seen, fmt.Sprintf("forged %v", r.Header))
			}
			if strings.Contains(string(body), "/smuggled") && !strings.HasPrefix(string(body), "{") {
				seen = append(seen, "with the next request in its body")
			}
		}
		mu.Unlock()
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
	}))
	defer engine.Close()
	r := start(t, "--roles=score,ingest,gateway", "--gateway-listen=127.0.0.1:0", "--pods="+strings.TrimPrefix(engine.URL, "http://")+"?model=m")
	at, _ := r.logged("listening")["gateway_address"].(string)
	const body, smuggled = `{"model":"m","prompt":"x"}`, "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	size := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	const path = "/v1/completions"
	// What comes behind a request that is refused must not count as one: of this one an answer
	// shows that the connection goes on.
	const last = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	r.await(func() map[string]any { // until the pod is registered
		if got := raw(t, at, rawPost(path, size+"Connection: close\r\n", body), false); len(got) == 0 || got[0] != 200 {
			return nil
		}
		return map[string]any{}
	})
	ours, both := []string{"POST " + path}, []string{"POST " + path, "GET /smuggled"}
	for name, c := range map[string]struct {
		text string
		want []int    // with that of the last request, where the connection goes on
		sent []string // what the engine gets
	}{
		"length and chunks":           {rawPost(path, "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+smuggled), []int{200, 200, 200}, both},
		"chunks and length":           {rawPost(path, "Transfer-Encoding: chunked\r\n"+size, chunked(body)+smuggled), []int{200, 200, 200}, both},
		"chunks in capitals":          {rawPost(path, "Transfer-Encoding: CHUNKED\r\n", chunked(body)), []int{200, 200}, ours},
		"chunks, then identity":       {rawPost(path, "Transfer-Encoding: chunked, identity\r\n", chunked(body)), []int{501}, nil},
		"hidden chunks":               {rawPost(path, "Transfer-Encoding: \x0bchunked\r\n"+size, body), []int{400}, nil},
		"two lengths":                 {rawPost(path, size+"Content-Length: 0\r\n", body), []int{400}, nil},
		"a line in a header":          {rawPost(path, size+"X-A: b\rGET /smuggled HTTP/1.1\r\n", body), []int{400}, nil},
		"a line in the path":          {"GET /a%0d%0aGET%20/smuggled HTTP/1.1\r\nHost: x\r\n\r\n", []int{200, 200}, []string{"GET /a%0d%0aGET%20/smuggled"}},
		"a line feed alone":           {"GET /a HTTP/1.1\nHost: x\nX-A: b\n\n", []int{200, 200}, []string{"GET /a"}},
		"an extension of a chunk":     {rawPost(path, "Transfer-Encoding: chunked\r\n", fmt.Sprintf("%x;x=\"\r\n%s\r\n0\r\n\r\n", len(body), body)), []int{200, 200}, ours},
		"another server's address":    {"GET http://169.254.169.254/latest/meta-data HTTP/1.1\r\nHost: x\r\n\r\n", []int{200, 200}, []string{"GET /latest/meta-data"}},
		"a path of two slashes":       {"GET //169.254.169.254/latest HTTP/1.1\r\nHost: x\r\n\r\n", []int{200, 200}, []string{"GET //169.254.169.254/latest"}},
		"forged headers of ours":      {rawPost(path, size+"X-Kvatlas-Why: forged\r\nConnection: X-Hop\r\nX-Hop: 1\r\n", body), []int{200, 200}, ours},
		"an address that is taken":    {rawPost(path, size+"Connection: X-Forwarded-For\r\nX-Forwarded-For: 1.2.3.4\r\n", body), []int{200, 200}, ours},
		"headers beyond the bound":    {rawPost(path, size+manyHeaders(200<<10), body), []int{431}, nil},
		"a request behind the answer": {rawPost(path, size, body) + rawPost(path, size, body), []int{200, 200, 200}, []string{"POST " + path, "POST " + path}},
		"a length of a terabyte":      {rawPost(path, "Content-Length: 1099511627776\r\n", body), []int{413}, nil},
	} {
		mu.Lock()
		seen = nil
		mu.Unlock()
		got := raw(t, at, c.text+last, false)
		mu.Lock()
		sent := strings.Join(seen, ", ")
		mu.Unlock()
		if fmt.Sprint(got) != fmt.Sprint(c.want) || sent != strings.Join(c.sent, ", ") {
			t.Errorf("%s gets %v, want %v; the engine gets %q, want %q", name, got, c.want, sent, c.sent)
		}
	}
	// A client that has left, or says so, gets no answer that looks like one: never an empty 200.
	for name, text := range map[string]string{"a body that ends early": rawPost(path, "Content-Length: 1000\r\n", body), "chunks without an end": rawPost(path, "Transfer-Encoding: chunked\r\n", "1a\r\n{")} {
		if got := raw(t, at, text, true); len(got) > 1 || len(got) == 1 && got[0] != 400 {
			t.Errorf("%s gets %v", name, got)
		}
	}
}

// TestSlowHeaders: connections on which no whole header comes are closed, at the API and at the
// gateway, and others are answered beside them.
func TestSlowHeaders(t *testing.T) {
	t.Parallel()
	r := start(t, "--roles=score,ingest,gateway", "--gateway-listen=127.0.0.1:0")
	gateway, _ := r.logged("listening")["gateway_address"].(string)
	var slow sync.WaitGroup
	for _, address := range []string{strings.TrimPrefix(r.url, "http://"), gateway} {
		for i, text := range []string{"", "G", "GET /healthz HTTP/1.1\r\n", "GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ", "POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"} {
			for range 20 {
				c := must.Get(net.Dial("tcp", address))(t)
				must.Get(io.WriteString(c, text))(t)
				slow.Go(func() {
					defer c.Close()
					_ = c.SetReadDeadline(time.Now().Add(patience))
					// Whether it is told why or not, it is closed.
					if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
						t.Errorf("%s %d: it is still open", address, i)
					}
				})
			}
		}
	}
	if status, body := get(t, r.url+"/healthz"); status != 200 {
		t.Errorf("beside slow connections: %d %s", status, body)
	}
	slow.Wait()
}

// TestAddressForms: in whatever form a registration writes an address, nothing is connected to
// that is not within engine-networks, and the server goes on.
func TestAddressForms(t *testing.T) {
	t.Parallel()
	port, connected := countConnections(t, "0.0.0.0:0")
	r := start(t, "--block-size=4", "--pods-ask", "--engine-networks=10.255.255.0/24", "--ingest-ttl=1s")
	c := r.client()
	taken := 0
	for i, host := range []string{
		"127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "127.0.0.1.", "127.000.000.001", "0", "0.0.0.0",
		"localhost", "LOCALHOST", "localhost.", "localhost.localdomain", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[0:0:0:0:0:ffff:7f00:0001]",
		"[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::1%25lo]", "[fe80::1%25lo]", "[fe80::1]", "１２７.0.0.1", "①②⑦.0.0.1", "127。0。0。1", "127.0.0.1%00.example", "user@127.0.0.1", "10.255.255.1@127.0.0.1", "10.255.255.1:80@127.0.0.1",
		"127.0.0.1#@10.255.255.1", "127.0.0.1/@10.255.255.1", `127.0.0.1\@10.255.255.1`, "169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal",
	} {
		for _, form := range []string{"%s:%s", "http://%s:%s", "http://%s:%s/v1"} {
			p := client.Pod{Name: fmt.Sprintf("p%d-%d", i, len(form)), Model: "m", Address: fmt.Sprintf(form, host, port), Engine: "vllm"}
			if form == "%s:%s" {
				p.Events = "tcp://" + p.Address
			}
			if c.RegisterPod(t.Context(), p) == nil {
				taken++
			}
		}
	}
	for i, address := range []string{"file:///etc/passwd", "gopher://127.0.0.1:" + port + "/_x", "ftp://127.0.0.1:" + port, "unix:///var/run/docker.sock", "http://", "http:///x", "//127.0.0.1:" + port, "javascript:x"} {
		if c.RegisterPod(t.Context(), client.Pod{Name: fmt.Sprintf("q%d", i), Model: "m", Address: address, Engine: "vllm", Events: address}) == nil {
			taken++
		}
	}
	if status, body := postAs(t, http.DefaultClient, r.url+"/v1/route", "", `{"model":"m","tokens":[1,2,3,4]}`); status != 200 && status != 404 && status != 503 {
		t.Errorf("%d %s", status, body)
	}
	r.await(func() map[string]any {
		if strings.Count(r.stderr.String(), "not within engine-networks") < 3 {
			return nil
		}
		return map[string]any{}
	})
	if n := connected.Load(); n != 0 || taken == 0 {
		t.Errorf("%d connections were made; %d registrations were taken\n%s", n, taken, r.stderr)
	}
}

// TestRedirects: an engine that sends the server elsewhere is not followed, whatever it is asked
// for; the gateway hands its redirect to the client.
func TestRedirects(t *testing.T) {
	t.Parallel()
	var followed, asked atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	defer elsewhere.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			w.Header().Set("Location", elsewhere.URL+r.URL.Path)
			w.WriteHeader(status)
		}))
		address := strings.TrimPrefix(engine.URL, "http://")
		r := start(t, "--block-size=4", "--roles=score,ingest,gateway", "--gateway-listen=127.0.0.1:0", "--pods-ask", "--pods="+address+"?model=m&engine=vllm")
		at, _ := r.logged("listening")["gateway_address"].(string)
		noFollow := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		r.await(func() map[string]any { // until the pod is registered
			if got, _ := postAs(t, noFollow, "http://"+at+"/v1/completions", "", `{"model":"m","prompt":[1,2,3]}`); got != status {
				return nil
			}
			return map[string]any{}
		})
		if got, body := postAs(t, http.DefaultClient, r.url+"/v1/route", "", `{"model":"m","tokens":[1,2,3,4]}`); got != 200 {
			t.Errorf("%d %s", got, body)
		}
		was := asked.Load()
		r.await(func() map[string]any { // until it is asked for its health or metrics
			if asked.Load() == was {
				return nil
			}
			return map[string]any{}
		})
		r.end()
		engine.Close()
		if n := followed.Load(); n != 0 {
			t.Fatalf("a redirect with %d was followed %d times", status, n)
		}
	}
}
