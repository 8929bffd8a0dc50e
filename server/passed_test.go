package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestPassedFields reads a chat with each field that is skipped, with values of every
// kind, and finds the chat as it is without.
func TestPassedFields(t *testing.T) {
	if len(chatPassed) > 64 || len(slices.Compact(slices.Sorted(slices.Values(chatPassed)))) != len(chatPassed) {
		t.Fatalf("%d fields, of which a set has 64; or one is there twice", len(chatPassed))
	}
	values := []string{"null", "true", "0.7", "-1e3", `"a \"text\", }"`, "[]", `[1,{"a":[]}]`, "{}", `{"model":"other","stream":{"b":"}"}}`}
	body := `{"model":"m",`
	for i, n := range chatPassed {
		if slices.Contains(scoreNames, n) || slices.Contains(tokenizeNames, n) {
			t.Errorf("%s is read", n)
		}
		body += fmt.Sprintf("%q : %s ,", n, values[i%len(values)])
		for _, v := range values {
			var s scanner
			q := &scoreRequest{}
			q.limits = testLimits()
			s.start([]byte(fmt.Sprintf(`{"messages":[1],%q:%s,"model":"m"}`, n, v)))
			s.passes = chatPassed
			if _, err := decode(&s, scoreFields, q); err != nil || q.model != "m" || s.firstPassed() != n {
				t.Errorf("%s = %s: %v, model %q, skipped %q", n, v, err, q.model, s.firstPassed())
			}
		}
	}
	body += `"messages":[{"role":"user","content":"x"}]}`
	var s scanner
	q := &scoreRequest{}
	q.limits = testLimits()
	s.start([]byte(body))
	s.passes = chatPassed
	if _, err := decode(&s, scoreFields, q); err != nil || q.model != "m" || !strings.Contains(string(q.chat.Messages), "user") {
		t.Errorf("%s: %v, %+v", body, err, q.chat)
	}
	// They are of the body, and of chats.
	for bad, fs := range map[string]fields[scoreRequest]{
		`{"stream":tru}`: scoreFields, `{"stream":"\ud800"}`: scoreFields, `{"stream"}`: scoreFields, `{"stream":}`: scoreFields, `{"stream":1 "n":1}`: scoreFields,
	} {
		s.start([]byte(bad))
		s.passes = chatPassed
		if _, err := decode(&s, fs, q); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	if err := decodeText(`{"op":"add","stream":true}`, blocksFields, &blocksRequest{}); err == nil {
		t.Error("a change of blocks can be streamed")
	}
}
