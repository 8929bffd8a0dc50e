package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// TestCaseCountersByHand sets counters, their limits and the epoch by hand to what they were
// and to what they cannot be. No id is given twice, writes go on, and the check names what is
// wrong.
func TestCaseCountersByHand(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	for _, field := range []string{"holder", "reserved", "ended", "swept", "run", "lease", "epoch"} {
		for _, value := range []string{"gone", "0", "1", "notanumber", "", "-5", "1e3", "0x10", "99999999999999999999", "9007199254740993", "4026531840"} {
			t.Run(field+" "+value, func(t *testing.T) {
				c := Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true, SweepDuty: 1}
				x, y := open(t, c), open(t, c)
				keys := manyKeys(6)
				given := map[store.HolderID]string{}
				note := func(life string) {
					t.Helper()
					reg := must.Get(y.Registry(t.Context()))(t)
					for _, h := range reg.Holders() {
						if was, ok := given[h.ID]; ok && was != h.Pod+life {
							t.Fatalf("id %d is given to %s, after %s", h.ID, h.Pod+life, was)
						}
						given[h.ID] = h.Pod + life
					}
				}
				for i, pod := range []string{"a", "b", "c"} {
					apply(t, x, batchOf(pod, store.Add, keys[i]))
				}
				note("1")
				for _, pod := range []string{"a", "b", "c"} {
					must.Get(x.Retire(t.Context(), pod))(t)
				}
				wantBlocks(t, y, keys[:3], "", "", "")
				key, del, set := x.space.Names.Count, []any{"hdel", x.space.Names.Count, field}, []any{"hset", x.space.Names.Count, field, value}
				if field == "epoch" {
					key, del, set = x.space.Names.Epoch, []any{"del", x.space.Names.Epoch}, []any{"set", x.space.Names.Epoch, value}
				}
				do := set
				if value == "gone" {
					do = del
				}
				must.OK(t, plain.Do(t.Context(), do...).Err())
				found := must.Get(x.Check(t.Context(), 0))(t)
				impossible := field != "run" && field != "lease" && value != "gone" && value != "0" && value != "1" && value != "4026531840" && (field != "epoch" || value != "") && (value != "9007199254740993" || field == "holder" || field == "reserved" || field == "epoch")
				if named := slices.ContainsFunc(found, func(f check.Finding) bool {
					return f.Level == check.Warn && strings.Contains(f.Found, key) && strings.Contains(f.Found, fmt.Sprintf("%q", value)) && f.Do != ""
				}); impossible && !named {
					t.Errorf("the check does not name %s = %q", field, value)
				}
				wantBlocks(t, y, keys[:3], "", "", "")
				for i, pod := range []string{"d", "a", "e"} {
					apply(t, x, batchOf(pod, store.Add, keys[3+i]))
				}
				note("2")
				for _, i := range []*Index{x, y, open(t, c)} {
					wantBlocks(t, i, keys, "", "", "", "d", "a", "e")
				}
				apply(t, y, batchOf("d", store.Clear), batchOf("a", store.Remove, keys[4]))
				mustBegin(t, y, "e", 1)
				for _, i := range []*Index{x, y} {
					wantBlocks(t, i, keys, "", "", "", "", "", "")
				}
				must.Get(y.Retire(t.Context(), "e"))(t)
				if p, err := x.Sweep(t.Context()); err != nil || !p.Done {
					t.Fatalf("sweep: %+v, %v", p, err)
				}
				for _, v := range blockValues(t, x, plain) {
					t.Errorf("%q is left after a sweep", v)
				}
			})
		}
	}
}

// TestCaseModelThatCannotBe writes settings of a model that cannot be: they count as none, and
// the next write fixes the model anew. What a later version may have written is left alone,
// and named with the cure.
func TestCaseModelThatCannotBe(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	for value, mends := range map[string]bool{
		"": true, "garbage": true, "[]": true, "null": true, "17": true, "{}": true, `{"block_size":0,"scheme":"native"}`: true,
		`{"block_size":-4,"scheme":"native"}`: true, `{"block_size":"x","scheme":"native"}`: true, `{"block_size":4.5,"scheme":"native"}`: true,
		`{"block_size":4}`: true, `{"block_size":4,"scheme":""}`: true, `{"block_size":4,"scheme":7}`: true,
		`{"block_size":1000000000,"scheme":"native"}`: false, `{"block_size":4,"scheme":"nat\nive"}`: false,
	} {
		t.Run(value, func(t *testing.T) {
			x := open(t, Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true})
			want := store.ModelInfo{Name: "x", BlockSize: 4, Scheme: "native"}
			must.Get(x.EnsureModel(t.Context(), store.ModelInfo{Name: "other", BlockSize: 8, Scheme: "native"}))(t)
			must.OK(t, plain.HSet(t.Context(), x.space.Names.Meta, "model:x", value).Err())
			found := must.Get(x.Check(t.Context(), 0))(t)
			if !slices.ContainsFunc(found, func(f check.Finding) bool {
				return f.Level == check.Warn && strings.Contains(f.Found, "model:x") && strings.Contains(f.Do, "HDEL "+x.space.Names.Meta)
			}) {
				t.Error("the check does not name it")
			}
			got, err := x.EnsureModel(t.Context(), want)
			if !mends {
				if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "HDEL "+x.space.Names.Meta+` "model:x"`) {
					t.Errorf("got %v, want the cure", err)
				}
				return
			}
			if err != nil || got != want {
				t.Errorf("got %v, %v", got, err)
			}
			reg, err := x.Registry(t.Context())
			if err != nil || reg.Models["x"] != want || reg.Models["other"].BlockSize != 8 {
				t.Errorf("the models are %v, %v", reg.Models, err)
			}
		})
	}
}

// TestMarksByHand: a mark that is no number is written anew; what the others say counts.
func TestMarksByHand(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	apply(t, x, batchOf("a", store.Add, 1))
	id := x.idsOf(t, 1)[0]
	for p, value := range []string{"garbage", "", "-1", "99999999999999999999", "4026531840"} {
		plain.Set(t.Context(), x.space.Names.High(p), value, 0)
	}
	plain.Del(t.Context(), x.space.Names.Count)
	apply(t, x, batchOf("b", store.Add, 2))
	if next := x.idsOf(t, 2)[0]; next <= id {
		t.Errorf("id %d after %d", next, id)
	}
	wantBlocks(t, x, []blockkey.Key{1, 2}, "a", "b")
	for p := range blockkey.Partitions {
		if v := plain.Get(t.Context(), x.space.Names.High(p)).Val(); v != plain.HGet(t.Context(), x.space.Names.Count, "reserved").Val() {
			t.Errorf("partition %d remembers %q", p, v)
		}
	}
}

// TestCopyByHand garbles a pod's entry in gen, with its own hash lost and not: the lives in
// them are over, for every reader.
func TestCopyByHand(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	for _, value := range []string{"", "garbage", "0\n0 a\n", "0 0 a", "0 0/gpu x", "0 0/gpu", " 0 0/gpu 1", "-1 0/gpu 1", "0 0/gpu -1", "0 0/gpu 999"} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%q %v", value, lost), func(t *testing.T) {
				c := Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true}
				x, y := open(t, c), open(t, c)
				apply(t, x, batchOf("a", store.Add, 1), batchOf("b", store.Add, 1))
				wantBlocks(t, y, []blockkey.Key{1}, "a b")
				plain.HSet(t.Context(), x.space.Names.Gen, "@a", value)
				if lost {
					plain.Del(t.Context(), x.space.Names.Own("a"))
				}
				apply(t, open(t, c), batchOf("a", store.Remove, 1))
				for _, i := range []*Index{x, y, open(t, c)} {
					wantBlocks(t, i, []blockkey.Key{1}, "b")
				}
			})
		}
	}
}

// TestReaderOfAnotherHistory: a reader that knows changes which a restart has undone reads
// the whole registry, also when there is something new after it. Two restarts with the same
// dump do not come to the same epoch.
func TestReaderOfAnotherHistory(t *testing.T) {
	for _, inPlace := range []bool{false, true} {
		t.Run(fmt.Sprintf("in place %v", inPlace), func(t *testing.T) { testAnotherHistory(t, inPlace) })
	}
}

func testAnotherHistory(t *testing.T, inPlace bool) {
	s := redistest.Start(t)
	plain, dump := s.Client(), map[string]string{}
	x, y := open(t, Config{URL: s.URL(), NoSweep: true}), open(t, Config{URL: s.URL(), NoSweep: true})
	register(t, x, store.Pod{Name: "a"}, store.Pod{Name: "b"}, store.Pod{Name: "c"})
	apply(t, x, batchOf("a", store.Add, 1), batchOf("b", store.Add, 1))
	must.OK(t, plain.Save(t.Context()).Err())
	for _, key := range plain.Keys(t.Context(), "*").Val() {
		dump[key] = plain.Dump(t.Context(), key).Val()
	}
	epochs := map[uint64]bool{}
	for i := range 3 {
		// The second reader learns of a change that is then undone.
		must.Get(x.Retire(t.Context(), []string{"a", "b", "a"}[i]))(t)
		wantBlocks(t, y, []blockkey.Key{1}, []string{"b", "a", "b"}[i])
		if inPlace {
			plain.FlushAll(t.Context())
			for key, value := range dump {
				must.OK(t, plain.Restore(t.Context(), key, 0, value).Err())
			}
		} else {
			s.Kill()
			s.Run()
		}
		// It does not look before there is news of another pod.
		must.Get(x.Retire(t.Context(), "c"))(t)
		wantBlocks(t, y, []blockkey.Key{1}, "a b")
		e := y.Cached().Epoch
		if epochs[e] {
			t.Errorf("epoch %d comes again after another restart", e)
		}
		epochs[e] = true
	}
}

// TestHealedWithoutId: what a script has found lost is told to readers also when the script
// itself is refused, as there is no id to give.
func TestHealedWithoutId(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	for _, lost := range []string{"pods", "gen", "own:a"} {
		t.Run(lost, func(t *testing.T) {
			c := Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true}
			x, y := open(t, c), open(t, c)
			apply(t, x, batchOf("a", store.Add, 1), batchOf("b", store.Add, 1))
			wantBlocks(t, y, []blockkey.Key{1}, "a b")
			plain.HSet(t.Context(), x.space.Names.Gen, "@a", "garbage")
			plain.Del(t.Context(), x.space.Names.Prefix+"{reg}:"+lost, x.space.Names.Count, x.space.Names.High(3))
			plain.SAdd(t.Context(), x.space.Names.High(3), "x")
			if _, err := open(t, c).Begin(t.Context(), "a", 0, 1); err == nil {
				t.Fatal("a generation begins without an id")
			}
			must.OK(t, open(t, c).Apply(t.Context(), batchOf("a", store.Remove, 1)))
			for _, i := range []*Index{x, y} {
				if got := find(t, i, 1); strings.Contains(got[0], "a") {
					t.Fatalf("found %q", got)
				}
			}
		})
	}
}
