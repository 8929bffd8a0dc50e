package server

import (
	"math/bits"
	"slices"
)

// chatPassed are the fields of a chat completion that change nothing about the
// tokens of its prompt: how the answer is sampled, sent, named and paid for. Who
// sends an engine a chat can send /v1/score and /v1/tokenize the same body: beside
// messages they are skipped, whatever their values are. The first are those of
// OpenAI's API (Create chat completion), then come what vLLM and SGLang have beside.
//
// They are a list, and not all that is unknown, since a field with a slip of the
// pen must be refused: "tool" in the place of "tools" would be scored without them,
// and look right. What changes the tokens and is not done here (functions,
// truncate_prompt_tokens, mm_processor_kwargs) is not among them.
//
// At most 64: a scanner keeps a set of them in a word.
var chatPassed = []string{
	"audio", "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata", "modalities",
	"n", "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key", "prompt_cache_retention",
	"response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream", "stream_options",
	"temperature", "tool_choice", "top_logprobs", "top_p", "user", "verbosity", "web_search_options",

	"allowed_token_ids", "bad_words", "best_of", "echo", "guided_choice", "guided_decoding_backend",
	"guided_grammar", "guided_json", "guided_regex", "ignore_eos", "include_reasoning",
	"include_stop_str_in_output", "kv_transfer_params", "length_penalty", "logits_processors", "min_p",
	"min_tokens", "priority", "prompt_logprobs", "repetition_penalty", "request_id", "return_token_ids",
	"return_tokens_as_token_ids", "skip_special_tokens", "spaces_between_special_tokens", "stop_token_ids",
	"structured_outputs", "top_k", "use_beam_search", "vllm_xargs",

	"ebnf", "regex", "separate_reasoning", "stream_reasoning",
}

// pass skips the value of a field that is in s.passes, and says whether it is.
func (s *scanner) pass(name []byte) (bool, error) {
	i := slices.Index(s.passes, string(name))
	if i < 0 {
		return false, nil
	}
	if s.passed&(1<<i) != 0 {
		return true, s.wrong("is given twice")
	}
	s.passed |= 1 << i
	s.space()
	if !s.take(':') {
		return true, s.syntax("':'")
	}
	s.space()
	_, err := s.raw("a value")
	return true, err
}

// firstPassed is the first of the fields that were skipped, "" if none was.
func (s *scanner) firstPassed() string {
	if s.passed == 0 {
		return ""
	}
	return s.passes[bits.TrailingZeros64(s.passed)]
}
