package server_test

import (
	"net/http"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

// TestCaseRegistryKeyPodsIsLost deletes each key of the registry, and puts another type in its
// place, between two servers of one Redis. What one has acknowledged as removed or cleared, the
// other does not credit at its next score.
func TestCaseRegistryKeyPodsIsLost(t *testing.T) {
	for _, key := range []string{"pods", "live", "gen", "own:x:1", "count", "s", "epoch"} {
		for _, spoil := range []string{"lost", "of another type"} {
			for _, op := range []string{"remove", "clear", "delete"} {
				t.Run(key+" "+spoil+", "+op, func(t *testing.T) {
					s := redistest.Start(t)
					var xs []store.Index
					for range 2 {
						x := must.Get(redis.Open(redis.Config{URL: s.URL(), NoSweep: true}))(t)
						t.Cleanup(func() { _ = x.Close() })
						xs = append(xs, x)
					}
					a, b := newLives(t, xs[0]), newLives(t, xs[1])
					a.post("/v1/blocks", `{"op":"add","model":"m","pod":"x:1","tokens":[1,2,3,4]}`)
					a.score("m", 4, "x:1/0=1")
					b.score("m", 4, "x:1/0=1")
					name := "kva{reg}:" + key
					c := s.Client()
					must.OK(t, c.Del(t.Context(), name).Err())
					if spoil != "lost" {
						must.OK(t, c.SAdd(t.Context(), name, "x").Err())
					}
					// What A does may be refused while a key is of another type; then it is not acknowledged.
					a.call(http.MethodPost, "/v1/blocks", `{"op":"remove","model":"m","pod":"y:1","tokens":[1,2,3,4]}`)
					var status int
					switch op {
					case "delete":
						status, _ = a.call(http.MethodDelete, "/v1/pods/x:1", "")
					default:
						body := `{"op":"` + op + `","model":"m","pod":"x:1"}`
						if op == "remove" {
							body = `{"op":"remove","model":"m","pod":"x:1","tokens":[1,2,3,4]}`
						}
						status, _ = a.call(http.MethodPost, "/v1/blocks", body)
					}
					if status >= 500 {
						return
					}
					b.score("m", 4, "")
					a.score("m", 4, "")
				})
			}
		}
	}
}
