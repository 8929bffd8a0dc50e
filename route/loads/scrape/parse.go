package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kvatlas/kvatlas/route/loads"
)

// errPage says that a page does not have an engine's load; the message says why.
var errPage = errors.New("scrape: no load in the page")

// maxLines is how many series of a page are looked at.
const maxLines = 16 << 10

// kind is how an engine calls what is read. Where it lists several names of one figure they
// are those of different releases, and the first that the page has counts.
type kind struct {
	path string
	rank string // the label; empty where ranks are not told apart
	// running and waiting are sums over their families.
	running, waiting []string
	usage            []string
	// room are the tokens of the cache; blocks times size where that is empty.
	room, blocks, size string
	config             string // info whose labels have blocks and size
	// prompt are the tokens of all prompts, cached those of them that were cached, both of so
	// many requests. If set, asked are the tokens that cached is a part of.
	prompt, requests string
	asked, cached    []string
	further          string // cached tokens besides
	// ended counts requests of an engine whose gauges change only as it ends one.
	ended []string
}

// kinds are the engines by what registrations call them.
var kinds = map[string]*kind{
	"vllm": {
		path: "/metrics", rank: "engine",
		running: []string{"vllm:num_requests_running"}, waiting: []string{"vllm:num_requests_waiting"},
		usage:  []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}, // the second until 0.10
		config: "vllm:cache_config_info", room: "kv_cache_size_tokens", blocks: "num_gpu_blocks", size: "block_size",
		prompt: "vllm:prompt_tokens_total", requests: "vllm:request_success_total",
		asked:   []string{"vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"},
		cached:  []string{"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"},
		further: "vllm:external_prefix_cache_hits_total",
	},
	"sglang": {
		path: "/metrics", rank: "dp_rank",
		running: []string{"sglang:num_running_reqs"}, waiting: []string{"sglang:num_queue_reqs", "sglang:num_grammar_queue_reqs"},
		usage: []string{"sglang:token_usage"}, room: "sglang:max_total_num_tokens",
		prompt: "sglang:prompt_tokens_total", requests: "sglang:num_requests_total", cached: []string{"sglang:cached_tokens_total"},
	},
	"trtllm": {
		path:    "/prometheus/metrics",
		running: []string{"trtllm_num_requests_running"}, waiting: []string{"trtllm_num_requests_waiting"},
		usage: []string{"trtllm_kv_cache_utilization"}, blocks: "trtllm_kv_cache_max_blocks", size: "trtllm_kv_cache_tokens_per_block",
		prompt: "trtllm_prompt_tokens_total", requests: "trtllm_request_success_total", cached: []string{"trtllm_prompt_cached_tokens_total"},
		ended: []string{"trtllm_request_success_total", "trtllm_request_error_total"},
	},
}

// wants reports whether a family is read.
func (k *kind) wants(name string) bool {
	for _, list := range [][]string{k.running, k.waiting, k.usage, k.asked, k.cached, k.ended, {k.room, k.blocks, k.size, k.config, k.prompt, k.requests, k.further}} {
		if slices.Contains(list, name) {
			return true
		}
	}
	return false
}

// page are the families of a page that are read.
type page map[string]*dto.MetricFamily

// none is the rank of series that name none.
const none = -1

// parse reads the load of each rank from the metrics of an engine: vllm, sglang or trtllm.
// ranks is how many the pod has. Of an engine that does not tell them apart each gets an even
// share. The error is errPage.
func parse(engine string, ranks int, text []byte) ([]loads.Engine, error) {
	k := kinds[engine]
	if k == nil {
		return nil, fmt.Errorf("%w: the engine is %.40q", errPage, engine)
	}
	p, err := k.read(text)
	if err != nil {
		return nil, err
	}
	ranks = max(1, ranks)
	running, err := p.byRank(k.rank, k.running...)
	if err != nil {
		return nil, err
	}
	waiting, err := p.byRank(k.rank, k.waiting...)
	if err != nil {
		return nil, err
	}
	usage, err := p.byRank(k.rank, p.first(k.usage)...)
	if err != nil {
		return nil, err
	}
	room := k.rooms(p)
	each := k.uncachedEach(p)
	var ended int64
	if k.ended != nil {
		ended = 1 + int64(p.sum(k.ended...))
	}
	var out []loads.Engine
	for _, s := range shares(running, ranks) {
		e := loads.Engine{Rank: s.rank, WaitingTokens: -1, KVUsage: -1, Progress: ended}
		e.Running, e.Waiting = s.count(running), s.count(waiting)
		if each >= 0 {
			e.WaitingTokens = min(loads.MaxEngineCount, int64(math.Round(each*float64(e.Waiting))))
		}
		if u, ok := s.mean(usage); ok {
			e.KVUsage = min(1, u)
		}
		e.KVTokens = s.room(room)
		if err := e.Validate(); err != nil {
			return nil, fmt.Errorf("%w: %w", errPage, err)
		}
		out = append(out, e)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: none of its ranks is one of the pod's %d", errPage, ranks)
	}
	return out, nil
}

// read parses those lines of a page whose families are read. The rest, most of it buckets of
// histograms, is neither parsed nor need it be right.
func (k *kind) read(text []byte) (page, error) {
	var kept bytes.Buffer
	lines := 0
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		end := bytes.IndexAny(line, "{ \t")
		if end <= 0 || line[0] == '#' || !k.wants(string(line[:end])) {
			continue
		}
		if lines++; lines > maxLines {
			return nil, fmt.Errorf("%w: it has more than %d series of load", errPage, maxLines)
		}
		kept.Write(line)
		kept.WriteByte('\n')
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	p, err := parser.TextToMetricFamilies(&kept)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPage, err)
	}
	for _, must := range []string{k.running[0], k.waiting[0]} {
		if p[must] == nil {
			return nil, fmt.Errorf("%w: it does not have %s", errPage, must)
		}
	}
	return p, nil
}

func label(m *dto.Metric, name string) (string, bool) {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue(), true
		}
	}
	return "", false
}

// byRank adds up families by rank. Of the series of one family and rank the largest counts.
// Tensor-parallel workers tell the same each, and beside the parts by priority stands their
// sum.
func (p page) byRank(rankLabel string, names ...string) (map[int]float64, error) {
	out := map[int]float64{}
	for _, name := range names {
		most := map[int]float64{}
		for _, m := range p[name].GetMetric() {
			v, rank := m.GetUntyped().GetValue(), none
			if !(v >= 0) || v > loads.MaxEngineCount {
				return nil, fmt.Errorf("%w: %s is %v", errPage, name, v)
			}
			if text, ok := label(m, rankLabel); ok && text != "" {
				n, err := strconv.Atoi(text)
				if err != nil || n < 0 {
					return nil, fmt.Errorf("%w: %s has the rank %.20q", errPage, name, text)
				}
				rank = n
			}
			most[rank] = max(most[rank], v)
		}
		for rank, v := range most {
			out[rank] += v
		}
	}
	return out, nil
}

// sum adds up all series of families, but for values that cannot be.
func (p page) sum(names ...string) (total float64) {
	for _, name := range names {
		for _, m := range p[name].GetMetric() {
			if v := m.GetUntyped().GetValue(); v >= 0 && v < math.MaxInt32*float64(loads.MaxEngineCount) {
				total += v
			}
		}
	}
	return min(total, loads.MaxEngineCount-1)
}

// first returns the first of names that the page has, nil for none.
func (p page) first(names []string) []string {
	i := slices.IndexFunc(names, func(name string) bool { return p[name] != nil })
	if i < 0 {
		return nil
	}
	return names[i : i+1]
}

// uncachedEach is how many tokens a request has to prefill on the mean of all that the engine
// has had. It is negative if the engine has had none.
func (k *kind) uncachedEach(p page) float64 {
	prompt, requests := p.sum(k.prompt), p.sum(k.requests)
	if requests < 1 || prompt <= 0 {
		return -1
	}
	of := prompt
	if k.asked != nil {
		of = p.sum(p.first(k.asked)...)
	}
	cached := p.sum(p.first(k.cached)...) + p.sum(k.further)
	if of > 0 {
		prompt *= 1 - min(1, cached/of)
	}
	return prompt / requests
}

// rooms are the tokens of the cache by rank.
func (k *kind) rooms(p page) map[int]float64 {
	out := map[int]float64{}
	if k.config == "" {
		if k.room != "" {
			out, _ = p.byRank(k.rank, k.room) // what cannot be is not known
			return out
		}
		blocks, _ := p.byRank(k.rank, k.blocks)
		size, _ := p.byRank(k.rank, k.size)
		for rank, n := range blocks {
			out[rank] = n * size[rank]
		}
		return out
	}
	for _, m := range p[k.config].GetMetric() {
		number := func(name string) float64 {
			text, _ := label(m, name)
			n, err := strconv.ParseFloat(text, 64)
			if err != nil || !(n >= 0) || n > loads.MaxEngineCount {
				return 0 // "None" where it is not known
			}
			return n
		}
		rank := none
		if text, ok := label(m, k.rank); ok {
			if n, err := strconv.Atoi(text); err == nil {
				rank = n
			}
		}
		out[rank] = number(k.room)
		if out[rank] == 0 {
			out[rank] = number(k.blocks) * number(k.size)
		}
	}
	return out
}

// share is the part of a page that is a rank of the pod: some of the page's ranks, or one of
// several even parts.
type share struct {
	rank     int
	of       []int // ranks of the page
	part, by int   // the part-th of so many
}

// shares tells which part of a page each rank of a pod is.
func shares(values map[int]float64, ranks int) (out []share) {
	var named []int
	for rank := range values {
		if rank != none {
			named = append(named, rank)
		}
	}
	slices.Sort(named)
	switch {
	case len(named) == 0:
		for rank := range ranks {
			out = append(out, share{rank, []int{none}, rank, ranks})
		}
	case ranks == 1: // a server that is one rank of many names its own; one that routes among them is one pod
		out = []share{{0, named, 0, 1}}
	default:
		for _, rank := range named {
			if rank < ranks {
				out = append(out, share{rank, []int{rank}, 0, 1})
			}
		}
	}
	return out
}

// count is how many of something there are in the share.
func (s *share) count(values map[int]float64) int64 {
	total := 0.0
	for _, rank := range s.of {
		total += values[rank]
	}
	n := int64(math.Round(min(total, loads.MaxEngineCount)))
	each := n / int64(s.by)
	if int64(s.part) < n%int64(s.by) {
		each++
	}
	return each
}

// room is how many tokens the caches of the share have room for; 0 is not known.
func (s *share) room(values map[int]float64) int64 {
	total := 0.0
	for _, rank := range s.of {
		v, ok := values[rank]
		if !ok {
			v = values[none]
		}
		if v <= 0 {
			return 0
		}
		total += v
	}
	return int64(min(total/float64(s.by), loads.MaxEngineCount))
}

// mean is that of the ranks of the share; ok is false where one has no value.
func (s *share) mean(values map[int]float64) (mean float64, ok bool) {
	for _, rank := range s.of {
		v, has := values[rank]
		if !has {
			return 0, false
		}
		mean += v / float64(len(s.of))
	}
	return mean, true
}
