package server_test

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/server"
)

// sendBinary posts a body of tokens in binary.
func sendBinary(s subject, path, contentType, body string) (int, string) {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// binaryTokens are the tokens from 1 to n as a body has them.
func binaryTokens(n int) string {
	var b []byte
	for i := range uint32(n) {
		b = binary.LittleEndian.AppendUint32(b, i+1)
	}
	return string(b)
}

// TestBinaryTokens wants the answers that the same tokens in JSON get.
func TestBinaryTokens(t *testing.T) {
	s := newServer(t, openIndex(t), func(c *server.Config) { c.Limits.MaxTokens = 1000 })
	list := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(numbers(1, 200))), ","), "[]")
	s.post(t, "/v1/blocks", `{"op":"add","model":"m","pod":"p","tokens":[`+list+`]}`)
	want := s.post(t, "/v1/score", `{"model":"m","explain":false,"tokens":[`+list+`]}`)
	if !strings.Contains(want, `"best":"p"`) {
		t.Fatal(want)
	}
	for _, contentType := range []string{"application/vnd.kvatlas.tokens", "Application/VND.kvatlas.tokens; v=1"} {
		for _, head := range []string{`{"model":"m"}`, ` {"model":"m","explain":false}   `} {
			if code, got := sendBinary(s, "/v1/score", contentType, head+"\n"+binaryTokens(200)); code != http.StatusOK || got != want {
				t.Errorf("%s, %s: %d %s, want %s", contentType, head, code, got, want)
			}
		}
	}
	none := s.post(t, "/v1/score", `{"model":"m","tokens":[]}`)
	if code, got := sendBinary(s, "/v1/score", "application/vnd.kvatlas.tokens", "{\"model\":\"m\"}\n"); code != http.StatusOK || got != none {
		t.Errorf("without tokens: %d %s, want %s", code, got, none)
	}
	for body, want := range map[string]string{
		"":                                         "no line feed",
		`{"model":"m"}`:                            "no line feed",
		"{\"model\":\"m\"}\nabc":                   "3 bytes behind the object",
		"{\"model\":\"m\"\n" + binaryTokens(1):     "invalid_json",
		"{\"tokens\":[1],\"model\":\"m\"}\n1234":   "given twice",
		"{\"prompt\":\"x\",\"model\":\"m\"}\n":     "both given",
		"{}\n1234":                                 "model is missing",
		"{\"model\":\"m\"}\n" + binaryTokens(1001): "more than 1000 elements",
	} {
		code, got := sendBinary(s, "/v1/score", "application/vnd.kvatlas.tokens", body)
		if code/100 != 4 || !strings.Contains(got, want) {
			t.Errorf("%.40q: %d %s, want %q", body, code, got, want)
		}
	}
}
