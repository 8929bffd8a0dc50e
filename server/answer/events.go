package answer

import (
	"strconv"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/server/appendjson"
)

// maxSkipsTold is how many events that were left out an answer reports.
const maxSkipsTold = 64

// AppendEvents appends the answer: counts, what became of each rank, and why events
// were left out. Results and pushes have the same order.
func AppendEvents(b []byte, results []ingest.PushResult, pushes []event.Push) []byte {
	applied, skipped := 0, 0
	for i := range results {
		applied += results[i].Applied
		skipped += results[i].Skipped
	}
	b = strconv.AppendInt(append(b, `{"applied":`...), int64(applied), 10)
	b = strconv.AppendInt(append(b, `,"skipped":`...), int64(skipped), 10)
	many := len(pushes) > 1
	b = append(b, `,"ranks":[`...)
	first := true
	for i := range results {
		for j := range results[i].Ranks {
			if !first {
				b = append(b, ',')
			}
			first = false
			b = appendRankResult(b, many, i, &results[i].Ranks[j])
		}
	}
	b = append(b, ']')
	return append(appendSkips(b, many, pushes), "}\n"...)
}

// appendPush appends the push that an entry is of, where there are many.
func appendPush(b []byte, many bool, push int) []byte {
	if many {
		b = append(strconv.AppendInt(append(b, `"push":`...), int64(push), 10), ',')
	}
	return b
}

// appendRankResult appends what became of one rank's events.
func appendRankResult(b []byte, many bool, push int, r *ingest.RankResult) []byte {
	b = appendPush(append(b, '{'), many, push)
	b = strconv.AppendInt(append(b, `"rank":`...), int64(r.Rank), 10)
	b = strconv.AppendInt(append(b, `,"applied":`...), int64(r.Applied), 10)
	b = strconv.AppendInt(append(b, `,"skipped":`...), int64(r.Skipped), 10)
	if r.Duplicate {
		b = append(b, `,"duplicate":true`...)
	}
	if r.Began != 0 {
		b = appendjson.String(append(b, `,"began":`...), r.Began.String())
	}
	n := 0
	for reason, blocks := range r.Blocks {
		if blocks == 0 {
			continue
		}
		if n == 0 {
			b = append(b, `,"skipped_blocks":{`...)
		} else {
			b = append(b, ',')
		}
		n++
		b = append(appendjson.String(b, rechunk.Reason(reason).String()), ':')
		b = strconv.AppendUint(b, blocks, 10)
	}
	if n > 0 {
		b = append(b, '}')
	}
	return append(b, '}')
}

// appendSkips appends the first events that were left out, and why.
func appendSkips(b []byte, many bool, pushes []event.Push) []byte {
	n := 0
	for i := range pushes {
		for _, s := range pushes[i].Skips {
			if n == maxSkipsTold {
				break
			}
			if n == 0 {
				b = append(b, `,"skips":[`...)
			} else {
				b = append(b, ',')
			}
			n++
			b = appendPush(append(b, '{'), many, i)
			b = strconv.AppendInt(append(b, `"event":`...), int64(s.Index), 10)
			b = appendjson.String(append(b, `,"reason":`...), s.Reason.String())
			b = append(appendjson.String(append(b, `,"field":`...), s.Field), '}')
		}
	}
	if n > 0 {
		b = append(b, ']')
	}
	return b
}
