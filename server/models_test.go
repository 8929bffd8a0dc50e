package server_test

import (
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store/redis"
)

func TestSetModel(t *testing.T) {
	index := must.Get(redis.Open(redis.Config{URL: redistest.Start(t).URL(), NoSweep: true}))(t)
	t.Cleanup(func() { _ = index.Close() })
	s := newServer(t, index, func(c *server.Config) { c.Shared = index })
	put := func(path, body string) (int, string) {
		w := s.do("PUT", path, strings.NewReader(body))
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	for _, step := range []struct{ body, want string }{
		{`{"unregistered":false}`, `{"name":"org/m","block_size":BS,"scheme":"native"}`},
		{`{"unregistered":true}`, `{"name":"org/m","block_size":BS,"scheme":"native","unregistered":true}`},
		{`{"unregistered":true}`, `{"name":"org/m","block_size":BS,"scheme":"native","unregistered":true}`},
		{`{"unregistered":false}`, `{"name":"org/m","block_size":BS,"scheme":"native"}`},
	} {
		code, got := put("/v1/models/org%2Fm", step.body)
		i := strings.Index(got, `"block_size":`) + len(`"block_size":`)
		j := i + strings.IndexByte(got[i:], ',')
		if want := strings.Replace(step.want, "BS", got[i:j], 1); code != 200 || got != want {
			t.Errorf("%s: %d %s, want %s", step.body, code, got, want)
		}
		if list := s.do("GET", "/v1/models", nil).Body.String(); !strings.Contains(list, `"models":[`+got+`]`) {
			t.Errorf("%s is not in %s", got, list)
		}
	}
	for _, bad := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/v1/models/m", `{}`, 400, "invalid_request"},
		{"/v1/models/m", `{"unregistered":1}`, 400, "invalid_request"},
		{"/v1/models/m", `{"unregistered":true,"block_size":16}`, 400, "unknown_field"},
		{"/v1/models/" + strings.Repeat("m", 513), `{"unregistered":true}`, 400, "invalid_request"},
		{"/v1/models/%00", `{"unregistered":true}`, 400, "invalid_request"},
		{"/v1/models/org/m", `{"unregistered":true}`, 404, "not_found"},
	} {
		refused(t, s.do("PUT", bad.path, strings.NewReader(bad.body)), bad.status, bad.code)
	}
	memory := newServer(t, openIndex(t))
	refused(t, memory.do("PUT", "/v1/models/m", strings.NewReader(`{"unregistered":true}`)), 501, "not_implemented")
}

// TestBlockSizeIsKnownBefore: a process that has never looked a model up hashes its first
// prompt by the model's own block size, and looks it up once.
func TestBlockSizeIsKnownBefore(t *testing.T) {
	url := redistest.Start(t).URL()
	open := func() *redis.Index {
		x := must.Get(redis.Open(redis.Config{URL: url, NoSweep: true}))(t)
		t.Cleanup(func() { _ = x.Close() })
		return x
	}
	tokens := strings.TrimSuffix(strings.Repeat("1,", 64), ",")
	newServer(t, open()).post(t, "/v1/blocks", `{"op":"add","model":"m","pod":"p","tokens":[`+tokens+`]}`) // in blocks of 4
	x := open()
	sc := must.Get(scorer.New(scorer.Config{Index: x, BlockSize: 32}))(t)
	s := newServer(t, x, func(c *server.Config) { c.Scorer, c.BlockSize = sc, 32 })
	if got := s.post(t, "/v1/score", `{"model":"m","tokens":[`+tokens+`]}`); !strings.Contains(got, `"p":16`) || !strings.Contains(got, `"size":4}`) {
		t.Errorf("got %s", got)
	}
	if st := x.Stats(); st.KeysRead != 16 {
		t.Errorf("%d keys were read, one lookup of 64 tokens reads 16", st.KeysRead)
	}
}
