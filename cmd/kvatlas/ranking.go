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
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/terminal"
)

// writeScore writes a ranking for people. late says why the prompt was not tokenized in
// time, where that is so.
func writeScore(out io.Writer, model string, r *client.ScoreResponse, took time.Duration, late string) {
	for _, line := range verdicts(r, late) {
		fmt.Fprintln(out, line)
	}
	if len(r.Scores) > 0 {
		writeRanking(out, r)
	}
	fmt.Fprintf(out, "\n%s: %s (%s), %s of %d, %s\n", terminal.Printable(model),
		cli.Count(r.Tokens.Total, "token"), terminal.Printable(r.Tokens.Source), cli.Count(r.Blocks.Total, "block"), r.Blocks.Size, formatTime(took))
	if r.Explain != nil && len(r.Explain.Blocks) > 0 {
		writeExplanation(out, r.Explain)
	}
}

// writeRanking writes the table of a ranking, with what engines can reuse where that is
// less than they hold.
func writeRanking(out io.Writer, r *client.ScoreResponse) {
	less := false
	for _, m := range r.Matched {
		less = less || m.Reusable != nil && *m.Reusable < m.Tokens
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "POD\tSCORE\tBLOCKS\tTOKENS")
	if less {
		fmt.Fprint(w, "\tREUSABLE")
	}
	fmt.Fprintln(w, "\tTIERS")
	for _, pod := range r.Ranking() {
		m := r.Matched[pod]
		fmt.Fprintf(w, "%s\t%g\t%d\t%d", terminal.Printable(pod), r.Scores[pod], m.Blocks, m.Tokens)
		if less {
			reusable := 0
			if m.Reusable != nil {
				reusable = *m.Reusable
			}
			fmt.Fprintf(w, "\t%d", reusable)
		}
		fmt.Fprintf(w, "\t%s\n", tierList(m.Tiers))
	}
	_ = w.Flush() // out's errors are those of a closed terminal
	if r.LeftOut > 0 {
		fmt.Fprintf(out, "and %s\n", cli.Count(r.LeftOut, "more pod"))
	}
}

// verdicts say in words what the numbers do not, the most important first: an
// empty ranking means four different things.
func verdicts(r *client.ScoreResponse, late string) (lines []string) {
	if r.Degraded != nil {
		reason, known := degradations[r.Degraded.Reason]
		switch {
		case r.Degraded.Reason == tokenizationBudget:
			reason = late
		case !known:
			reason = terminal.Printable(r.Degraded.Reason)
		}
		lines = append(lines, "this answer is incomplete, its scores are lower bounds: "+reason)
	} else if !r.Tokens.Exact {
		lines = append(lines, "only a part of the prompt is tokenized yet, the scores are lower bounds: ask again, or with --mode sync")
	}
	if len(r.Scores) > 0 || indexFailed(r) {
		return lines
	}
	switch {
	case r.Blocks.Total > 0:
		lines = append(lines, "no pod holds the first block of what was asked for (are the model's name and the tokens those that the blocks were written with? docs/operations.md, \"Why is the score 0?\")")
	case r.Tokens.Exact:
		lines = append(lines, fmt.Sprintf("the prompt is shorter than a block of %d tokens, so there is nothing to match", r.Blocks.Size))
	}
	return lines
}

// tokenizationBudget is the reason whose words depend on what the server has loaded.
const tokenizationBudget = "tokenization_budget"

// tokenizationBusy is the reason where the tokenizer's queue is full.
const tokenizationBusy = "tokenization_busy"

// degradations are the other reasons of incomplete answers, and what to do.
var degradations = map[string]string{
	tokenizationBusy:    "the tokenizer's queue is full: ask again",
	"multimodal":        "media in the chat whose tokens the server cannot know: what comes before them is scored",
	"index_unavailable": "the server cannot reach its index; this says nothing about the pods",
	"index_timeout":     "the index did not answer in time",
	"index_stale":       "the server cannot reach Redis; its copy of the index has answered, which grows old",
}

// indexFailed reports whether the index could not be asked at all.
func indexFailed(r *client.ScoreResponse) bool {
	return r.Degraded != nil && (r.Degraded.Reason == "index_unavailable" || r.Degraded.Reason == "index_timeout")
}

// promptUnread reports whether nothing of the prompt was tokenized in time.
func promptUnread(r *client.ScoreResponse) bool {
	return r.Tokens.Total == 0 && r.Degraded != nil && (r.Degraded.Reason == tokenizationBudget || r.Degraded.Reason == tokenizationBusy)
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
		fmt.Fprintf(w, "%s\t%s\t%s\n", span, terminal.Printable(e.Blocks[end-1].Key), holderList(e.Blocks[first].Holders))
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
		parts[i] = terminal.Printable(h.Pod)
		if h.Rank != 0 {
			parts[i] += fmt.Sprintf(" rank %d", h.Rank)
		}
		switch {
		case h.Kind != "":
			parts[i] += " (" + terminal.Printable(h.Tier) + ", " + terminal.Printable(h.Kind) + ")"
		case h.Tier != "gpu":
			parts[i] += " (" + terminal.Printable(h.Tier) + ")"
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
		names[i] = fmt.Sprintf("%s %d", terminal.Printable(n), tiers[n])
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
