package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/trial"
)

// scenario is work and engines to compare policies on.
type scenario struct {
	name string
	// trials is over how many trials it is averaged, config what the n-th of them is.
	trials int
	config func(n int) trial.Config
}

// fleet returns n engines, each with room for so many blocks; speeds are their prefill and
// decode times over those of the default, in turn.
func fleet(n, blocks, blockSize int, speeds ...float64) []trial.Pod {
	out := make([]trial.Pod, n)
	for i := range out {
		e := engine.Config{Blocks: blocks, BlockSize: blockSize}
		if len(speeds) > 0 {
			x := speeds[i%len(speeds)]
			e.Timing = engine.Timing{Prefill: 4 * x, Decode: 1.5 * x}
		}
		out[i] = trial.Pod{Name: fmt.Sprint("p", i), Engine: e}
	}
	return out
}

// recorded are the scenarios of the recorded conversations.
func recorded(seeds int) (out []scenario) {
	for _, s := range []struct {
		name                   string
		pods, together, blocks int
		speeds                 []float64
	}{
		{"plenty of room", 8, 24, 48_000, nil},
		{"room", 8, 24, 12_000, nil},
		{"little room", 8, 24, 6_000, nil},
		{"very little room", 8, 24, 3_000, nil},
		{"few chats", 8, 4, 12_000, nil},
		{"few chats, little room", 4, 4, 2_000, nil},
		{"many chats", 8, 48, 12_000, nil},
		{"many chats, little room", 8, 48, 6_000, nil},
		{"two slow of eight", 8, 24, 12_000, []float64{1, 1, 1, 3}},
		{"two speeds", 8, 24, 12_000, []float64{1, 2}},
		{"two speeds, little room", 8, 24, 6_000, []float64{1, 2}},
	} {
		out = append(out, scenario{name: s.name, trials: seeds, config: func(n int) trial.Config {
			pods := fleet(s.pods, s.blocks, 16, s.speeds...)
			w := trial.Work{Talks: trial.Recorded((s.blocks - 1) * 16), Together: s.together}
			w.Shuffle(uint64(n + 1))
			return trial.Config{Pods: pods, Work: w, Seed: uint64(n + 1)}
		}})
	}
	return out
}

var blockSizeOf = regexp.MustCompile(`_b(\d+)\.jsonl$`)

// traceRoom is how many tokens an engine has room for, with traces.
const traceRoom = 1 << 20

// fromTraces are the traces of a directory, each at its own pace and slower.
func fromTraces(dir string) (out []scenario, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		m := blockSizeOf.FindStringSubmatch(file)
		if m == nil {
			continue
		}
		size, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, err
		}
		for _, scale := range []float64{0.8, 1, 2} {
			f, err := os.Open(file)
			if err != nil {
				return nil, err
			}
			talks, err := trial.ReadTrace(f, size, traceRoom-size, scale)
			_ = f.Close() // it was only read
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			out = append(out, scenario{name: fmt.Sprintf("%s x%g", filepath.Base(file), scale), trials: 1, config: func(int) trial.Config {
				return trial.Config{Pods: fleet(8, traceRoom/size, size), Work: trial.Work{Talks: talks}}
			}})
		}
	}
	return out, nil
}
