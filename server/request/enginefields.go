package request

import (
	"slices"

	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
)

// A client of an engine can send /v1/score and /v1/tokenize the same body.
// What of it makes the prompt is read. What is listed here changes nothing about the
// tokens of the prompt: how the answer is sampled, sent, named, routed and paid for.
// It is skipped, whatever its value is.
//
// It is a list, and not all that is unknown, since a field with a slip of the pen must
// be refused. With "tool" in the place of "tools" a chat would be scored without them,
// and look right. TestCaseRequestsThatEnginesTake holds the list against the fields of
// the engines' own requests (testdata/engine_fields.json, made by scripts/engines).

// skippedOf are the fields that are skipped, by whose API has them. Of several it is
// the first.
var skippedOf = []struct {
	of     string
	fields []string
}{
	{"OpenAI's APIs", []string{
		"audio", "background", "frequency_penalty", "function_call", "functions", "include", "logit_bias", "logprobs", "max_completion_tokens",
		"max_output_tokens", "max_tokens", "max_tool_calls", "metadata", "modalities", "moderation", "n", "parallel_tool_calls", "prediction",
		"presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "response_format", "safety_identifier",
		"seed", "service_tier", "stop", "store", "stream", "stream_options", "temperature", "text", "tool_choice", "top_logprobs", "top_p",
		"truncation", "user", "verbosity", "web_search_options",
	}},
	{"Anthropic's messages", []string{"betas", "container", "context_management", "inference_geo", "mcp_servers", "speed", "stop_sequences"}},
	{"vLLM's", []string{
		"allowed_token_ids", "bad_words", "best_of", "ec_transfer_params", "echo", "enable_response_messages", "guided_choice",
		"guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex", "guided_whitespace_pattern", "ignore_eos",
		"include_reasoning", "include_stop_str_in_output", "kv_transfer_params", "length_penalty", "logits_processors", "logprob_token_ids",
		"min_p", "min_tokens", "mm_payload", "priority", "prompt_logprobs", "repetition_detection",
		"repetition_penalty", "request_id", "return_assistant_tokens_mask", "return_mm_kwargs", "return_prompt_text", "return_token_ids",
		"return_token_offsets", "return_token_strs", "return_tokens_as_token_ids", "return_weight_versions", "routed_experts_prompt_start",
		"session_id", "skip_special_tokens", "spaces_between_special_tokens", "stop_token_ids", "stream_interval", "structural_tag",
		"structured_outputs", "thinking_token_budget", "top_k", "use_beam_search", "vllm_xargs", "watermarking",
	}},
	{"SGLang's", []string{
		"bootstrap_host", "bootstrap_port", "bootstrap_room", "custom_labels", "custom_logit_processor", "custom_params",
		"data_parallel_rank", "disagg_prefill_dp_rank", "ebnf", "images_config", "json_schema", "max_dynamic_patch", "min_dynamic_patch",
		"no_stop_trim", "regex", "return_cached_tokens_details", "return_flat_raw_output_top_logprobs", "return_flat_raw_top_logprobs_b64",
		"return_hidden_states", "return_input_ids_in_sglext", "return_meta_info", "return_output_ids_in_sglext", "return_prompt_token_ids",
		"return_routed_experts", "return_sampling_mask", "return_spec_tokens_details", "rid", "routed_dp_rank", "routed_experts_start_len",
		"sampling_logprobs_mode", "separate_reasoning", "session_params", "stop_regex", "stream_reasoning", "task", "use_audio_in_video",
		"video_config", "watermark",
	}},
	{"gateways'", []string{
		"api_base", "api_key", "caching", "custom_llm_provider", "drop_params", "extra_body", "extra_headers", "fallbacks", "litellm_metadata",
		"models", "num_retries", "plugins", "provider", "route", "timeout", "transforms", "usage",
	}},
}

// refusedFields are fields of engines that change the prompt, or what is cached of it, in a way that is not
// done here. Each has the forms of the prompt that it belongs to, and the reason. Beside other forms they are
// skipped. Null is like leaving one out.
var refusedFields = map[string]struct {
	beside []string
	why    string
}{
	"conversation":            {[]string{"input"}, "what was said before is known to the engine alone: send all of it as input"},
	"extra_key":               {EngineForms, "which blocks SGLang keeps under a key of the caller is not in its events"},
	"previous_input_messages": {[]string{"input"}, "it is of Harmony's encoding, which is not done here"},
	"previous_response_id":    {[]string{"input"}, "what was said before is known to the engine alone: send all of it as input"},
	"prompt_embeds":           {[]string{"prompt"}, "embeddings are no tokens"},
	"suffix":                  {[]string{"prompt"}, "SGLang puts it into the prompt by a template of its own: send the tokens"},
}

// EngineSkips are the fields that a body of an engine may have beside those that are read.
var EngineSkips = func() *scan.Skips {
	var refused []string
	for name := range refusedFields {
		refused = append(refused, name)
	}
	return scan.NewSkips(SkippedFields(), refused)
}()

// RefusedField refuses a field that cannot be done.
func RefusedField(name string) error {
	return refusal.Invalid(name, "%s cannot be given: %s", name, refusedFields[name].why)
}

// SkippedFields are all fields that are skipped, by name.
func SkippedFields() []string {
	var out []string
	for _, s := range skippedOf {
		out = append(out, s.fields...)
	}
	slices.Sort(out)
	return out
}
