package rechunk

import (
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

func TestSizes(t *testing.T) {
	for _, size := range []int{1, 3, 16, 48, 64, 100, 128, 256, 2048} {
		r := newRig(t, Config{BlockSize: 64})
		tokens := count(0, max(320, 2*size))
		hashes := prompt(tokens, size)
		full := len(hashes) * size / 64
		r.do(storedOf(tokens, size, 0))
		r.want(store.GPU, full)
		for i := 0; i < len(hashes); i += max(1, len(hashes)/7) {
			r.do(removed(hashes[i]))
			if i == 0 {
				continue
			}
			r.takeOver()
			e := storedOf(tokens, size, i)
			e.Hashes, e.Tokens = e.Hashes[:1], e.Tokens[:size]
			r.do(e)
		}
		for i := len(hashes) - 1; i >= 0; i -= max(1, len(hashes)/50) {
			if i%3 == 0 {
				r.takeOver()
			}
			r.do(removed(hashes[i]))
		}
	}
}

func TestForks(t *testing.T) {
	for _, size := range []int{2, 16, 32, 100} {
		t.Log(size)
		r := newRig(t, Config{BlockSize: 64})
		common := count(0, 96)
		at := len(common) / size
		var all [][]event.Hash
		for i := range 10 {
			tokens := slices.Concat(common[:96], count(1000*(i+1), 70))
			if i == 0 {
				r.do(storedOf(tokens, size, 0))
			} else {
				r.do(storedOf(tokens, size, at))
			}
			all = append(all, prompt(tokens, size))
			if i%5 == 4 {
				r.takeOver()
			}
		}
		if at > 0 {
			// The block before the fork goes and comes back.
			r.do(removed(all[0][at-1]))
			r.takeOver()
			e := storedOf(common, size, at-1)
			r.do(e)
		}
		for i, hashes := range all {
			for j := len(hashes) - 1; j >= at; j-- {
				r.apply(removed(hashes[j]))
			}
			if i%4 == 0 {
				r.write()
				r.takeOver()
			}
		}
		r.write()
		for j := at - 1; j >= 0; j-- {
			r.do(removed(all[0][j]))
		}
		for k := range r.sink.kept {
			if k != markKey && k.Hash != formHash {
				t.Fatalf("size %d: the map still has %+v", size, k)
			}
		}
	}
}

// TestWide has runs of more parts than a word has bits.
func TestWide(t *testing.T) {
	for _, size := range []int{1, 3} {
		r := newRig(t, Config{BlockSize: 200})
		tokens := count(0, 420)
		hashes := prompt(tokens, size)
		r.do(storedOf(tokens, size, 0))
		r.want(store.GPU, 2)
		other := slices.Concat(tokens[:150], count(5000, 120))
		r.do(storedOf(other, size, 150/size))
		r.want(store.GPU, 3)
		for _, at := range []int{199 / size, 120 / size, 64 / size, 63 / size} {
			r.do(removed(hashes[at]))
			r.takeOver()
			e := storedOf(tokens, size, at)
			e.Hashes, e.Tokens = e.Hashes[:1], e.Tokens[:size]
			r.do(e)
			r.want(store.GPU, 3)
		}
		e := storedOf(tokens, size, 0)
		e.Medium = "CPU"
		r.do(e)
		r.want(store.CPU, 2)
		r.do(event.Event{Kind: event.Cleared})
		r.takeOver()
		r.do(removed(hashes[0]))
		r.want(store.GPU, 0)
		r.want(store.CPU, 2)
	}
}
