package bench

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table is a table of Markdown whose columns are aligned, to be read as it is.
type table struct {
	rows [][]string
}

func newTable(columns ...string) *table { return &table{rows: [][]string{columns}} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) String() string {
	width := make([]int, len(t.rows[0]))
	for _, r := range t.rows {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var sb strings.Builder
	for n, r := range t.rows {
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i == 0 {
				sb.WriteString("| " + c + pad + " |")
			} else {
				sb.WriteString(" " + pad + c + " |")
			}
		}
		sb.WriteByte('\n')
		if n > 0 {
			continue
		}
		for i := range r {
			if i == 0 {
				sb.WriteString("|" + strings.Repeat("-", width[i]+2) + "|")
			} else {
				sb.WriteString(strings.Repeat("-", width[i]+1) + ":|")
			}
		}
		sb.WriteByte('\n')
	}
	return sb.String()
}

// short writes a figure with three digits that count.
func short(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 99.95:
		return Group(int64(v + 0.5))
	case v >= 9.995:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.0995:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

// Group writes a number with commas.
func Group(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// String writes the median and the quartiles.
func (s Spread) String() string {
	return fmt.Sprintf("%s (%s-%s)", short(s.Median), short(s.Low), short(s.High))
}

func times(s Spread) string {
	return fmt.Sprintf("%sx (%s-%s)", short(s.Median), short(s.Low), short(s.High))
}

func writeRedis(w io.Writer, r *RedisReport) error {
	var sb strings.Builder
	fmt.Fprintf(&sb, "%s; %s.\nLoad %s at the beginning, %s at the end; %.0f s in all.\n", r.Server, r.Machine, r.LoadBefore, r.LoadAfter, r.Took.Seconds())
	if r.Keys > 0 {
		fmt.Fprintf(&sb, "The index has %s blocks, each held by %d pods. Figures are medians, with quartiles in brackets;\nratios are of samples taken next to each other.\n", Group(int64(r.Keys)), r.Pods)
	}
	if len(r.Memory) > 0 {
		sb.WriteString("\n### Memory\n\n" + memoryTable(r.Memory))
		sb.WriteString("\nBytes are the growth of used_memory a block, the table of keys included; ratios are to the JSON fields.\nkvatlas has a map for each pod, the peer one for all.\n")
	}
	if len(r.Lookup) > 0 {
		sb.WriteString("\n### Lookup\n\n" + lookupTable(r.Lookup))
	}
	if r.Half != nil {
		sb.WriteString("\n### Half a hit\n\n" + halfTable(r.Half))
	}
	if len(r.Ingest) > 0 {
		sb.WriteString("\n### Ingest\n\n" + eventTable(r.Ingest))
	}
	if len(r.Evict) > 0 {
		sb.WriteString("\n### Evict\n\n" + eventTable(r.Evict))
	}
	if len(r.Evict) == len(r.Ingest) && len(r.Evict) > 0 {
		sb.WriteString("\n### Ingest of a full cache\n\nAn engine whose cache is full evicts a block for each that it stores: the sums of the medians above.\n\n" + lifeTable(r.Ingest, r.Evict))
	}
	if r.Retire != nil {
		sb.WriteString("\n### Retire\n\n" + retireTable(r.Retire))
	}
	_, err := io.WriteString(w, sb.String())
	return err
}

func memoryTable(rows []MemoryRow) string {
	t := newTable("layout", "pods a block", "bytes a block", "ratio", "MEMORY USAGE", "map", "with maps", "ratio")
	for _, r := range rows {
		t.add(r.Layout, fmt.Sprint(r.Holders), short(r.Bytes), short(r.Ratio), short(r.Usage), short(r.Maps), short(r.WithMaps), short(r.RatioWithMaps))
	}
	return t.String()
}

func lookupTable(rows []LookupRow) string {
	t := newTable("lookup", "ms", "times kvatlas", "server us", "client us", "CPU", "bytes sent", "received", "trips")
	for _, r := range rows {
		for i, s := range r.Sides {
			ratio, cpu := "", ""
			if i > 0 {
				ratio, cpu = times(s.Ratio), cpuRatio(r.Sides, i)
			}
			t.add(fmt.Sprintf("%s blocks, %d %% held: %s", Group(int64(r.Blocks)), r.Hit, s.Name), s.Millis.String(), ratio,
				short(s.ServerMicros), short(s.ClientMicros), cpu, short(s.Sent), short(s.Received), short(s.RoundTrips))
		}
	}
	return t.String()
}

// halfTable has what a half hit costs of a whole one.
func halfTable(r *LookupRow) string {
	t := newTable("lookup", "ms", "server us", "client us", "bytes sent", "received", "trips")
	for _, s := range r.Sides {
		t.add(Group(int64(r.Blocks))+" blocks, "+s.Name, s.Millis.String(), short(s.ServerMicros), short(s.ClientMicros), short(s.Sent), short(s.Received), short(s.RoundTrips))
	}
	all, half := r.Sides[0], r.Sides[1]
	part := func(of func(Side) float64) string { return short(of(half)/max(1e-9, of(all))) + "x" }
	t.add("half of all", times(half.Ratio), part(func(s Side) float64 { return s.ServerMicros }), part(func(s Side) float64 { return s.ClientMicros }),
		part(func(s Side) float64 { return s.Sent }), part(func(s Side) float64 { return s.Received }), part(func(s Side) float64 { return s.RoundTrips }))
	return t.String()
}

func eventTable(rows []EventRow) string {
	t := newTable("event", "events/s", "ms an event", "times the first", "times the second", "server us", "client us", "CPU", "bytes sent", "received", "trips")
	for _, r := range rows {
		for i, s := range r.Sides {
			ratio, second, cpu := "", "", ""
			if i > 0 {
				ratio, cpu = times(s.Ratio), cpuRatio(r.Sides, i)
			}
			if i > 1 && s.RatioToSecond != nil {
				second = times(*s.RatioToSecond)
			}
			t.add(fmt.Sprintf("%d blocks, %d at a time: %s", r.Blocks, r.Writers, s.Name), short(1e3/s.Millis.Median), s.Millis.String(), ratio, second,
				short(s.ServerMicros), short(s.ClientMicros), cpu, short(s.Sent), short(s.Received), short(s.RoundTrips))
		}
	}
	return t.String()
}

// lifeTable has what blocks cost from their storing to their eviction.
func lifeTable(stored, evicted []EventRow) string {
	t := newTable("stored and evicted", "ms", "times the first", "times the second", "CPU us", "CPU", "bytes sent", "trips")
	for i, r := range stored {
		sum := func(j int, of func(Side) float64) float64 { return of(r.Sides[j]) + of(evicted[i].Sides[j]) }
		millis := func(s Side) float64 { return s.Millis.Median }
		cpu := func(s Side) float64 { return s.ServerMicros + s.ClientMicros }
		for j, s := range r.Sides {
			t.add(fmt.Sprintf("%d blocks, %d at a time: %s", r.Blocks, r.Writers, s.Name), short(sum(j, millis)),
				short(sum(j, millis)/sum(0, millis))+"x", short(sum(j, millis)/sum(1, millis))+"x", short(sum(j, cpu)), short(sum(j, cpu)/sum(0, cpu))+"x",
				short(sum(j, func(s Side) float64 { return s.Sent })), short(sum(j, func(s Side) float64 { return s.RoundTrips })))
		}
	}
	return t.String()
}

// cpuRatio is the CPU time of both ends as a multiple of the first side's.
func cpuRatio(sides []Side, i int) string {
	return short((sides[i].ServerMicros+sides[i].ClientMicros)/max(1e-9, sides[0].ServerMicros+sides[0].ClientMicros)) + "x"
}

func retireTable(r *Retirement) string {
	var sb strings.Builder
	fmt.Fprintf(&sb, "A pod with %s blocks, %d times: the call takes %s ms, another client's lookup is back without the pod after %s ms, at worst %s.\n\n",
		Group(int64(r.Blocks)), r.Times, r.Call, r.Visible, short(r.Worst))
	t := newTable("sweep", "s", "blocks cleaned", "steps", "CPU ms a step", "PINGs", "median ms", "99.9 % ms", "longest ms", "over 2 ms")
	row := func(name string, run SweepRun) {
		st := run.Stalls
		t.add(name, short(run.Seconds), Group(int64(run.Cleaned)), fmt.Sprint(run.Steps), short(run.StepCPU),
			Group(int64(st.Pings)), short(st.Median), short(st.P999), short(st.Longest), fmt.Sprint(st.Over))
	}
	row("none: an idle server", SweepRun{Seconds: r.IdleSeconds, Stalls: r.Idle})
	row("after one pod", r.One)
	row("after all pods", r.All)
	sb.WriteString(t.String())
	if len(r.One.Commands) > 0 {
		sb.WriteString("\nCommands by the server's clock, ms:\n\n")
		t = newTable("sweep", "command", "median", "99 %", "99.9 %", "longest")
		for _, run := range []struct {
			name string
			SweepRun
		}{{"after one pod", r.One}, {"after all pods", r.All}} {
			for _, c := range run.Commands {
				t.add(run.name, c.Name, short(c.Median), short(c.P99), short(c.P999), short(c.Max))
			}
		}
		sb.WriteString(t.String())
	}
	if p := r.Peer; p.Blocks > 0 {
		fmt.Fprintf(&sb, "\nThe peer clears a pod of %s blocks, alone in the database, in %s s and %s round trips.\n", Group(int64(p.Blocks)), short(p.Seconds), Group(int64(p.RoundTrips)))
	}
	return sb.String()
}

func writeMemory(w io.Writer, r *MemoryReport) error {
	var sb strings.Builder
	fmt.Fprintf(&sb, "store/memory; %s.\nLoad %s at the beginning, %s at the end; %.0f s in all. CPU time of one thread; medians, with quartiles\nin brackets. bench/peers/dynamo measures Dynamo's indexers by the same shapes.\n",
		r.Machine, r.LoadBefore, r.LoadAfter, r.Took.Seconds())
	fmt.Fprintf(&sb, "\n### Find, of %s blocks\n\n", Group(int64(r.Blocks)))
	t := newTable("chain", "holders", "shape", "cold us", "ns/block", "hot us", "ns/block")
	for _, f := range r.Find {
		n := float64(f.Blocks)
		t.add(Group(int64(f.Blocks))+" blocks", fmt.Sprint(f.Holders), f.Shape, f.Cold.String(), short(f.Cold.Median*1e3/n), f.Hot.String(), short(f.Hot.Median*1e3/n))
	}
	sb.WriteString(t.String())
	sb.WriteString("\n### Apply, million blocks/s/core\n\n")
	t = newTable("event", "new", "again", "remove")
	for _, a := range r.Apply {
		t.add(fmt.Sprintf("%d blocks", a.Blocks), a.New.String(), a.Again.String(), a.Remove.String())
	}
	sb.WriteString(t.String())
	sb.WriteString("\n### Memory\n\n")
	t = newTable("index", "blocks", "bytes a block, counted", "heap")
	for _, s := range r.Size {
		t.add(s.What, Group(s.Blocks), short(s.Counted), short(s.Heap))
	}
	sb.WriteString(t.String())
	_, err := io.WriteString(w, sb.String())
	return err
}
