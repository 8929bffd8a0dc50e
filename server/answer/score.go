package answer

import (
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/appendjson"
	"github.com/kvatlas/kvatlas/server/request"
)

// The response of /v1/score is written by hand, since it is on the path of
// every request. Its objects are in ranking order, which a Go map would lose.

// AppendScore appends one result of a request.
func AppendScore(b []byte, r *scorer.Response, in *request.Input) []byte {
	b = append(b, `{"scores":{`...)
	for i := range r.Pods {
		b = appendjson.Name(b, i, r.Pods[i].Pod)
		b = appendNumber(b, r.Pods[i].Score)
	}
	b = append(b, `},"best":`...)
	if r.Best == "" {
		b = append(b, "null"...)
	} else {
		b = appendjson.String(b, r.Best)
	}
	b = append(b, `,"matched":{`...)
	b = append(appendMatches(b, r.Pods), '}')
	if r.LeftOut > 0 {
		b = strconv.AppendInt(append(b, `,"left_out":`...), int64(r.LeftOut), 10)
	}
	b = append(b, `,"blocks":{"total":`...)
	b = strconv.AppendInt(b, int64(r.Blocks), 10)
	b = append(b, `,"size":`...)
	b = strconv.AppendInt(b, int64(r.BlockSize), 10)
	b = append(b, `},"tokens":{"total":`...)
	b = strconv.AppendInt(b, int64(r.Tokens), 10)
	b = append(b, `,"source":`...)
	b = appendjson.String(b, r.Source)
	b = append(b, `,"exact":`...)
	b = strconv.AppendBool(b, r.Exact)
	b = in.AppendResolved(append(b, '}'))
	if r.Degraded != "" {
		b = append(b, `,"degraded":{"reason":`...)
		b = appendjson.String(b, string(r.Degraded))
		if r.Stale > 0 {
			b = strconv.AppendInt(append(b, `,"stale_ms":`...), r.Stale.Milliseconds(), 10)
		}
		b = append(b, '}')
	}
	if r.Frequencies != nil {
		b = append(b, `,"frequencies":[`...)
		for i, f := range r.Frequencies {
			b = strconv.AppendInt(appendjson.Comma(b, i), int64(f), 10)
		}
		b = append(b, ']')
	}
	if r.Explanation != nil {
		b = appendExplanation(append(b, `,"explain":`...), r.Explanation)
	}
	return append(b, '}')
}

// appendNumber appends a score; most are whole.
func appendNumber(b []byte, score float64) []byte {
	if n := int64(score); float64(n) == score {
		return strconv.AppendInt(b, n, 10)
	}
	return strconv.AppendFloat(b, score, 'f', -1, 64)
}

// appendMatches appends what the pods hold. Neighbours in a ranking often hold as much: then
// the text of the one before is right.
func appendMatches(b []byte, pods []scorer.PodScore) []byte {
	n, from, to := 0, 0, 0
	for i := range pods {
		p := &pods[i]
		if p.Blocks == 0 {
			continue
		}
		b = appendjson.Name(b, n, p.Pod)
		at := len(b)
		if n > 0 && holdsAsMuch(p, &pods[i-1]) {
			b = append(b, b[from:to]...)
		} else {
			b = appendMatch(b, p)
		}
		from, to = at, len(b)
		n++
	}
	return b
}

// holdsAsMuch reports whether the texts of two pods are the same but for their names.
func holdsAsMuch(p, q *scorer.PodScore) bool {
	return p.Blocks == q.Blocks && p.Tokens == q.Tokens && p.Reusable == q.Reusable && p.Predicted == q.Predicted &&
		slices.Equal(p.Tiers, q.Tiers) && slices.Equal(p.Ranks, q.Ranks)
}

// appendMatch appends what one pod holds.
func appendMatch(b []byte, p *scorer.PodScore) []byte {
	b = append(b, `{"blocks":`...)
	b = strconv.AppendInt(b, int64(p.Blocks), 10)
	b = append(b, `,"tokens":`...)
	b = strconv.AppendInt(b, int64(p.Tokens), 10)
	if p.Reusable >= 0 {
		b = append(b, `,"reusable":`...)
		b = strconv.AppendInt(b, int64(p.Reusable), 10)
	}
	if p.Predicted > 0 {
		b = strconv.AppendInt(append(b, `,"predicted_blocks":`...), int64(p.Predicted), 10)
	}
	b = append(b, `,"tiers":{`...)
	for i, t := range p.Tiers {
		b = appendjson.Name(b, i, t.Tier)
		b = strconv.AppendInt(b, int64(t.Blocks), 10)
	}
	b = append(b, `},"ranks":{`...)
	for i, r := range p.Ranks {
		b = append(appendjson.Comma(b, i), '"')
		b = strconv.AppendInt(b, int64(r.Rank), 10)
		b = append(b, '"', ':')
		b = strconv.AppendInt(b, int64(r.Blocks), 10)
	}
	return append(b, "}}"...)
}

func appendExplanation(b []byte, e *scorer.Explanation) []byte {
	b = append(b, `{"blocks":[`...)
	for i := range e.Blocks {
		b = append(appendjson.Comma(b, i), `{"key":"`...)
		b = e.Blocks[i].Key.AppendText(b)
		b = append(b, `","holders":[`...)
		for j, h := range e.Blocks[i].Holders {
			b = append(appendjson.Comma(b, j), `{"pod":`...)
			b = appendjson.String(b, h.Pod)
			b = append(b, `,"rank":`...)
			b = strconv.AppendInt(b, int64(h.Rank), 10)
			b = append(b, `,"tier":`...)
			b = appendjson.String(b, h.Tier)
			if h.Kind != "" {
				b = appendjson.String(append(b, `,"kind":`...), h.Kind)
			}
			b = append(b, '}')
		}
		b = append(b, "]}"...)
	}
	b = append(b, ']')
	if e.LeftOut > 0 {
		b = strconv.AppendInt(append(b, `,"left_out":`...), int64(e.LeftOut), 10)
	}
	b = append(b, `,"block_keys":[`...)
	for i, k := range e.Keys {
		b = append(appendjson.Comma(b, i), '"')
		b = append(k.AppendText(b), '"')
	}
	b = append(b, `],"stages_us":{`...)
	for i, s := range e.Stages {
		b = appendjson.Name(b, i, s.Name)
		// Microseconds with three decimals: whole nanoseconds.
		b = strconv.AppendFloat(b, float64(s.Took.Nanoseconds())/1e3, 'f', -1, 64)
	}
	return append(b, "}}"...)
}
