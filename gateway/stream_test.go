package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tidwall/gjson"

	"github.com/kvatlas/kvatlas/internal/must"
)

// passed is what of an engine's stream reaches a client that did not ask for its usage.
func passed(t *testing.T, stream string, cuts func(io.Reader) io.Reader) string {
	t.Helper()
	g := &Gateway{c: Config{Idle: time.Minute, FirstToken: time.Minute, Now: time.Now}, buffers: newBuffers()}
	x := &exchange{g: g, of: apiChat, asks: true, isStream: true, delivered: -1}
	a := &attempt{x: x, pod: &pod{}, work: &work{ctx: t.Context(), cancel: func(error) {}}}
	b := &answer{attempt: a, body: io.NopCloser(cuts(strings.NewReader(stream))), resp: &http.Response{ContentLength: -1}, plain: true}
	must.OK(t, b.begin())
	out := must.Get(io.ReadAll(b))(t)
	if x.delivered != 7 {
		t.Fatalf("%d tokens were delivered", x.delivered)
	}
	if err := b.Close(); err != nil || x.cut {
		t.Fatalf("%v, cut %v", err, x.cut)
	}
	return string(out)
}

// randomly reads in pieces of random length.
type randomly struct {
	io.Reader
	rng *rand.Rand
}

func (r randomly) Read(p []byte) (int, error) {
	return r.Reader.Read(p[:1+r.rng.IntN(min(len(p), 300))])
}

// However a stream is cut into pieces on its way, the usage that was not asked for is taken out. Every
// other byte is left.
func TestUsageIsTakenOut(t *testing.T) {
	for _, end := range []string{"\n\n", "\r\n\r\n"} {
		var want, stream strings.Builder
		both := func(s string) { want.WriteString(s); stream.WriteString(s) }
		both(": comment" + end)
		for i := range 50 {
			both(fmt.Sprintf(`data: {"choices":[{"delta":{"content":"\"usage\":{\"choices\":[] %d"}}],"usage":null}`, i) + end)
		}
		both(`data: {"choices":[],"error":"kept, as it is no usage"}` + end)
		both("event: long" + end + "data: " + strings.Repeat("x", 20_000) + end)
		stream.WriteString(`data: {"id":"1","choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":7}}}` + end)
		both("data: [DONE]" + end)
		for name, cuts := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "with the end": iotest.DataErrReader,
			"randomly": func(r io.Reader) io.Reader { return randomly{r, rand.New(rand.NewPCG(1, 2))} },
		} {
			if got := passed(t, stream.String(), cuts); got != want.String() {
				t.Errorf("%q, %s: %d bytes, want %d", end, name, len(got), want.Len())
			}
		}
	}
}

func TestCachedTokens(t *testing.T) {
	for _, x := range []struct {
		text string
		want int
	}{
		{`{"usage":{"prompt_tokens_details":{"cached_tokens":64}}}`, 64},
		{`{"usage": {"prompt_tokens_details":{"cached_tokens":0}},"x":1}`, 0},
		{`"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":5},"output_tokens":2}}}`, 5},
		{`"usage":{"input_tokens":1,"cache_read_input_tokens":6}`, 6},
		{`{"usage":{"prompt_tokens_details":{"cached_tokens":3}}} data: {"usage":null}`, 3},
		{`{"usage":{"prompt_tokens_details":null}}`, -1},
		{`{"text":"\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":9}}"}`, -1},
		{``, -1},
		{`"usage":{"prompt_tokens_details":{"cached_tok`, -1},
		{`{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":10}}}`, 9},
		{`{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":10}}}`, 9},
		{`{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":99999999999999999999}}}`, -1},
		{`{"usage":{"prompt_tokens":1e30,"prompt_tokens_details":{"cached_tokens":7}}}`, 7},
		{`{"usage":{"cache_read_input_tokens":1e400}}`, -1},
		{`{"usage":{"cache_read_input_tokens":-1}}`, -1},
		{`{"usage":{"cache_read_input_tokens":1.5}}`, -1},
	} {
		if got := cachedTokens([]byte(x.text)); got != x.want {
			t.Errorf("%s: %d, want %d", x.text, got, x.want)
		}
	}
}

// Any body is read without a panic, and one that is JSON still is with its usage asked for, and
// has all that it had.
func FuzzReadAsked(f *testing.F) {
	for _, s := range []string{
		`{"stream":true,"model":"m","messages":[{"role":"user","content":"x"}]}`, ` { "stream_options" : null , "stream" : true }`,
		`{"stream":true,"stream_options":{}}`, `{"stream":true,"stream_options":{ "a":1}}`, `{"prompt":[[1,2],[3]],"truncate_prompt_tokens":5}`,
		`{"prompt":["a","b"],"add_special_tokens":"no","cache_salt":["s"]}`, `[]`, `{`, `{"stream":1,"stream_options":[]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, of := range apis {
			a, err := readAsked(of, bytes.Clone(body))
			if err != nil || !a.stream || a.usage.told || !json.Valid(body) {
				continue
			}
			out := a.withUsage(body)
			var was, is map[string]json.RawMessage
			if json.Unmarshal(body, &was) != nil {
				continue
			}
			if err := json.Unmarshal(out, &is); err != nil {
				t.Fatalf("%q became %q: %v", body, out, err)
			}
			if !gjson.GetBytes(is["stream_options"], "include_usage").Bool() {
				t.Fatalf("%q became %q", body, out)
			}
			for name, v := range was {
				if name != "stream_options" && !bytes.Equal(is[name], v) {
					t.Fatalf("%s of %q became %q", name, body, is[name])
				}
			}
		}
	})
}

func TestReadTokens(t *testing.T) {
	for text, want := range map[string]string{
		`[1]`: "[1] true", "[ 1 ,\n23,4294967295]": "[1 23 4294967295] true", `[]`: "[] false", `[4294967296]`: "[] false", `[1,"a"]`: "[] false", `[1.5]`: "[] false", `[-1]`: "[] false",
		`[1,[2]]`: "[] false", `[1,,2]`: "[] false", `{}`: "[] false",
	} {
		tokens, ok := readTokens(gjson.Parse(text))
		if got := fmt.Sprint(tokens, ok); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
