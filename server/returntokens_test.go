package server_test

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"
)

// The tokens of a prompt are handed on in each form, by scores and by routes. A policy that does not
// look at the prompt hands them on too.
func TestReturnTokens(t *testing.T) {
	noting(t, func(r *routing) {
		r.ok("POST", "/v1/pods", `{"name":"a","model":"`+textModel+`","aliases":["nick"],"adapters":["poet"]}`)
		text := strings.Repeat("hello ", 20)
		var want []uint32
		for _, b := range []byte(text) {
			want = append(want, uint32(b))
		}
		ids, _ := json.Marshal(want)
		var raw []byte
		for _, id := range want {
			raw = binary.LittleEndian.AppendUint32(raw, id)
		}
		for path, more := range map[string]string{"/v1/score": ``, "/v1/route": `,"reserve":true`, "/v1/route?blind": `,"policy":"round_robin"`} {
			path, _, _ = strings.Cut(path, "?")
			for _, prompt := range []string{`"prompt":"` + text + `"`, `"tokens":` + string(ids)} {
				for form, found := range map[string]string{
					"ids":    `"token_ids":` + string(ids),
					"packed": `"token_ids_b64":"` + base64.StdEncoding.EncodeToString(raw) + `"`,
					"body":   `"body":{"model":"nick","prompt":` + string(ids) + `,"cache_salt":"s"}`,
				} {
					w := r.do("POST", path, `{"model":"nick","cache_salt":"s","add_special_tokens":false,`+prompt+`,"return_tokens":"`+form+`"`+more+`}`)
					if w.Code != 200 || !json.Valid(w.Body.Bytes()) || strings.Count(w.Body.String(), found) != 1 {
						t.Errorf("%s with %s: %d %s, want %s in it", path, form, w.Code, w.Body, found)
					}
				}
				if w := r.do("POST", path, `{"model":"nick",`+prompt+more+`}`); strings.Contains(w.Body.String(), "token_ids") {
					t.Errorf("%s: not asked for, and there: %s", path, w.Body)
				}
			}
		}
	})
}

// What is not the whole prompt is not handed on as if it were.
func TestReturnTokensOfWholePromptsAlone(t *testing.T) {
	noting(t, func(r *routing) {
		r.ok("POST", "/v1/pods", `{"name":"a","model":"demo"}`)
		for name, body := range map[string]string{
			"block keys":   `"block_keys":["00000000000000aa"],"return_tokens":"ids"`,
			"no such form": `"tokens":[1],"return_tokens":"json"`,
			"media":        `"tokens":[1,2,3],"features":{"mm_hashes":{"image":["x"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]}},"return_tokens":"body"`,
		} {
			for _, path := range []string{"/v1/score", "/v1/route"} {
				if w := r.do("POST", path, `{"model":"demo",`+body+`}`); w.Code != 400 || !strings.Contains(w.Body.String(), "return_tokens") {
					t.Errorf("%s, %s: %d %s", path, name, w.Code, w.Body)
				}
			}
		}
		r.ok("POST", "/v1/pods", `{"name":"t","model":"`+textModel+`"}`)
		for _, path := range []string{"/v1/score", "/v1/route"} {
			w := r.do("POST", path, `{"model":"`+textModel+`","prompt":"slow `+strings.Repeat("x", 60)+`","return_tokens":"ids"}`)
			if w.Code != 200 || strings.Contains(w.Body.String(), "token_ids") || !strings.Contains(w.Body.String(), "degraded") {
				t.Errorf("%s of half a prompt: %d %s", path, w.Code, w.Body)
			}
		}
		for _, body := range []string{`"prompts":["a","b"]`, `"prompt":["a","b"]`} {
			if w := r.do("POST", "/v1/score", `{"model":"demo",`+body+`,"return_tokens":"ids"}`); w.Code != 400 {
				t.Errorf("%s: %d %s", body, w.Code, w.Body)
			}
		}
	})
}
