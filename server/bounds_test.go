package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// TestManyElements sends more elements than limits allow, and what features cannot be.
func TestManyElements(t *testing.T) {
	s := newServer(t, openIndex(t))
	many := func(n int, e string) string { return "[" + strings.Repeat(e+",", n-1) + e + "]" }
	one := `"messages":[{"role":"user","content":"x"}]`
	features := func(hashes, places string) string {
		return `{"model":"m","tokens":[1,2,3,4],"features":{"mm_hashes":` + hashes + `,"mm_placeholders":` + places + `}}`
	}
	for _, c := range []struct {
		path, body  string
		status      int
		code, param string
	}{
		{"/v1/score", `{"model":"text-model","mode":"sync","messages":[{"role":"user","content":` + many(70_000, `""`) + `}]}`, 413, "too_large", "messages[0].content"},
		{"/v1/score", `{"model":"text-model",` + one + `,"tools":` + many(70_000, `{}`) + `}`, 413, "too_large", "tools"},
		{"/v1/score", `{"model":"text-model",` + one + `,"tools":[{"a":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}]}`, 400, "invalid_request", "tools"},
		{"/v1/score", `{"model":"text-model",` + one + `,"mm_items":` + many(1025, `{}`) + `}`, 413, "too_large", "mm_items"},
		{"/v1/score", features(`{"image":`+many(1025, `"a"`)+`}`, `{}`), 413, "too_large", "features.mm_hashes.image"},
		{"/v1/score", features(`{"image":["a","b"]}`, `{"image":[{"offset":0,"length":2},{"offset":1,"length":1}]}`), 400, "invalid_request", "features.mm_placeholders.image[1]"},
		{"/v1/score", features(`{"smell":["a"]}`, `{"smell":[{"offset":0,"length":2}]}`), 400, "invalid_request", "features.mm_hashes.smell"},
		{"/v1/score", features(`{"image":["a"]}`, `{"image":[{"offset":0,"length":0}]}`), 400, "invalid_request", "features.mm_placeholders.image[0]"},
		{"/v1/score", features(`{"image":["`+strings.Repeat("a", 1025)+`"]}`, `{"image":[{"offset":0,"length":1}]}`), 400, "invalid_request", "features.mm_hashes.image[0]"},
		{"/v1/completions/render", `{"model":"text-model","prompt":` + many(65, `"a"`) + `}`, 413, "too_large", "prompt"},
		{"/v1/completions/render", `{"model":"text-model","prompt":` + many(65, `[1]`) + `}`, 413, "too_large", "prompt"},
	} {
		w := s.do("POST", c.path, strings.NewReader(c.body))
		refused(t, w, c.status, c.code)
		if want := fmt.Sprintf(`"param":%q`, c.param); !strings.Contains(w.Body.String(), want) {
			t.Errorf("%.60s: %s, want %s", c.body, w.Body, want)
		}
	}
	// The audio track of a video has the place of the video.
	s.post(t, "/v1/score", features(`{"video":["a"],"audio":["b"]}`, `{"video":[{"offset":0,"length":3}],"audio":[{"offset":0,"length":3}]}`))
}

// TestHalfClosed sends half a body, shuts its side and reads on.
func TestHalfClosed(t *testing.T) {
	ts := httptest.NewServer(newServer(t, openIndex(t)).Handler())
	defer ts.Close()
	conn := must.Get(net.Dial("tcp", ts.Listener.Addr().String()))(t)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 26\r\n\r\n{\"model\":\"")
	must.OK(t, conn.(*net.TCPConn).CloseWrite())
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must.OK(t, err)
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "invalid_body") {
		t.Errorf("%d %s %v", resp.StatusCode, text, err)
	}
}
