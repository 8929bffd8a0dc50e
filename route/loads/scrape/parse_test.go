package scrape

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/route/loads"
)

// What the engines' releases write, line for line as Prometheus's client does, without the
// histograms that are not read.
const (
	vllm08 = `# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="facebook/opt-125m"} 8.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="facebook/opt-125m"} 3.0
vllm:gpu_cache_usage_perc{model_name="facebook/opt-125m"} 0.34
vllm:gpu_prefix_cache_queries_total{model_name="facebook/opt-125m"} 1000.0
vllm:gpu_prefix_cache_hits_total{model_name="facebook/opt-125m"} 250.0
vllm:prompt_tokens_total{model_name="facebook/opt-125m"} 1000.0
vllm:request_success_total{finished_reason="stop",model_name="facebook/opt-125m"} 4.0
vllm:request_success_total{finished_reason="length",model_name="facebook/opt-125m"} 6.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="27699"} 1.0
`
	vllm33 = `vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-8B"} 16.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-8B"} 2.0
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-8B"} 8.0
vllm:num_requests_waiting{engine="1",model_name="Qwen/Qwen3-8B"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-8B",reason="capacity"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-8B",reason="deferred"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-8B"} 0.9934640522875817
vllm:kv_cache_usage_perc{engine="1",model_name="Qwen/Qwen3-8B"} 0.125
vllm:prefix_cache_queries_total{engine="0",model_name="Qwen/Qwen3-8B"} 4e+06
vllm:prefix_cache_hits_total{engine="0",model_name="Qwen/Qwen3-8B"} 1e+06
vllm:external_prefix_cache_queries_total{engine="0",model_name="Qwen/Qwen3-8B"} 3e+06
vllm:external_prefix_cache_hits_total{engine="0",model_name="Qwen/Qwen3-8B"} 1e+06
vllm:prompt_tokens_total{engine="0",model_name="Qwen/Qwen3-8B"} 4e+06
vllm:request_success_total{engine="0",finished_reason="stop",model_name="Qwen/Qwen3-8B"} 1000.0
vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="152064",num_gpu_blocks="None"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="9504"} 1.0
`
	sglang = `sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 12.0
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="1"} 12.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"} 5.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="1",tp_rank="0"} 2.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="2",tp_rank="0"} 3.0
sglang:num_grammar_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 1.0
sglang:token_usage{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 0.28
sglang:max_total_num_tokens{engine_type="unified",model_name="m",tp_rank="0"} 454142.0
sglang:prompt_tokens_total{engine_type="unified",is_streaming="true",model_name="m"} 6000.0
sglang:prompt_tokens_total{engine_type="unified",is_streaming="false",model_name="m"} 2000.0
sglang:cached_tokens_total{cache_source="device",engine_type="unified",model_name="m"} 3000.0
sglang:cached_tokens_total{cache_source="host",engine_type="unified",model_name="m"} 1000.0
sglang:num_requests_total{engine_type="unified",is_streaming="true",model_name="m"} 40.0
`
	trtllm = `trtllm_num_requests_running{engine_type="undefined",model_name="undefined"} 3.0
trtllm_num_requests_waiting{engine_type="undefined",model_name="undefined"} 2.0
trtllm_kv_cache_utilization{engine_type="undefined",model_name="undefined"} 0.5
trtllm_kv_cache_max_blocks{engine_type="undefined",model_name="undefined"} 1000.0
trtllm_kv_cache_tokens_per_block{engine_type="undefined",model_name="undefined"} 32.0
trtllm_request_success_total{finished_reason="stop",model_name="undefined"} 7.0
trtllm_request_error_total{http_code="500",model_name="undefined"} 2.0
`
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, engine, text string
		ranks              int
		want               []loads.Engine
	}{
		{"vllm 0.8", "vllm", vllm08, 0, []loads.Engine{{Running: 8, Waiting: 3, WaitingTokens: 225, KVUsage: 0.34, KVTokens: 27699 * 16}}},
		{"vllm 0.33", "vllm", vllm33, 2, []loads.Engine{
			{Running: 16, Waiting: 8, WaitingTokens: 16_000, KVUsage: 0.9934640522875817, KVTokens: 152064},
			{Rank: 1, Running: 2, KVUsage: 0.125, KVTokens: 9504 * 16},
		}},
		{"vllm, ranks that the pod does not have", "vllm", strings.ReplaceAll(vllm33, `engine="1"`, `engine="7"`), 2, []loads.Engine{
			{Running: 16, Waiting: 8, WaitingTokens: 16_000, KVUsage: 0.9934640522875817, KVTokens: 152064},
		}},
		{"vllm, one rank of many", "vllm", strings.ReplaceAll(vllm08, `{model_name`, `{engine="3",model_name`), 1, []loads.Engine{
			{Running: 8, Waiting: 3, WaitingTokens: 225, KVUsage: 0.34, KVTokens: 27699 * 16},
		}},
		{"vllm, all ranks as one pod", "vllm", vllm33, 1, []loads.Engine{
			{Running: 18, Waiting: 8, WaitingTokens: 16_000, KVUsage: 0.9934640522875817/2 + 0.125/2, KVTokens: 152064 * 2},
		}},
		{"sglang", "sglang", sglang, 1, []loads.Engine{{Running: 12, Waiting: 6, WaitingTokens: 600, KVUsage: 0.28, KVTokens: 454142}}},
		{"trtllm", "trtllm", trtllm, 1, []loads.Engine{{Running: 3, Waiting: 2, WaitingTokens: -1, KVUsage: 0.5, KVTokens: 32_000, Progress: 10}}},
		{"trtllm, ranks as one", "trtllm", trtllm, 2, []loads.Engine{
			{Running: 2, Waiting: 1, WaitingTokens: -1, KVUsage: 0.5, KVTokens: 16_000, Progress: 10},
			{Rank: 1, Running: 1, Waiting: 1, WaitingTokens: -1, KVUsage: 0.5, KVTokens: 16_000, Progress: 10},
		}},
		{"the least there can be", "vllm", "vllm:num_requests_running 1\nvllm:num_requests_waiting 2\n", 1, []loads.Engine{{Running: 1, Waiting: 2, WaitingTokens: -1, KVUsage: -1}}},
		{"rubbish in what is not read", "vllm", "vllm:num_requests_running 1\nvllm:e2e{{{\n\x00\xff\nvllm:num_requests_waiting 2", 1, []loads.Engine{{Running: 1, Waiting: 2, WaitingTokens: -1, KVUsage: -1}}},
		{"windows", "vllm", "vllm:num_requests_running 1\r\nvllm:num_requests_waiting 2\r\n", 1, nil},
		{"empty", "vllm", "", 1, nil},
		{"no such engine", "triton", vllm33, 1, nil},
		{"another engine", "sglang", vllm33, 1, nil},
		{"html", "vllm", "<html><body>404</body></html>", 1, nil},
		{"json", "trtllm", `[{"iter":1}]`, 1, nil},
		{"not a number", "vllm", "vllm:num_requests_running NaN\nvllm:num_requests_waiting 2\n", 1, nil},
		{"below 0", "vllm", "vllm:num_requests_running -1\nvllm:num_requests_waiting 2\n", 1, nil},
		{"too many", "vllm", "vllm:num_requests_running 1e300\nvllm:num_requests_waiting +Inf\n", 1, nil},
		{"a rank that is none", "vllm", `vllm:num_requests_running{engine="-1"} 1` + "\nvllm:num_requests_waiting 2\n", 2, nil},
		{"a cut page", "vllm", vllm33[:strings.Index(vllm33, "vllm:num_requests_waiting{")+30], 2, nil},
		{"a flood", "vllm", vllm33 + strings.Repeat("vllm:prompt_tokens_total{a=\"b\"} 1\n", maxLines), 2, nil},
	} {
		got, err := parse(c.engine, c.ranks, []byte(c.text))
		if (err != nil) != (c.want == nil) || err != nil && !errors.Is(err, errPage) {
			t.Errorf("%s: %v", c.name, err)
		}
		if !slices.EqualFunc(got, c.want, func(a, b loads.Engine) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
			t.Errorf("%s:\n%+v, expected\n%+v", c.name, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{vllm08, vllm33, sglang, trtllm} {
		f.Add(text, uint16(2))
	}
	f.Fuzz(func(t *testing.T, text string, ranks uint16) {
		for engine := range kinds {
			list, err := parse(engine, int(ranks), []byte(text))
			if err == nil && len(list) == 0 {
				t.Error("neither ranks nor an error")
			}
			for i := range list {
				if err := list[i].Validate(); err != nil || list[i].Rank >= max(1, int(ranks)) {
					t.Errorf("%+v: %v", list[i], err)
				}
			}
		}
	})
}
