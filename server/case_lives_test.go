package server_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

// lives are two servers with one index, in memory or in Redis, that cut prompts into
// blocks of four tokens.
type lives struct {
	t       *testing.T
	servers []subject
	n       int    // requests so far, which go to the servers in turn
	settle  func() // lets the index have what was written; nil where it has at once

	engine string         // of the pushes of next
	seqs   map[string]int // their numbers, by pod
}

// next sends a pod's next push, and returns the answer.
func (l *lives) next(pod, events string) string {
	l.t.Helper()
	if l.seqs == nil {
		l.seqs = map[string]int{}
	}
	answer := l.post("/v1/events", fmt.Sprintf(`{"pod":%q,"model":"m","engine":%q,"seq":%d,"events":[%s]}`, pod, l.engine, l.seqs[pod], events))
	l.seqs[pod]++
	return answer
}

// eachLives runs a test over both kinds of index.
func eachLives(t *testing.T, f func(l *lives)) {
	t.Run("memory", func(t *testing.T) {
		x := openIndex(t)
		f(newLives(t, x, x))
	})
	t.Run("redis", func(t *testing.T) {
		url := redistest.Start(t).URL()
		var xs []store.Index
		for range 2 {
			x := must.Get(redis.Open(redis.Config{URL: url}))(t)
			must.End(t, x.Close)
			xs = append(xs, x)
		}
		f(newLives(t, xs...))
	})
}

func newLives(t *testing.T, xs ...store.Index) *lives {
	l := &lives{t: t}
	for _, x := range xs {
		in := must.Get(ingest.New(ingest.Config{Index: x, BlockSize: 4}))(t)
		must.End(t, in.Close)
		l.servers = append(l.servers, newServer(t, x, func(c *server.Config) { c.Events = in }))
	}
	return l
}

// call sends a request to the next server and returns the status and the answer.
func (l *lives) call(method, path, body string) (int, string) {
	l.t.Helper()
	s := l.servers[l.n%len(l.servers)]
	l.n++
	w := s.do(method, path, strings.NewReader(body))
	return w.Code, strings.TrimSpace(w.Body.String())
}

// post sends a request that must be answered with 200 or 201.
func (l *lives) post(path, body string) string {
	l.t.Helper()
	status, answer := l.call(http.MethodPost, path, body)
	if status/100 != 2 {
		l.t.Fatalf("POST %s %s: %d %s", path, body, status, answer)
	}
	return answer
}

// want holds an answer to another one.
func (l *lives) want(got, want string) {
	l.t.Helper()
	if got != want {
		l.t.Errorf("\n got %s\nwant %s", got, want)
	}
}

// held is what is credited for tokens from 1 to n: "pod/rank=blocks" of each, by name.
func (l *lives) held(model string, n int) string {
	l.t.Helper()
	var resp struct {
		Matched map[string]struct{ Ranks map[string]int }
	}
	must.OK(l.t, json.Unmarshal([]byte(l.post("/v1/score", fmt.Sprintf(`{"model":%q,"tokens":[%s]}`, model, counted(1, n)))), &resp))
	var out []string
	for _, pod := range slices.Sorted(maps.Keys(resp.Matched)) {
		ranks := resp.Matched[pod].Ranks
		for _, rank := range slices.Sorted(maps.Keys(ranks)) {
			if ranks[rank] > 0 {
				out = append(out, fmt.Sprintf("%s/%s=%d", pod, rank, ranks[rank]))
			}
		}
	}
	return strings.Join(out, " ")
}

// score holds what is credited to what it must be.
func (l *lives) score(model string, n int, want string) {
	l.t.Helper()
	if l.settle != nil {
		l.settle()
	}
	if got := l.held(model, n); got != want {
		l.t.Errorf("%s, %d tokens: %q, want %q", model, n, got, want)
	}
}

// counted are the numbers from one to another, with commas between.
func counted(from, to int) string {
	var out []string
	for i := from; i <= to; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return strings.Join(out, ",")
}

// trtStored is TensorRT-LLM's event of a rank that stores blocks of four tokens, those
// from..to of the text. Their hashes are base+1, base+2 and so on by place.
func trtStored(rank, base, from, to int) string {
	parent := "null"
	if from > 1 {
		parent = strconv.Itoa(base + from - 1)
	}
	var blocks []string
	for b := from; b <= to; b++ {
		var tokens []string
		for t := 4*b - 3; t <= 4*b; t++ {
			tokens = append(tokens, fmt.Sprintf(`{"token_id":%d,"token_extra_id":0}`, t))
		}
		blocks = append(blocks, fmt.Sprintf(`{"block_hash":%d,"tokens":[%s],"cache_level":0}`, base+b, strings.Join(tokens, ",")))
	}
	return fmt.Sprintf(`{"event_id":0,"data":{"type":"stored","parent_hash":%s,"blocks":[%s]},"window_size":32768,"attention_dp_rank":%d}`, parent, strings.Join(blocks, ","), rank)
}

func trtRemoved(rank, hash int) string {
	return fmt.Sprintf(`{"event_id":0,"data":{"type":"removed","block_hashes":[%d]},"window_size":32768,"attention_dp_rank":%d}`, hash, rank)
}

// A push that has nothing of a rank is no hole in it. One drain of TensorRT-LLM with
// attention DP has events of whichever ranks were busy.
func TestCaseRankHoleOfAttentionDP(t *testing.T) {
	eachLives(t, func(l *lives) {
		// rank is what stands in the push beside its events.
		for i, rank := range []string{"", `"rank":0,`} {
			pod, model := fmt.Sprint("pod", i), fmt.Sprint("model", i)
			push := func(seq int, want string, events ...string) {
				l.t.Helper()
				l.want(l.post("/v1/events", fmt.Sprintf(`{"pod":%q,"model":%q,%s"engine":"trtllm","seq":%d,"events":[%s]}`, pod, model, rank, seq, strings.Join(events, ","))), want)
			}
			push(0, `{"applied":2,"skipped":0,"ranks":[{"rank":0,"applied":1,"skipped":0,"began":"first"},{"rank":1,"applied":1,"skipped":0,"began":"first"}]}`,
				trtStored(0, 0, 1, 1), trtStored(1, 10, 1, 1))
			// Rank 0 alone was busy, then rank 1 alone, then none.
			push(1, `{"applied":1,"skipped":0,"ranks":[{"rank":0,"applied":1,"skipped":0}]}`, trtStored(0, 0, 2, 2))
			push(2, `{"applied":1,"skipped":0,"ranks":[{"rank":0,"applied":0,"skipped":0},{"rank":1,"applied":1,"skipped":0}]}`, trtStored(1, 10, 2, 2))
			push(3, `{"applied":0,"skipped":0,"ranks":[{"rank":0,"applied":0,"skipped":0}]}`)
			l.score(model, 8, pod+"/0=2 "+pod+"/1=2")
			// Again, as after a time-out.
			push(3, `{"applied":0,"skipped":0,"ranks":[{"rank":0,"applied":0,"skipped":0,"duplicate":true}]}`)
			push(2, `{"applied":0,"skipped":1,"ranks":[{"rank":0,"applied":0,"skipped":0,"duplicate":true},{"rank":1,"applied":0,"skipped":1,"duplicate":true}]}`, trtStored(1, 10, 2, 2))
			push(4, `{"applied":2,"skipped":2,"ranks":[{"rank":0,"applied":1,"skipped":1},{"rank":1,"applied":1,"skipped":1}]}`, trtRemoved(1, 12), trtRemoved(0, 2))
			push(5, `{"applied":1,"skipped":0,"ranks":[{"rank":0,"applied":0,"skipped":0},{"rank":2,"applied":1,"skipped":0,"began":"first"}]}`, trtStored(2, 20, 1, 2))
			l.score(model, 8, pod+"/0=1 "+pod+"/1=1 "+pod+"/2=2")
			// 6 is lost: it may have been about any rank.
			push(7, `{"applied":0,"skipped":1,"ranks":[{"rank":0,"applied":0,"skipped":0,"began":"lost"},`+
				`{"rank":1,"applied":0,"skipped":1,"began":"lost","skipped_blocks":{"no_parent":1}},{"rank":2,"applied":0,"skipped":0,"began":"lost"}]}`, trtStored(1, 10, 2, 2))
			l.score(model, 8, "")
			push(8, `{"applied":1,"skipped":0,"ranks":[{"rank":0,"applied":0,"skipped":0},{"rank":2,"applied":1,"skipped":0,"began":"first"}]}`, trtStored(2, 20, 1, 1))
			l.score(model, 8, pod+"/2=1")
			// Another process of the engine.
			push(0, `{"applied":1,"skipped":0,"ranks":[{"rank":0,"applied":0,"skipped":0,"began":"restarted"},`+
				`{"rank":1,"applied":1,"skipped":0,"began":"restarted"},{"rank":2,"applied":0,"skipped":0,"began":"restarted"}]}`, trtStored(1, 10, 1, 2))
			l.score(model, 8, pod+"/1=2")
		}
	})
}

// Streams that are named by their ranks have numbers of their own, whatever the events say.
// A rank that turns from one stream to another keeps nothing of the former.
func TestPushStreamsOfRanks(t *testing.T) {
	eachLives(t, func(l *lives) {
		push := func(rank, seq int, want string, events ...string) {
			l.t.Helper()
			l.want(l.post("/v1/events", fmt.Sprintf(`{"pod":"p","model":"m","rank":%d,"seq":%d,"events":[%s]}`, rank, seq, strings.Join(events, ","))), want)
		}
		push(0, 5, `{"applied":1,"skipped":0,"ranks":[{"rank":0,"applied":1,"skipped":0,"began":"first"}]}`, trtStored(0, 0, 1, 1))
		push(1, 9, `{"applied":1,"skipped":0,"ranks":[{"rank":1,"applied":1,"skipped":0,"began":"first"}]}`, trtStored(1, 10, 1, 1))
		push(0, 7, `{"applied":1,"skipped":0,"ranks":[{"rank":0,"applied":1,"skipped":0,"began":"lost"}]}`, trtStored(0, 0, 1, 1))
		push(1, 10, `{"applied":1,"skipped":0,"ranks":[{"rank":1,"applied":1,"skipped":0}]}`, trtStored(1, 10, 2, 2))
		l.score("m", 8, "p/0=1 p/1=2")
		push(0, 8, `{"applied":1,"skipped":0,"ranks":[{"rank":0,"applied":0,"skipped":0},{"rank":1,"applied":1,"skipped":0,"began":"restarted"}]}`, trtStored(1, 10, 1, 1))
		l.score("m", 8, "p/0=1 p/1=1")
		push(1, 11, `{"applied":1,"skipped":0,"ranks":[{"rank":1,"applied":1,"skipped":0,"began":"restarted"}]}`, trtStored(1, 10, 1, 2))
		l.score("m", 8, "p/0=1 p/1=2")
	})
}

// push sends a numbered push of one event and returns the status and the answer.
func (l *lives) push(pod, model string, seq int, events string) (int, string) {
	l.t.Helper()
	return l.call(http.MethodPost, "/v1/events", fmt.Sprintf(`{"pod":%q,"model":%q,"seq":%d,"events":[%s]}`, pod, model, seq, events))
}

// taken sends a push that must be taken, and returns the answer.
func (l *lives) taken(pod, model string, seq int, events string) string {
	l.t.Helper()
	status, answer := l.push(pod, model, seq, events)
	if status != http.StatusOK {
		l.t.Fatalf("%s %d of %s: %d %s", model, seq, pod, status, answer)
	}
	return answer
}

// otherModel sends a push that must be refused, with what to do about it.
func (l *lives) otherModel(pod, model string, seq int, events string) {
	l.t.Helper()
	status, answer := l.push(pod, model, seq, events)
	for _, part := range []string{`"code":"model_conflict"`, `"param":"model"`, "under another pod name", "POST /v1/pods"} {
		if status != http.StatusConflict || !strings.Contains(answer, part) {
			l.t.Errorf("%s %d of %s: %d %s, want 409 with %s", model, seq, pod, status, answer, part)
		}
	}
}

// modelOf is the model that a pod is registered for.
func (l *lives) modelOf(pod string) string {
	l.t.Helper()
	_, answer := l.call(http.MethodGet, "/v1/pods/"+pod, "")
	var p store.Pod
	if err := json.Unmarshal([]byte(answer), &p); err != nil {
		l.t.Fatalf("%v: %s", err, answer)
	}
	return p.Model
}

// TestCaseModelRenamedInOneLife gives a pod's events another model's name while its
// engine lives on.
func TestCaseModelRenamedInOneLife(t *testing.T) {
	first, second := storedBlocks("1", "null", 1, 4, 4, ""), storedBlocks("2", "1", 5, 4, 4, "")
	both := `{"type":"BlockRemoved","block_hashes":[1,2],"medium":"GPU"}`
	t.Run("by the next push", func(t *testing.T) {
		eachLives(t, func(l *lives) {
			l.taken("p", "old", 0, first)
			if answer := l.taken("p", "new", 1, second); !strings.Contains(answer, `"began":"renamed"`) {
				t.Error(answer)
			}
			l.score("old", 8, "")
			l.score("new", 8, "") // its parent is of the last life
			l.want(l.modelOf("p"), "new")
			l.taken("p", "new", 2, both)
			l.score("old", 8, "")
			l.taken("p", "new", 3, first+","+second)
			l.taken("p", "new", 3, first+","+second) // the same again
			l.score("new", 8, "p/0=2")
			l.otherModel("p", "old", 1, second) // late, of the life before
			l.taken("p", "old", 4, first)       // and back
			l.score("new", 8, "")
			l.score("old", 8, "p/0=1")
		})
	})
	t.Run("by a registration", func(t *testing.T) {
		eachLives(t, func(l *lives) {
			l.post("/v1/pods", `{"name":"p","model":"old","engine":"vllm"}`)
			for _, turn := range [][2]string{{"old", "new"}, {"new", "old"}, {"old", "new"}} {
				now, then := turn[0], turn[1]
				l.taken("p", now, 0, first+","+second)
				l.score(now, 8, "p/0=2")
				l.otherModel("p", then, 1, second)
				l.score(now, 8, "p/0=2")
				l.post("/v1/pods", `{"name":"p","model":"`+then+`","engine":"vllm"}`)
				l.score(now, 8, "")
				l.otherModel("p", now, 1, second)
				l.taken("p", then, 1, first)
				l.score(then, 8, "p/0=1")
				l.score(now, 8, "")
			}
		})
	})
	t.Run("with several ranks", func(t *testing.T) {
		eachLives(t, func(l *lives) {
			ranks := func(model string, seq int) string {
				return l.taken("p", model, seq, trtStored(0, 0, 1, 1)+","+trtStored(2, 10, 1, 1))
			}
			ranks("old", 0)
			l.score("old", 4, "p/0=1 p/2=1")
			if answer := ranks("new", 1); strings.Count(answer, `"began":"renamed"`) != 2 {
				t.Error(answer)
			}
			l.score("old", 4, "")
			l.score("new", 4, "p/0=1 p/2=1")
		})
	})
	t.Run("without numbers", func(t *testing.T) {
		eachLives(t, func(l *lives) {
			loose := func(model, events string) {
				l.post("/v1/events", `{"pod":"p","model":"`+model+`","events":[`+events+`]}`)
			}
			loose("old", first)
			loose("new", first)
			l.score("old", 4, "p/0=1") // side by side, until the pod is registered for one
			l.score("new", 4, "p/0=1")
			l.post("/v1/pods", `{"name":"p","model":"new"}`)
			l.score("old", 4, "")
			l.score("new", 4, "")
			loose("new", first)
			l.score("new", 4, "p/0=1")
		})
	})
	t.Run("without numbers, one by one", func(t *testing.T) {
		x := openIndex(t)
		l := newLives(t, x) // what is known of blocks is known to one server
		for _, model := range []string{"one", "two"} {
			l.post("/v1/events", `{"pod":"p","model":"`+model+`","events":[`+first+`]}`)
		}
		l.post("/v1/events", `{"pod":"p","model":"one","events":[{"type":"BlockRemoved","block_hashes":[1],"medium":"GPU"}]}`)
		l.score("one", 4, "")
		l.score("two", 4, "p/0=1")
	})
	t.Run("of blocks", func(t *testing.T) {
		eachLives(t, func(l *lives) {
			l.post("/v1/blocks", `{"op":"add","pod":"p","model":"old","tokens":[`+counted(1, 4)+`]}`)
			l.post("/v1/pods", `{"name":"p","model":"new"}`)
			l.score("old", 4, "")
		})
	})
}

// TestCaseTwoModelsOnePod pushes events of two models for one pod: the second one is told
// what to do, and neither loses what it has.
func TestCaseTwoModelsOnePod(t *testing.T) {
	stored := func(hash int) string { return storedBlocks(strconv.Itoa(hash), "null", 1, 4, 4, "") }
	eachLives(t, func(l *lives) {
		l.taken("p", "one", 0, stored(1))
		for _, seq := range []int{5, 0} {
			l.otherModel("p", "two", seq, stored(7))
		}
		l.want(l.taken("p", "one", 1, stored(2)), `{"applied":1,"skipped":0,"ranks":[{"rank":0,"applied":1,"skipped":0}]}`)
		l.score("one", 4, "p/0=1")
		l.score("two", 4, "")
		l.want(l.modelOf("p"), "one")
		// Under a rank of its own it is the same pod, and under a name of its own another.
		status, answer := l.call(http.MethodPost, "/v1/events", `[{"pod":"q","model":"one","seq":0,"events":[]},{"pod":"p","model":"two","seq":5,"rank":1,"events":[`+stored(7)+`]}]`)
		if status != http.StatusConflict || !strings.Contains(answer, `"param":"[1].model"`) {
			t.Errorf("%d %s", status, answer)
		}
		l.taken("p/two", "two", 5, stored(7))
		l.taken("p", "one", 2, stored(3))
		l.score("one", 4, "p/0=1")
		l.score("two", 4, "p/two/0=1")
		// A registration made by hand is changed by hand alone, also where the number fits.
		l.post("/v1/pods", `{"name":"r","model":"one","engine":"vllm"}`)
		l.taken("r", "one", 0, stored(1))
		l.otherModel("r", "two", 1, stored(7))
		l.taken("r", "one", 1, stored(2))
	})
}

// TestTwoModelsOnOneAddress has an address that serves two models under two names of pods,
// each registered for its own. Their numbered streams, what is written without numbers, and
// their lives are apart, in every kind of index.
func TestTwoModelsOnOneAddress(t *testing.T) {
	const address = "10.0.0.2:8000"
	names := map[string]string{"one": address, "two": address + "/two"}
	stored := func(place int) string { // a block of one text, behind the one before
		parent := "null"
		if place > 0 {
			parent = strconv.Itoa(place)
		}
		return storedBlocks(strconv.Itoa(place+1), parent, 1+4*place, 4, 4, "")
	}
	run := func(l *lives) {
		one, two := names["one"], names["two"]
		want := func(ofOne, ofTwo int) {
			l.t.Helper()
			for model, n := range map[string]int{"one": ofOne, "two": ofTwo} {
				want := ""
				if n > 0 {
					want = fmt.Sprintf("%s/0=%d", names[model], n)
				}
				l.score(model, 16, want)
			}
		}
		for model, pod := range names {
			l.post("/v1/pods", fmt.Sprintf(`{"name":%q,"model":%q,"address":%q,"engine":"vllm"}`, pod, model, address))
		}
		l.taken(one, "one", 0, stored(0))
		l.taken(two, "two", 5, stored(0)) // a stream of its own
		l.taken(one, "one", 1, stored(1))
		l.taken(two, "two", 6, stored(1))
		want(2, 2)
		// What has no number is of one of them too.
		l.post("/v1/blocks", fmt.Sprintf(`{"op":"add","model":"two","pod":%q,"tier":"cpu","tokens":[%s]}`, two, counted(1, 12)))
		want(2, 3)
		// A hole in one stream and a restart of the other's engine end what that one held.
		l.taken(one, "one", 7, stored(0))
		want(1, 3)
		l.taken(one, "one", 8, stored(1))
		l.taken(two, "two", 0, stored(0))
		want(2, 1)
		// The rule of names stays: another model's push is refused, and its registration ends
		// what that name held, and no other.
		l.otherModel(two, "one", 1, stored(1))
		l.post("/v1/pods", fmt.Sprintf(`{"name":%q,"model":"other","address":%q}`, two, address))
		want(2, 0)
	}
	eachLives(t, run)
	t.Run("replica", func(t *testing.T) { onReplica(t, run) })
}

// TestCaseAliasesAndAdapters scores by all names that engines serve a model and its
// adapters by.
func TestCaseAliasesAndAdapters(t *testing.T) {
	eachLives(t, func(l *lives) {
		ask := func(body, want string) {
			l.t.Helper()
			for range l.servers { // each of them
				status, answer := l.call(http.MethodPost, "/v1/score", `{`+body+`,"tokens":[`+counted(1, 8)+`],"strategy":"coverage"}`)
				if status != http.StatusOK || !strings.Contains(answer, want) {
					l.t.Errorf("%s: %d %s, want %s", body, status, answer, want)
				}
			}
		}
		const none = `"scores":{}`
		sql := `,"lora_name":"sql"`
		l.post("/v1/pods", `{"name":"a","model":"base","aliases":["nick"],"adapters":["sql"]}`)
		l.taken("a", "base", 0, storedBlocks("1,2", "null", 1, 8, 4, ""))
		l.taken("a", "nick", 1, storedBlocks("3", "null", 1, 4, 4, sql)) // one stream, whichever name
		ask(`"model":"base"`, `"scores":{"a":2}`)
		ask(`"model":"nick"`, `"scores":{"a":2}`)
		ask(`"model":"nick"`, `"resolved":{"model":"base"}`)
		ask(`"model":"sql"`, `"scores":{"a":1}`)
		ask(`"model":"sql"`, `"resolved":{"model":"base","lora":"sql"}`)
		ask(`"model":"sql","lora":"sql"`, `"scores":{"a":1}`)
		ask(`"model":"base","lora":"sql"`, `"scores":{"a":1}`)
		ask(`"model":"nick","lora":"sql"`, `"resolved":{"model":"base","lora":"sql"}`)
		ask(`"model":"chat"`, none)
		if status, answer := l.call(http.MethodPost, "/v1/score", `{"model":"sql","lora":"other","tokens":[1]}`); status != http.StatusBadRequest || !strings.Contains(answer, `"param":"lora"`) {
			t.Errorf("two adapters: %d %s", status, answer)
		}
		if answer := l.post("/v1/score", `{"model":"base","tokens":[1,2,3,4]}`); strings.Contains(answer, "resolved") {
			t.Error(answer)
		}
		// The keys of an adapter's prompt have it in them.
		explained := l.post("/v1/score", `{"model":"sql","tokens":[`+counted(1, 4)+`],"explain":true}`)
		var keys struct {
			Explain struct {
				Keys []string `json:"block_keys"`
			}
		}
		if err := json.Unmarshal([]byte(explained), &keys); err != nil || len(keys.Explain.Keys) != 1 {
			t.Fatalf("%v: %s", err, explained)
		}
		if answer := l.post("/v1/score", `{"model":"sql","block_keys":["`+keys.Explain.Keys[0]+`"]}`); !strings.Contains(answer, `"scores":{"a":1}`) || !strings.Contains(answer, `"resolved":{"model":"base"}`) {
			t.Error(answer)
		}
		if answer := l.post("/v1/score", `{"model":"nick","prompt":[[1,2,3,4],[9,9,9,9]]}`); strings.Count(answer, `"resolved":{"model":"base"}`) != 2 {
			t.Error(answer)
		}
		if answer := l.post("/v1/tokenize", `{"model":"sql","prompt":[1,2]}`); !strings.Contains(answer, `"resolved":{"model":"base","lora":"sql"}`) {
			t.Error(answer)
		}
		// Pods that disagree: what most of them say, and a model's own name before all.
		for _, pod := range []string{"b", "c"} {
			l.post("/v1/pods", `{"name":"`+pod+`","model":"second","aliases":["nick"]}`)
			l.taken(pod, "second", 0, storedBlocks("1", "null", 1, 4, 4, ""))
		}
		ask(`"model":"nick"`, `"resolved":{"model":"second"}`)
		ask(`"model":"base"`, `"scores":{"a":2}`)
		l.post("/v1/pods", `{"name":"c","model":"nick"}`)
		l.taken("c", "nick", 0, storedBlocks("1,2", "null", 1, 8, 4, ""))
		ask(`"model":"nick"`, `"scores":{"c":2}`)
		l.taken("a", "nick", 2, storedBlocks("4", "3", 5, 4, 4, sql)) // by the pod's own meaning
		ask(`"model":"sql"`, `"scores":{"a":2}`)
		// Names go with their registration.
		l.post("/v1/pods", `{"name":"a","model":"base"}`)
		ask(`"model":"sql"`, none)
		ask(`"model":"base","lora":"sql"`, `"scores":{"a":2}`)
	})
}
