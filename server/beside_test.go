package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/replica"
)

// TestModelsBesideEachOther registers a pod for two models, in each kind of index. Their
// numbered streams, what is written without numbers, their leases and ends are apart, and
// clients read the pod's own name.
func TestModelsBesideEachOther(t *testing.T) {
	for i, each := range []func(*testing.T, func(*lives)){eachLives, onReplica, onCluster} {
		t.Run([]string{"index", "replica", "cluster"}[i], func(t *testing.T) { each(t, modelsBesideEachOther) })
	}
}

func modelsBesideEachOther(l *lives) {
	const pod = "10.0.0.2:8000"
	stored := func(place int) string { // a block of one text, behind the one before
		parent := "null"
		if place > 0 {
			parent = strconv.Itoa(place)
		}
		return storedBlocks(strconv.Itoa(place+1), parent, 1+4*place, 4, 4, "")
	}
	want := func(ofOne, ofTwo int) {
		l.t.Helper()
		for model, n := range map[string]int{"one": ofOne, "two": ofTwo} {
			want := ""
			if n > 0 {
				want = fmt.Sprintf("%s/0=%d", pod, n)
			}
			l.score(model, 16, want)
		}
	}
	register := func(rest string) string {
		return l.post("/v1/pods", fmt.Sprintf(`{"name":%q,"engine":"vllm",%s}`, pod, rest))
	}
	status := func(want int, method, path, body, part string) {
		l.t.Helper()
		if got, answer := l.call(method, path, body); got != want || !strings.Contains(answer, part) {
			l.t.Errorf("%s %s %s: %d %s, want %d with %s", method, path, body, got, answer, want, part)
		}
	}
	ofTwo := "/v1/pods/" + url.PathEscape(pod+"?model=two")

	l.want(register(`"model":"one"`), `{"name":"10.0.0.2:8000","model":"one","engine":"vllm"}`)
	l.taken(pod, "one", 0, stored(0))
	l.otherModel(pod, "two", 5, stored(0)) // it may be a new name of the same
	l.want(register(`"model":"two","beside":true,"aliases":["zwei"]`), `{"name":"10.0.0.2:8000","model":"two","aliases":["zwei"],"engine":"vllm","beside":true}`)
	want(1, 0)
	l.taken(pod, "two", 5, stored(0)) // a stream of its own
	l.taken(pod, "one", 1, stored(1))
	l.taken(pod, "zwei", 6, stored(1))
	want(2, 2)
	l.post("/v1/blocks", fmt.Sprintf(`{"op":"add","model":"two","pod":%q,"tier":"cpu","tokens":[%s]}`, pod, counted(1, 12)))
	want(2, 3)
	l.post("/v1/blocks", fmt.Sprintf(`{"op":"remove","model":"two","pod":%q,"tier":"cpu","tokens":[%s]}`, pod, counted(1, 12)))
	want(2, 2)
	// A renewal keeps everything; a hole and a restart end their own model alone.
	register(`"model":"two","beside":true`)
	register(`"model":"one"`)
	want(2, 2)
	l.taken(pod, "one", 7, stored(0))
	want(1, 2)
	l.taken(pod, "two", 0, stored(0))
	want(1, 1)
	l.otherModel(pod, "three", 0, stored(0))

	// By name, asked for or not, the pod is one.
	for _, model := range []string{"one", "two"} {
		body := fmt.Sprintf(`{"model":%q,"tokens":[%s],"pods":[%q,"other"]}`, model, counted(1, 8), pod)
		status(http.StatusOK, http.MethodPost, "/v1/score", body, `"scores":{"10.0.0.2:8000":1,"other":0},"best":"10.0.0.2:8000"`)
		status(http.StatusOK, http.MethodPost, "/v1/score", strings.Replace(body, `"pods"`, `"explain":true,"pods"`, 1), `"holders":[{"pod":"10.0.0.2:8000","rank":0,"tier":"gpu"}]`)
		status(http.StatusOK, http.MethodGet, "/v1/pods", "", fmt.Sprintf(`"model":%q`, model))
	}
	l.want(l.modelOf(pod), "one")
	status(http.StatusOK, http.MethodGet, ofTwo, "", `{"name":"10.0.0.2:8000","model":"two","engine":"vllm","beside":true}`)

	// What cannot be.
	status(http.StatusConflict, http.MethodPost, "/v1/pods", fmt.Sprintf(`{"name":%q,"model":"one","beside":true}`, pod), `"param":"model"`)
	status(http.StatusBadRequest, http.MethodPost, "/v1/pods", fmt.Sprintf(`{"name":%q,"model":"two"}`, pod+"?model=two"), `"param":"name"`)
	status(http.StatusBadRequest, http.MethodPost, "/v1/pods", fmt.Sprintf(`{"name":%q,"model":%q,"beside":true}`, pod, strings.Repeat("m", 250)), `"param":"name"`)

	l.post("/v1/pods", `{"name":"read","model":"one","events":"tcp://10.0.0.9:5557"}`)
	status(http.StatusBadRequest, http.MethodPost, "/v1/pods", `{"name":"read","model":"two","beside":true,"events":"tcp://10.0.0.9:5557"}`, `"param":"events"`)
	status(http.StatusBadRequest, http.MethodPost, "/v1/pods", `{"name":"q","model":"two","beside":true,"part_of":{"pod":"read","workers":1}}`, `"param":"beside"`)

	for path, rest := range map[string]string{"/v1/blocks": `"op":"add","tokens":[1]`, "/v1/events": `"events":[]`} {
		status(http.StatusBadRequest, http.MethodPost, path, fmt.Sprintf(`{"pod":%q,"model":"three",%s}`, pod+"?model=two", rest), `"param":"pod"`)
		status(http.StatusOK, http.MethodPost, path, fmt.Sprintf(`{"pod":%q,"model":"two",%s}`, pod+"?model=two", rest), "")
	}

	// A clear is of all models, an end of one or of all.
	l.post("/v1/blocks", fmt.Sprintf(`{"op":"clear","model":"one","pod":%q}`, pod))
	want(0, 0)
	seq := 20
	fill := func() {
		seq += 2 // a hole, so that it begins anew
		l.taken(pod, "one", seq, stored(0))
		l.taken(pod, "two", seq, stored(0))
		want(1, 1)
	}
	fill()
	status(http.StatusOK, http.MethodDelete, ofTwo, "", `"deleted"`)
	want(1, 0)
	register(`"model":"two","beside":true`)
	fill()
	status(http.StatusOK, http.MethodDelete, "/v1/pods/"+url.PathEscape(pod), "", `{"deleted":"10.0.0.2:8000"}`)
	want(0, 0)
	status(http.StatusNotFound, http.MethodDelete, "/v1/pods/"+url.PathEscape(pod), "", "unknown_pod")

	// Another name of the pod's own model ends what stood beside it under that name.
	register(`"model":"one"`)
	register(`"model":"two","beside":true`)
	fill()
	register(`"model":"two"`)
	want(0, 0)
	l.taken(pod, "two", 3, stored(0))
	want(0, 1)
	status(http.StatusNotFound, http.MethodGet, ofTwo, "", "unknown_pod")
}

// onReplica runs a test over a copy of Redis in memory.
func onReplica(t *testing.T, f func(l *lives)) {
	x := must.Get(redis.Open(redis.Config{URL: redistest.Start(t).URL()}))(t)
	copied := must.Get(replica.New(replica.Config{Index: x}))(t)
	must.End(t, copied.Close)
	l := newLives(t, copied)
	l.settle = func() {
		must.OK(t, copied.CatchUp(t.Context()))
	}
	f(l)
}

// onCluster runs a test over a Redis Cluster.
func onCluster(t *testing.T, f func(l *lives)) {
	x := must.Get(redis.Open(redis.Config{URL: redistest.StartCluster(t, 3, false).URL()}))(t)
	must.End(t, x.Close)
	f(newLives(t, x))
}

// TestRouteBeside routes requests of two models to one pod by its name, each booked as a load
// of its own model.
func TestRouteBeside(t *testing.T) {
	r := newRouting(t, loads.NewMemory(nil))
	r.ok("POST", "/v1/pods", `{"name":"b","model":"two","beside":true}`)
	r.ok("POST", "/v1/pods", `{"name":"z","model":"two"}`)
	r.ok("POST", "/v1/blocks", `{"op":"add","model":"two","pod":"b","tokens":[`+upTo(64)+`]}`)
	text := func(method, path, body string) string {
		t.Helper()
		w := r.do(method, path, body)
		if answer := w.Body.String(); w.Code == 200 && !strings.Contains(answer, "?model=") {
			return answer
		}
		t.Fatalf("%s %s: %d %s", path, body, w.Code, w.Body)
		return ""
	}
	for body, part := range map[string]string{
		`"request_id":"r1","reserve":true,"policy":"longest_prefix"`: `"overlap":{"blocks":4,"tokens":64`, `"pods":["b"]`: `"fallbacks":[]`, `"pinned":{"pod":"b"}`: `"fallbacks":[]`,
	} {
		answer := text("POST", "/v1/route", `{"model":"two","tokens":[`+upTo(64)+`],`+body+`}`)
		if !strings.HasPrefix(answer, `{"pod":"b","rank":0,"policy"`) || !strings.Contains(answer, part) {
			t.Errorf("%s: %s, want pod b with %s", body, answer, part)
		}
	}
	for model, n := range map[string]int{"two": 1, "demo": 0} {
		var all struct {
			Models map[string][]struct {
				Pod      string
				Requests int
			}
		}
		must.OK(t, json.Unmarshal([]byte(text("GET", "/v1/loads?model="+model, "")), &all))
		for _, at := range all.Models[model] {
			if at.Pod == "b" && at.Requests != n {
				t.Errorf("%d requests of model %s on the pod, want %d", at.Requests, model, n)
			}
		}
	}
	if answer := text("POST", "/v1/requests/r1/end", `{"model":"two"}`); !strings.Contains(answer, `"pod":"b"`) {
		t.Error(answer)
	}
}
