package server_test

import (
	"fmt"
	"strings"
	"testing"
)

// storedBlocks is a BlockStored of engine blocks of size tokens that hold the tokens from first on.
func storedBlocks(hashes, parent string, first, tokens, size int, rest string) string {
	return fmt.Sprintf(`{"type":"BlockStored","block_hashes":[%s],"parent_block_hash":%s,"token_ids":[%s],"block_size":%d,"medium":"GPU"%s}`, hashes, parent, counted(first, first+tokens-1), size, rest)
}

// TestCaseOffloadEventsWithoutTokens offloads as vLLM 0.11 to 0.22 do, several hashes in an
// event without tokens, in an order that is not the chain's.
func TestCaseOffloadEventsWithoutTokens(t *testing.T) {
	for name, offloaded := range map[string]string{
		"in order": "1,2,3,4", "backwards": "4,3,2,1", "one that is not known": "9,1,2,3,4", "twice": "1,2,1,2,3,4", "one each": "1],[2],[3],[4",
	} {
		t.Run(name, func(t *testing.T) {
			eachLives(t, func(l *lives) {
				l.next("p", storedBlocks("1,2,3,4", "null", 1, 16, 4, ""))
				for part := range strings.SplitSeq(offloaded, "],[") {
					l.next("p", `{"type":"BlockStored","block_hashes":[`+part+`],"parent_block_hash":null,"token_ids":[],"block_size":4,"medium":"CPU"}`)
				}
				l.score("m", 16, "p/0=4")
				l.next("p", `{"type":"BlockRemoved","block_hashes":[1,2,3,4],"medium":"GPU"}`)
				l.score("m", 16, "p/0=4") // all of them are in the CPU's memory
				l.next("p", `{"type":"BlockRemoved","block_hashes":[3],"medium":"CPU"}`)
				l.score("m", 16, "p/0=2")
			})
		})
	}
}

// TestCasePageAnnouncedTwice has what a repeated store means depend on the engine of the
// push, in one process.
func TestCasePageAnnouncedTwice(t *testing.T) {
	for engine, want := range map[string]string{"sglang": "p/0=1", "trtllm": "p/0=1", "vllm": "p/0=2", "": "p/0=2"} {
		t.Run(engine, func(t *testing.T) {
			eachLives(t, func(l *lives) {
				page := storedBlocks("2", "1", 5, 4, 4, "")
				l.engine = engine
				l.next("p", storedBlocks("1", "null", 1, 4, 4, "")+","+page)
				l.next("p", page)
				l.next("p", `{"type":"BlockRemoved","block_hashes":[2],"medium":"GPU"}`)
				l.score("m", 8, want)
			})
		})
	}
	t.Run("by the registration", func(t *testing.T) {
		eachLives(t, func(l *lives) {
			l.post("/v1/pods", `{"name":"p","model":"m","engine":"sglang"}`)
			page := storedBlocks("2", "1", 5, 4, 4, "")
			l.next("p", storedBlocks("1", "null", 1, 4, 4, "")+","+page)
			l.next("p", page)
			l.next("p", `{"type":"BlockRemoved","block_hashes":[2],"medium":"GPU"}`)
			l.score("m", 8, "p/0=1")
		})
	})
}

// TestCaseCopiesOnHybridModels computes a prompt again from the root, where a window's
// blocks are gone: the full-attention group has two physical blocks of each then.
func TestCaseCopiesOnHybridModels(t *testing.T) {
	full := `,"group_idx":0,"kv_cache_spec_kind":"full_attention"`
	window := `,"group_idx":1,"kv_cache_spec_kind":"sliding_window","kv_cache_spec_sliding_window":4`
	eachLives(t, func(l *lives) {
		l.engine = "vllm"
		for range 2 {
			l.next("p", storedBlocks("1,2", "null", 1, 8, 4, full)+","+storedBlocks("1,2", "null", 1, 8, 4, window))
		}
		l.next("p", `{"type":"BlockRemoved","block_hashes":[1,2],"medium":"GPU","group_idx":0}`)
		l.score("m", 8, "p/0=2")
		l.next("p", `{"type":"BlockRemoved","block_hashes":[1,2],"medium":"GPU","group_idx":0}`)
		l.score("m", 8, "")
	})
}

// TestCaseSelfDescribingOffloadWithSalt offloads with tokens and without what else went
// into the hash.
func TestCaseSelfDescribingOffloadWithSalt(t *testing.T) {
	salted := func(l *lives, want string) {
		l.t.Helper()
		answer := l.post("/v1/score", `{"model":"m","tokens":[`+counted(1, 8)+`],"cache_salt":"tenant-a"}`)
		if !strings.Contains(answer, want) {
			l.t.Errorf("%s, want %s", answer, want)
		}
	}
	eachLives(t, func(l *lives) {
		l.engine = "vllm"
		l.next("p", storedBlocks("1,2", "null", 1, 8, 4, `,"extra_keys":[["tenant-a"],null]`))
		salted(l, `"p":2`)
		l.next("p", strings.Replace(storedBlocks("1", "null", 1, 4, 4, ""), "GPU", "CPU", 1))
		l.next("p", strings.Replace(storedBlocks("2", "1", 5, 4, 4, ""), "GPU", "CPU", 1))
		salted(l, `"p":2`)
		l.score("m", 8, "") // no pod holds it without the salt
		l.next("p", `{"type":"BlockRemoved","block_hashes":[1,2],"medium":"GPU"}`)
		salted(l, `"p":1.6`)
	})
}

// TestCaseGroupsOfTwoBlockSizes needs both groups, whichever comes first.
func TestCaseGroupsOfTwoBlockSizes(t *testing.T) {
	group := func(i int) string {
		return fmt.Sprintf(`,"group_idx":%d,"kv_cache_spec_kind":"full_attention"`, i)
	}
	large, small := storedBlocks("64", "null", 1, 16, 16, group(0)), storedBlocks("16,32,48,64", "null", 1, 16, 4, group(1))
	for name, c := range map[string]struct{ stored, removed, want string }{
		"small second, tail lost":  {large + "," + small, `{"type":"BlockRemoved","block_hashes":[64],"medium":"GPU","group_idx":1}`, "p/0=3"},
		"small first, large lost":  {small + "," + large, `{"type":"BlockRemoved","block_hashes":[64],"medium":"GPU","group_idx":0}`, ""},
		"small first, tail lost":   {small + "," + large, `{"type":"BlockRemoved","block_hashes":[64],"medium":"GPU","group_idx":1}`, "p/0=3"},
		"small second, large lost": {large + "," + small, `{"type":"BlockRemoved","block_hashes":[64],"medium":"GPU","group_idx":0}`, ""},
		"small second, middle":     {large + "," + small, `{"type":"BlockRemoved","block_hashes":[32],"medium":"GPU","group_idx":1}`, "p/0=1"},
	} {
		t.Run(name, func(t *testing.T) {
			eachLives(t, func(l *lives) {
				l.next("p", c.stored)
				l.score("m", 16, "p/0=4")
				l.next("p", c.removed)
				l.score("m", 16, c.want)
			})
		})
	}
}

// TestCaseLayerGroupsOfOneWindow needs all layer groups of TensorRT-LLM's widest window, in
// a process that has not seen the first pushes too.
func TestCaseLayerGroupsOfOneWindow(t *testing.T) {
	block := func(hash, first, n int) string {
		var tokens []string
		for i := range n {
			tokens = append(tokens, fmt.Sprintf(`{"token_id":%d,"token_extra_id":0}`, first+i))
		}
		return fmt.Sprintf(`{"block_hash":%d,"tokens":[%s],"cache_level":0}`, hash, strings.Join(tokens, ","))
	}
	event := func(data string, window, group int) string {
		return fmt.Sprintf(`{"data":{%s},"window_size":%d,"layer_group_id":%d}`, data, window, group)
	}
	stored := func(parent, blocks string) string {
		return `"type":"stored","parent_hash":` + parent + `,"blocks":[` + blocks + `]`
	}
	removed := `"type":"removed","block_hashes":[2]`
	eachLives(t, func(l *lives) {
		l.engine = "trtllm"
		chain := stored("null", block(1, 1, 4)+","+block(2, 5, 4))
		l.next("p", event(chain, 4096, 0)+","+event(chain, 4096, 1))
		l.score("m", 8, "p/0=2")
		l.next("p", event(removed, 4096, 0))
		l.score("m", 8, "p/0=1")
		l.next("p", event(stored("1", block(2, 5, 4)), 4096, 0))
		l.score("m", 8, "p/0=2")
		// A narrower window says nothing of prefixes, in any process that takes the push; nor do partial
		// blocks.
		l.next("p", event(removed, 64, 2))
		l.next("p", event(stored("2", block(9, 9, 4)), 64, 2))
		l.next("p", event(stored("2", block(10, 9, 3)), 4096, 0)+","+event(stored("2", block(10, 9, 3)), 4096, 1))
		l.score("m", 12, "p/0=2")
		// An engine that begins anew has nothing.
		l.next("p", event(`"type":"created"`, 4096, 0)+","+event(`"type":"created"`, 64, 2))
		l.score("m", 8, "")
	})
}

// TestPartialBlocks has a pod's partial blocks known by the blocks that it pushed before,
// with another process and without a sequence too.
func TestPartialBlocks(t *testing.T) {
	eachLives(t, func(l *lives) {
		l.engine = "trtllm"
		of := func(tokens string) string {
			return `{"data":{"type":"stored","blocks":[{"block_hash":1,"tokens":[` + tokens + `]}]}}`
		}
		l.next("a", of("1,2,3"))
		if answer := l.next("a", of("1,2")); !strings.Contains(answer, `"skipped_blocks":{"partial":1}`) {
			t.Error(answer)
		}
		if answer := l.next("b", of("1,2")); !strings.Contains(answer, `"applied":1`) {
			t.Error(answer)
		}
	})
}

// TestCaseIndexBlocksSmallerThanEngineBlocks holds an engine block of 8 tokens, two index
// blocks. A prompt that parts within it has nothing to reuse, one behind it has all.
func TestCaseIndexBlocksSmallerThanEngineBlocks(t *testing.T) {
	score := func(l *lives, tokens, want string) {
		l.t.Helper()
		answer := l.post("/v1/score", `{"model":"m","tokens":[`+tokens+`],"pods":["p"]}`)
		if !strings.Contains(answer, want) {
			l.t.Errorf("tokens %s: %s, want %s", tokens, answer, want)
		}
	}
	eachLives(t, func(l *lives) {
		l.engine = "vllm"
		l.next("p", storedBlocks("1,2", "null", 1, 16, 8, ""))
		score(l, counted(1, 4)+",1001,1002,1003,1004,1005", `"scores":{"p":0}`)
		score(l, counted(1, 12)+",1001,1002,1003,1004,1005", `"scores":{"p":2}`)
		score(l, counted(1, 12)+",1001,1002,1003,1004,1005", `"tokens":12,"reusable":8`)
		score(l, counted(1, 17), `"scores":{"p":4}`)
		// The last token is always computed, and with it its block.
		score(l, counted(1, 16), `"scores":{"p":2}`)
	})
}
