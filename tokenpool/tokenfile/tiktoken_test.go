package tokenfile

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestTiktokenRefused(t *testing.T) {
	var all bytes.Buffer
	for b := range 256 {
		fmt.Fprintf(&all, "%s %d\n", base64.StdEncoding.EncodeToString([]byte{byte(b)}), b)
	}
	good := all.String()
	config := `{"added_tokens_decoder":{"256":{"content":"[BOS]"}}}`
	kimi, qwen := &tiktokens[0], &tiktokens[1]
	for _, c := range []struct {
		kind         *tiktoken
		file, config string
		says         string
	}{
		{kimi, good, config, ""},
		{qwen, good, "", ""},
		{qwen, "", "", "the byte 0x00 is no token"},
		{qwen, good[:200], "", "is not a token"},
		{qwen, "version https://git-lfs.github.com/spec/v1\n", "", "line 1 is not a token"},
		{qwen, good + "AAA= 300\n", "", ""},
		{qwen, good + "AAA=300\n", "", "line 257 is not a token"},
		{qwen, good + "AAA= -1\n", "", "line 257 is not a token"},
		{qwen, good + "AAA= 4294967296\n", "", "line 257 is not a token"},
		{qwen, good + " 300\n", "", "line 257 is not a token"},
		{qwen, good + "AA== 300\n", "", "an earlier line has"},
		{qwen, good + "AAA= 255\n", "", "an earlier line has"},
		{qwen, good + "AAA= 151643\n", "", "has the number 151643 of another one"},
		{qwen, good + base64.StdEncoding.EncodeToString(make([]byte, maxTiktokenBytes+1)) + " 300\n", "", "a token of 1025 bytes"},
		{kimi, good, "", "no tokenizer_config.json"},
		{kimi, good, "{}", "no added_tokens_decoder"},
		{kimi, good, "[]", "added_tokens_decoder"},
		{kimi, good, `{"added_tokens_decoder":{"5":{"content":"x"}}}`, `"5": "x" is no token behind the 256`},
		{kimi, good, `{"added_tokens_decoder":{"x":{"content":"x"}}}`, `is no token behind`},
		{kimi, good, `{"added_tokens_decoder":{"300":{}}}`, `is no token behind`},
		{kimi, good, `{"added_tokens_decoder":{"300":{"content":"x"},"301":{"content":"x"}}}`, `has two numbers`},
	} {
		var config []byte
		if c.config != "" {
			config = []byte(c.config)
		}
		data, err := c.kind.json([]byte(c.file), config)
		switch {
		case c.says == "" && (err != nil || !json.Valid(data)):
			t.Errorf("%.60q, %s: %v", c.file, c.config, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%.60q, %s: error %v, want one that says %q", c.file, c.config, err, c.says)
		}
	}
}
