package nearest

import (
	"strings"
	"testing"
)

func TestWord(t *testing.T) {
	known := []string{"serve", "score", "sim", "round_robin", "longest_prefix", "vllm", "--listen", "mode", "model"}
	for wrong, want := range map[string]string{
		"srve":                             "serve",
		"scoer":                            "score",
		"moodel":                           "model",
		"SERVE":                            "serve",
		"round":                            "round_robin",
		"longest-prefix":                   "longest_prefix",
		"vlm":                              "vllm",
		"--lisen":                          "--listen",
		"s":                                "", // no letter of it need be right
		"xy":                               "",
		"":                                 "",
		"completely":                       "",
		"long":                             "longest_prefix",
		strings.Repeat("serve", 1_000_000): "",
	} {
		if got := Word(wrong, known); got != want {
			t.Errorf("%.40q: %q, want %q", wrong, got, want)
		}
	}
	if got := Clause("srve", known); got != " (did you mean serve?)" {
		t.Error(got)
	}
	if got := Clause("nothing", known); got != "" {
		t.Error(got)
	}
}
