package server_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestCaseRanksThatAreNotThere refuses what is of a rank that the pod's registration does not
// have, and ends the ranks that a renewal no longer has.
func TestCaseRanksThatAreNotThere(t *testing.T) {
	refuse := func(l *lives, path, body, want string) {
		l.t.Helper()
		if status, answer := l.call(http.MethodPost, path, body); status != http.StatusBadRequest || !strings.Contains(answer, want) {
			l.t.Errorf("POST %s %s: %d %s, want 400 and %q", path, body, status, answer, want)
		}
	}
	eachLives(t, func(l *lives) {
		l.post("/v1/pods", `{"name":"p","model":"m","ranks":2}`)
		refuse(l, "/v1/blocks", `{"op":"add","model":"m","pod":"p","rank":5,"tokens":[1,2,3,4]}`, "p has ranks 0 to 1")
		stored := storedBlocks("1", "null", 1, 4, 4, "")
		refuse(l, "/v1/events", `{"pod":"p","model":"m","rank":7,"events":[`+stored+`]}`, "p has ranks 0 to 1")
		refuse(l, "/v1/events", `[{"pod":"p","model":"m","rank":1,"events":[]},{"pod":"p","model":"m","rank":2,"events":[`+stored+`]}]`, `"[1].rank"`)
		l.score("m", 4, "")

		l.post("/v1/blocks", `{"op":"add","model":"m","pod":"p","rank":0,"tokens":[1,2,3,4]}`)
		l.post("/v1/events", `{"pod":"p","model":"m","rank":1,"seq":0,"events":[`+storedBlocks("1,2", "null", 1, 8, 4, "")+`]}`)
		l.score("m", 8, "p/0=1 p/1=2")
		l.post("/v1/pods", `{"name":"p","model":"m","ranks":1}`)
		l.score("m", 8, "p/0=1")
		refuse(l, "/v1/events", `{"pod":"p","model":"m","rank":1,"seq":1,"events":[`+stored+`]}`, "p has rank 0 alone")
		l.post("/v1/pods", `{"name":"p","model":"m","ranks":2}`)
		l.score("m", 8, "p/0=1") // what the rank held does not come back

		// A pod that does not say how many it has may have any.
		l.post("/v1/pods", `{"name":"q","model":"m"}`)
		l.post("/v1/blocks", `{"op":"add","model":"m","pod":"q","rank":5,"tokens":[1,2,3,4]}`)
		l.score("m", 4, "p/0=1 q/5=1")
	})
}
