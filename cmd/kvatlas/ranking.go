package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvatlas/kvatlas/client"
)

// writeScore writes a ranking for people.
func writeScore(out io.Writer, model string, r *client.ScoreResponse, took time.Duration) {
	if len(r.Scores) == 0 {
		fmt.Fprintln(out, "no pod holds a block of this prompt")
	} else {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "POD\tSCORE\tBLOCKS\tTOKENS\tTIERS")
		for _, pod := range r.Ranking() {
			m := r.Matched[pod]
			fmt.Fprintf(w, "%s\t%g\t%d\t%d\t%s\n", printable(pod), r.Scores[pod], m.Blocks, m.Tokens, tierList(m.Tiers))
		}
		_ = w.Flush() // out's errors are those of a closed terminal
	}
	fmt.Fprintf(out, "\n%s: %d tokens (%s), %d blocks of %d, %s\n",
		printable(model), r.Tokens.Total, printable(r.Tokens.Source), r.Blocks.Total, r.Blocks.Size, formatTime(took))
	if r.Blocks.Total == 0 {
		fmt.Fprintf(out, "the prompt is shorter than a block, so there is nothing to match\n")
	}
	if !r.Tokens.Exact {
		fmt.Fprintln(out, "these are the tokens of a part of the prompt, the scores are lower bounds")
	}
	if r.Degraded != nil {
		fmt.Fprintf(out, "degraded: %s, the scores are lower bounds\n", printable(r.Degraded.Reason))
	}
	if r.Explain != nil {
		writeExplanation(out, r.Explain)
	}
}

// stages are the server's stages in their order.
var stages = []string{"tokenize", "hash", "lookup", "rank"}

func writeExplanation(out io.Writer, e *client.Explanation) {
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "BLOCKS\tLAST KEY\tHOLDERS")
	for first := 0; first < len(e.Blocks); {
		end := first + 1
		for end < len(e.Blocks) && slices.Equal(e.Blocks[end].Holders, e.Blocks[first].Holders) {
			end++
		}
		span := fmt.Sprint(first + 1)
		if end > first+1 {
			span = fmt.Sprintf("%d-%d", first+1, end)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", span, printable(e.Blocks[end-1].Key), holderList(e.Blocks[first].Holders))
		first = end
	}
	_ = w.Flush()
	var parts []string
	for _, s := range stages {
		if us, ok := e.StagesUS[s]; ok {
			parts = append(parts, fmt.Sprintf("%s %s", s, formatTime(time.Duration(us*float64(time.Microsecond)))))
		}
	}
	fmt.Fprintf(out, "\nserver: %s\n", strings.Join(parts, ", "))
}

func holderList(holders []client.Holder) string {
	if len(holders) == 0 {
		return "nobody"
	}
	parts := make([]string, len(holders))
	for i, h := range holders {
		parts[i] = printable(h.Pod)
		if h.Rank != 0 {
			parts[i] += fmt.Sprintf(" rank %d", h.Rank)
		}
		if h.Tier != "gpu" {
			parts[i] += " (" + printable(h.Tier) + ")"
		}
	}
	return strings.Join(parts, ", ")
}

// tierList writes the blocks by tier, the most first.
func tierList(tiers map[string]int) string {
	names := slices.SortedFunc(maps.Keys(tiers), func(a, b string) int {
		return cmp.Or(cmp.Compare(tiers[b], tiers[a]), cmp.Compare(a, b))
	})
	for i, n := range names {
		names[i] = fmt.Sprintf("%s %d", printable(n), tiers[n])
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, ", ")
}

// formatTime writes a time with three digits or so.
func formatTime(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.0f us", float64(d.Nanoseconds())/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1e3)
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}
