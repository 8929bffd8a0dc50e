package request

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
)

// decoded are the values of a score request, as scanner and oracle find them.
type decoded struct {
	Seen                      []string
	Model, LoRA, Salt, Path   string
	Given                     Completion
	Cut                       scorer.Truncation
	Processed                 bool
	Prompts, Pods             []string
	Top                       int
	Tokens                    []uint32
	Keys                      []blockkey.Key
	Strategy                  scorer.Strategy
	Mode                      prompt.Mode
	Wait                      time.Duration
	Explain, Early, NoSpecial bool
	Objects                   []blockkey.Object
	Media                     []prompt.Medium
	Chat                      map[string]string // by the field's name: JSON as it stands, or a text
}

// testLimits are the defaults.
func testLimits() *Limits {
	return &Limits{MaxTokens: 1 << 20, MaxBlockKeys: 1 << 17, MaxPrompts: 64, MaxPods: 1024, MaxObjects: 1024, MaxWait: 10 * time.Second}
}

// scanned is what the scanner makes of a body.
func scanned(s *scan.Scanner, q *Score, body []byte) (*decoded, error) {
	q.Reset()
	q.Limits = testLimits()
	s.Start(body, EngineSkips)
	seen, err := scan.Decode(s, ScoreFields, q)
	if err != nil {
		return nil, err
	}
	d := &decoded{
		Model: q.Model, Given: q.Prompt, LoRA: q.LoRA, Salt: q.Salt, Path: q.LoRAPath, Prompts: q.prompts, Pods: q.pods, Top: q.top,
		Cut: q.Truncation, Processed: q.processed,
		Tokens: q.Tokens, Keys: q.Keys, Strategy: q.strategy, Mode: q.mode, Wait: q.wait,
		Explain: q.Explain, Early: q.earlyExit, NoSpecial: q.NoSpecialTokens,
	}
	for i, n := range ScoreNames {
		if seen&(1<<i) == 0 {
			continue
		}
		d.Seen = append(d.Seen, n)
		switch n {
		case "input":
			d.chat(n, string(q.Chat.Input))
		case "system":
			d.chat(n, string(q.Chat.System))
		case "thinking":
			d.chat(n, string(q.Chat.Thinking))
		case "output_config":
			d.chat(n, string(q.Chat.OutputConfig))
		case "reasoning":
			d.chat(n, string(q.Chat.Reasoning))
		case "instructions":
			d.chat(n, q.Chat.Instructions)
		case "messages":
			d.chat(n, string(q.Chat.Messages))
		case "tools":
			d.chat(n, string(q.Chat.Tools))
		case "documents":
			d.chat(n, string(q.Chat.Documents))
		case "chat_template_kwargs":
			d.chat(n, string(q.Chat.ChatTemplateKwargs))
		case "add_generation_prompt":
			d.chat(n, "")
			if q.Chat.AddGenerationPrompt != nil {
				d.chat(n, fmt.Sprint(*q.Chat.AddGenerationPrompt))
			}
		case "continue_final_message":
			d.chat(n, fmt.Sprint(q.Chat.ContinueFinalMessage))
		case "chat_template":
			d.chat(n, q.Chat.ChatTemplate)
		case "reasoning_effort":
			d.chat(n, q.Chat.ReasoningEffort)
		case "features":
			d.Objects = q.Objects
		case "mm_items":
			d.Media = q.Media
		}
	}
	return d, nil
}

func (d *decoded) chat(name, value string) {
	if d.Chat == nil {
		d.Chat = map[string]string{}
	}
	d.Chat[name] = value
}

// same holds the scanner against the oracle over one body.
func same(t interface {
	Helper()
	Fatalf(string, ...any)
}, s *scan.Scanner, q *Score, body []byte) {
	t.Helper()
	got, err := scanned(s, q, body)
	want, wantErr := oracle(body)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%q: scanner %v, oracle %v", body, err, wantErr)
	}
	if err != nil {
		if e, ok := err.(*refusal.Error); !ok || e.Status/100 != 4 || e.Message == "" { //nolint:errorlint // it must be that very type
			t.Fatalf("%q: refused with %#v", body, err)
		}
		return
	}
	for _, d := range []*decoded{got, want} { // empty lists are lists
		if len(d.Tokens) == 0 {
			d.Tokens = nil
		}
		if len(d.Keys) == 0 {
			d.Keys = nil
		}
		if len(d.Prompts) == 0 {
			d.Prompts = nil
		}
		if len(d.Pods) == 0 {
			d.Pods = nil
		}
	}
	// These share their place; handlers refuse two of them at once.
	places := 0
	for _, n := range []string{"tokens", "tokens_b64", "input_ids"} {
		if slices.Contains(got.Seen, n) {
			places++
		}
	}
	if places > 1 {
		got.Tokens, want.Tokens = nil, nil
	}
	for _, d := range []*decoded{got, want} {
		for i := range d.Given.Tokens {
			if len(d.Given.Tokens[i]) == 0 {
				d.Given.Tokens[i] = nil
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%q:\nscanner %+v\noracle  %+v", body, got, want)
	}
}

// traceBodies are the bodies of the golden traces.
func traceBodies(t testing.TB) (bodies [][]byte) {
	t.Helper()
	files, err := filepath.Glob("../testdata/traces/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no traces", err)
	}
	for _, f := range files {
		text := must.Get(os.ReadFile(f))(t)
		for line := range bytes.Lines(text) {
			if len(line) > 0 && line[0] == '{' {
				bodies = append(bodies, bytes.TrimSpace(line))
			}
		}
	}
	return bodies
}

// odd are bodies at the edges of JSON.
var odd = []string{
	"", " ", "{}", " { } ", "{}x", "[]", "\ufeff{}", "{\"model\":\"m\"}\n", "{\"model\" : \"m\" , \"tokens\" : [ 1 , 2 ] }",
	`{"model":"m",}`, `{,}`, `{"model"}`, `{"model":}`, `{"model":"m" "tokens":[]}`, `{'model':'m'}`, `{"model":"m`, `{"model":"m\`, `{"model":"\u00`,
	"{\"model\":\"\x01\"}", "{\"model\":\"\xff\"}", "{\"mod\xffel\":\"m\"}", "{\"model\":\"a\xe2\x82\\u0041\"}", "{\"prompt\":\"\x7f\u2028\"}",
	`{"mod\u0065l":"m"}`, `{"model":"m","mod\u0065l":"m"}`, `{"prompt":"\ud83d\ude00"}`, `{"prompt":"\ude00\ud83d"}`, `{"prompt":"\ud83d\u0041"}`, `{"prompt":"\\ud83d"}`,
	`{"tokens":[0]}`, `{"tokens":[-0]}`, `{"tokens":[00]}`, `{"tokens":[4294967295,4294967296]}`, `{"tokens":[99999999999]}`, `{"tokens":[1]]}`, `{"tokens":[[1]]}`, `{"tokens":[1,,2]}`, `{"tokens":[1e2]}`, `{"tokens":[1 .5]}`, "{\"tokens\":[1\t,\n2\r]}", `{"tokens":[ ]}`, `{"tokens":[1,2`, `{"tokens":[0123]}`, `{"tokens":[12345678901]}`,
	`{"tokens_b64":"\u0041QAAAA=="}`, `{"tokens_b64":"AQAAAA\u003d="}`, `{"tokens_b64":"=="}`, `{"tokens_b64":"A"}`, `{"tokens_b64":"AQAAAB=="}`, `{"tokens_b64":"AQAAAA==AQAAAA=="}`, `{"tokens_b64":"AQAAA\n"}`, `{"tokens_b64":"AQAAAAIAAAADAAAA"}`,
	`{"block_keys":["\u0030123456789abcdef"]}`, `{"block_keys":["0123456789ABCDEF" , "+123456789abcde"]}`, `{"block_keys":["+123456789abcdef"]}`, `{"block_keys":["0_23456789abcdef"]}`, `{"block_keys":[""]}`,
	`{"explain":truex}`, `{"explain":true}`, `{"explain":"true"}`, `{"wait_ms":10000}`, `{"wait_ms":10001}`, `{"wait_ms":-0}`, `{"wait_ms":1.0}`, `{"wait_ms":01}`, `{"wait_ms":1 }`,
	`{"mm_items":null}`, `{"mm_items":[]}`, `{"mm_items":[null,{},{"hash":"a","tokens":3},{"kind":"image","token_ids":[1,2]}]}`, `{"mm_items":[{"tokens":-1}]}`,
	`{"mm_items":[{"tokens":1,"token_ids":[1]}]}`, `{"mm_items":[{"x":1}]}`, `{"mm_items":{}}`, `{"mm_items":[1]}`, `{"mm_items":[{"tokens":1048576},{"tokens":1}]}`, `{"mm_items":[{"tokens":9999999999999999999}]}`,
	`{"mm_items":[{"hash":"a","hash":"b","tokens":3}]}`, `{"mm_items":[{"hash":"a","HASH":"b"}]}`, `{"mm_items":[{"ha\u0073h":"a","hash":"b"}]}`, `{"mm_items":[{"hash":null,"kind":null,"tokens":null,"token_ids":null}]}`, `{"mm_items":[{"tokens":-0}]}`, `{"mm_items":[{"tokens":1.0}]}`, `{"mm_items":[{"token_ids":[null]}]}`,
	`{"features":null}`, `{"features":{"mm_hashes":{"image":["a","b"]},"mm_placeholders":{"image":[{"offset":1,"length":2},{"offset":9,"length":0}]},"kwargs_data":null}}`,
	`{"features":{"mm_hashes":{"image":["a"]}}}`, `{"features":{"mm_placeholders":{"image":[{}]}}}`, `{"features":{"mm_hashes":{"image":[""]},"mm_placeholders":{"image":[{}]}}}`, `{"features":[]}`, `{"features":{"mm_hashes":3}}`,
	`{"tools":{}}`, `{"tools": null ,"documents":[ ] }`, `{"chat_template_kwargs":[]}`, `{"chat_template_kwargs":{"a":{"b":[1.0,2e5]}}}`, `{"chat_template_kwargs":{"a":}}`,
	`{"add_generation_prompt":null}`, `{"add_generation_prompt":false,"continue_final_message":true,"chat_template":"\u00e9","reasoning_effort":"low"}`,
	`{"messages":[{"a":[}]}`, `{"messages":[{"a":1,"a":2}]}`, `{"messages":[]]}`, `{"messages":[nul]}`, `{"messages":["\ud800"]}`, `{"messages":[1,"]",{"x":"}"}]}`, `{"messages":null}`,
	`{"prompt":[]}`, `{"prompt":[ ]}`, `{"prompt":["a"]}`, `{"prompt":[ "a" , "b"]}`, `{"prompt":["a",1]}`, `{"prompt":[1,2]}`, `{"prompt":[1,"a"]}`, `{"prompt":[[1],[ ],[2,3]]}`, `{"prompt":[[1],2]}`, `{"prompt":[null]}`, `{"prompt":{}}`, `{"prompt":[`, `{"prompt":[{}]}`, `{"prompt":null,"model":"m"}`,
	`{"input":"x","instructions":"i","reasoning":{"effort":"low"}}`, `{"input":[{"a":1}]}`, `{"input":{}}`, `{"system":[{"type":"text"}],"thinking":{},"output_config":{"a":[]}}`, `{"system":7}`, `{"thinking":"x"}`,
	`{"input_ids":[1,2]}`, `{"lora_path":["x"]}`, `{"lora_path":["x","y"]}`, `{"lora_path":[null]}`, `{"cache_salt":["s"]}`, `{"cache_salt":[]}`, `{"cache_salt":null,"lora_path":null}`,
	`{"truncate_prompt_tokens":-1}`, `{"truncate_prompt_tokens":-2}`, `{"truncate_prompt_tokens":0}`, `{"truncate_prompt_tokens":7,"truncation_side":"left"}`, `{"truncate_prompt_tokens":9223372036854775808}`, `{"truncate_prompt_tokens":1.0}`, `{"truncation_side":"up"}`,
	`{"add_special_tokens":"Yes"}`, `{"add_special_tokens":"of"}`, `{"add_special_tokens":1}`, `{"add_special_tokens":10}`, `{"add_special_tokens":0.0}`, `{"add_generation_prompt":"off","continue_final_message":0}`, `{"continue_final_message":"\u0074"}`, `{"continue_final_message":"\"t"}`,
	`{"mm_processor_kwargs":{ }}`, `{"mm_processor_kwargs":{"a":1}}`, `{"media_io_kwargs":[]}`, `{"suffix":""}`, `{"suffix":"x"}`, `{"extra_key":null,"rid":[1],"rid":2}`, `{"rid":"r","watermark":{"a":"}"}}`, `{"tokens":null,"tokens":[1]}`,
	`{"strategy":""}`, `{"mode":""}`, `{"pods":[]}`, `{"pods":["a",null]}`, `{"prompts":[null]}`, `{"prompts":["a","b"]}`, `{"lora":"","cache_salt":""}`,
}

// TestScannerOdd holds the scanner against the oracle where JSON is hard, at
// every length of each body.
func TestScannerOdd(t *testing.T) {
	s, q := new(scan.Scanner), new(Score)
	bodies := traceBodies(t)
	for _, b := range odd {
		bodies = append(bodies, []byte(b))
	}
	for _, b := range bodies {
		for n := range len(b) + 1 {
			same(t, s, q, b[:n])
		}
	}
}

// TestScannerBroken holds the two against each other over bodies that one
// change has broken, or not.
func TestScannerBroken(t *testing.T) {
	bodies := traceBodies(t)
	for _, b := range odd {
		bodies = append(bodies, []byte(b))
	}
	s, q := new(scan.Scanner), new(Score)
	rapid.Check(t, func(t *rapid.T) {
		b := slices.Clone(rapid.SampledFrom(bodies).Draw(t, "body"))
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			if len(b) == 0 {
				break
			}
			at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
			with := rapid.SampledFrom([]string{"", "\"", "\\", "{", "}", "[", "]", ",", ":", "0", "9", "-", ".", "e", " ", "\n", "\\u", "d83d", "null", "true", "\xff", "é", "=", "\x00"}).Draw(t, "with")
			b = slices.Concat(b[:at], []byte(with), b[min(len(b), at+rapid.IntRange(0, 2).Draw(t, "cut")):])
		}
		same(t, s, q, b)
	})
}

// TestScannerValues reads back what encoding/json writes.
func TestScannerValues(t *testing.T) {
	s, q := new(scan.Scanner), new(Score)
	rapid.Check(t, func(t *rapid.T) {
		v := map[string]any{}
		tokens := rapid.SliceOf(rapid.Uint32()).Draw(t, "tokens")
		if rapid.Bool().Draw(t, "packed") {
			var raw []byte
			for _, k := range tokens {
				raw = binary.LittleEndian.AppendUint32(raw, k)
			}
			v["tokens_b64"] = base64.StdEncoding.EncodeToString(raw)
			if rapid.Bool().Draw(t, "raw") {
				v["tokens_b64"] = base64.RawStdEncoding.EncodeToString(raw)
			}
		} else {
			v["tokens"] = tokens
		}
		v["prompt"] = rapid.String().Draw(t, "prompt")
		v["lora"] = rapid.StringMatching(`[ -~]{0,40}`).Draw(t, "lora")
		v["prompts"] = rapid.SliceOfN(rapid.String(), 0, 8).Draw(t, "prompts")
		v["wait_ms"] = rapid.IntRange(0, 10_000).Draw(t, "wait")
		v["top"] = rapid.IntRange(0, math.MaxInt32).Draw(t, "top")
		v["early_exit"] = rapid.Bool().Draw(t, "early")
		body := must.Get(json.Marshal(v))(t)
		if rapid.Bool().Draw(t, "indented") {
			var b bytes.Buffer
			must.OK(t, json.Indent(&b, body, "", "\t"))
			body = b.Bytes()
		}
		if _, err := scanned(s, q, body); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		same(t, s, q, body)
	})
}

// FuzzDecode looks for a body over which scanner and oracle differ.
func FuzzDecode(f *testing.F) {
	for _, b := range traceBodies(f) {
		f.Add(b)
	}
	for _, b := range odd {
		f.Add([]byte(b))
	}
	s, q := new(scan.Scanner), new(Score)
	f.Fuzz(func(t *testing.T, body []byte) { same(t, s, q, body) })
}

// TestLimitsOfFields checks each limit at its edge and one beyond.
func TestLimitsOfFields(t *testing.T) {
	limits := Limits{MaxTokens: 3, MaxBlockKeys: 2, MaxPrompts: 2, MaxPods: 2, MaxWait: time.Second}
	for _, tc := range []struct {
		body, param string // no param: taken
	}{
		{`{"tokens":[1,2,3]}`, ""},
		{`{"tokens":[1,2,3,4]}`, "tokens"},
		{`{"tokens_b64":"AQAAAAIAAAADAAAA"}`, ""},
		{`{"tokens_b64":"AQAAAAIAAAADAAAABAAAAA=="}`, "tokens_b64"},
		{`{"tokens_b64":"AQAAAAIAAAADAAAABAAAAA"}`, "tokens_b64"},
		{`{"block_keys":["0000000000000001","0000000000000002"]}`, ""},
		{`{"block_keys":["0000000000000001","0000000000000002","0000000000000003"]}`, "block_keys"},
		{`{"prompts":["a","b"]}`, ""},
		{`{"prompts":["a","b","c"]}`, "prompts"},
		{`{"pods":["a","b"]}`, ""},
		{`{"pods":["a","b","c"]}`, "pods"},
	} {
		s, q := new(scan.Scanner), &Score{}
		q.Limits = &limits
		s.Start([]byte(tc.body), nil)
		_, err := scan.Decode(s, ScoreFields, q)
		if tc.param == "" {
			if err != nil {
				t.Errorf("%s: %v", tc.body, err)
			}
			continue
		}
		e, _ := err.(*refusal.Error) //nolint:errorlint // it must be that very type
		if e == nil || e.Status != 413 || e.Code != refusal.CodeTooLarge || e.Param != tc.param {
			t.Errorf("%s: %#v", tc.body, err)
		}
	}
}
