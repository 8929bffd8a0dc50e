package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

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

// slowAtFirst has the last of some engines take so many times as long until a time.
func slowAtFirst(pods []trial.Pod, factor float64, until time.Duration) []trial.Pod {
	if factor > 0 {
		last := &pods[len(pods)-1]
		last.Slow, last.SlowUntil = factor, until
	}
	return pods
}

// recorded are the scenarios of the recorded conversations.
func recorded(seeds int) (out []scenario) {
	for _, s := range []struct {
		name                   string
		pods, together, blocks int
		speeds                 []float64
		slow                   float64 // the last engine in the first minute
	}{
		{"plenty of room", 8, 24, 48_000, nil, 0},
		{"room", 8, 24, 12_000, nil, 0},
		{"little room", 8, 24, 6_000, nil, 0},
		{"very little room", 8, 24, 3_000, nil, 0},
		{"few chats", 8, 4, 12_000, nil, 0},
		{"few chats, little room", 4, 4, 2_000, nil, 0},
		{"many chats", 8, 48, 12_000, nil, 0},
		{"many chats, little room", 8, 48, 6_000, nil, 0},
		{"two slow of eight", 8, 24, 12_000, []float64{1, 1, 1, 3}, 0},
		{"two speeds", 8, 24, 12_000, []float64{1, 2}, 0},
		{"two speeds, little room", 8, 24, 6_000, []float64{1, 2}, 0},
		{"two engines, few chats", 2, 4, 12_000, nil, 0},
		{"few chats, one slow of four", 4, 4, 12_000, []float64{1, 1, 1, 3}, 0},
		{"two engines, few chats, one slow at first", 2, 4, 12_000, nil, 8},
		{"room, one slow at first", 8, 24, 12_000, nil, 8},
	} {
		out = append(out, scenario{name: s.name, trials: seeds, config: func(n int) trial.Config {
			pods := slowAtFirst(fleet(s.pods, s.blocks, 16, s.speeds...), s.slow, time.Minute)
			w := trial.Work{Talks: trial.Recorded((s.blocks - 1) * 16), Together: s.together}
			w.Shuffle(uint64(n + 1))
			return trial.Config{Pods: pods, Work: w, Seed: uint64(n + 1)}
		}})
	}
	return append(out, bursts(seeds, "bursts of one document", 12_000), bursts(seeds, "bursts with one beginning", 4_000), small(10*seeds, "two small engines", 0), small(10*seeds, "two small engines, one slow at first", 5))
}

// bursts are eight engines and six requests with one beginning of so many tokens. They come
// within 50 ms, four times a second, as when a program asks several questions on one document.
// The questions themselves are of 1,000 tokens each.
func bursts(seeds int, name string, tokens uint32) scenario {
	return scenario{name: name, trials: seeds, config: func(n int) trial.Config {
		rng := rand.New(rand.NewPCG(uint64(n), 7))
		var w trial.Work
		for burst := range uint32(80) {
			for question := range uint32(6) {
				w.Talks = append(w.Talks, trial.Talk{
					At: time.Duration(burst)*time.Second/4 + time.Duration(rng.IntN(50))*time.Millisecond,
					Turns: []trial.Turn{{Output: 50, Prompt: func() []uint32 {
						out := make([]uint32, tokens+1000)
						for i := range out {
							out[i] = burst<<16 | uint32(i)
							if uint32(i) >= tokens {
								out[i] = 1<<30 | burst<<16 | question<<12 | uint32(i) - tokens
							}
						}
						return out
					}}},
				})
			}
		}
		return trial.Config{Pods: fleet(8, 12_000, 16), Work: w, Seed: uint64(n + 1)}
	}}
}

// small is two small engines, as two that share a machine's CPU. They get 16 chats of five
// turns, of which about two wait for an answer at a time. The caches have room for all chats
// only together.
func small(seeds int, name string, slow float64) scenario {
	return scenario{name: name, trials: seeds, config: func(n int) trial.Config {
		pods := fleet(2, 1600, 16, 4)
		var w trial.Work
		for chat := range 16 {
			rng := rand.New(rand.NewPCG(uint64(n), uint64(chat)))
			var t trial.Talk
			for turn := range 5 {
				tokens := 400 * (turn + 2)
				t.Turns = append(t.Turns, trial.Turn{Think: time.Duration(rng.ExpFloat64() * float64(2*time.Second)), Output: 8, Prompt: func() []uint32 {
					out := make([]uint32, tokens)
					for i := range out {
						out[i] = uint32(1000*(i/400) + chat)
					}
					for i := range 400 { // one of four system prompts
						out[i] = uint32(1000*n + chat%4)
					}
					return out
				}})
			}
			w.Talks = append(w.Talks, t)
		}
		w.Together = len(w.Talks)
		return trial.Config{Pods: slowAtFirst(pods, slow, 3*time.Second), Work: w, Seed: uint64(n + 1)}
	}}
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
