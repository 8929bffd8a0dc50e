package server

import (
	"net/http"

	"github.com/kvatlas/kvatlas/lmcache/controller"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/store"
)

// Syncer asks LMCache's workers for full syncs. *controller.Controller is one.
type Syncer interface {
	// AskSync asks the workers of an instance, of all for "", or one of its workers
	// when worker is not below 0; see controller.Controller.AskSync.
	AskSync(instance string, worker int) (heard, asked int)
}

var _ Syncer = (*controller.Controller)(nil)

// lmcacheSyncRequest is the body of POST /v1/lmcache/sync.
type lmcacheSyncRequest struct{ id feed.ID }

var lmcacheSyncFields = scan.Fields[lmcacheSyncRequest]{
	{Name: "instance", Read: func(s *scan.Scanner, q *lmcacheSyncRequest) error {
		if err := s.Text(&q.id.Instance); err != nil {
			return err
		}
		if err := (feed.ID{Instance: q.id.Instance}).Validate(); err != nil {
			return s.Refused(err)
		}
		return nil
	}},
	{Name: "worker", Read: func(s *scan.Scanner, q *lmcacheSyncRequest) error {
		n, err := s.Uint(store.MaxRanks-1, "a whole number")
		q.id.Worker = int(n)
		return err
	}},
}

var lmcacheSyncNames = scan.NamesOf(lmcacheSyncFields)

// lmcacheSyncReply is its answer.
type lmcacheSyncReply struct {
	Workers int `json:"workers"`
	Asked   int `json:"asked"`
}

// lmcacheSync is POST /v1/lmcache/sync.
func (c *call) lmcacheSync() error {
	syncer := c.s.cfg.Syncer
	if syncer == nil {
		return &refusal.Error{Status: http.StatusNotImplemented, Code: "no_lmcache", Message: "this server does not stand in for LMCache's controller: lmcache-controller-pull is not set"}
	}
	var q lmcacheSyncRequest
	f, err := read(c, lmcacheSyncFields, lmcacheSyncNames, &q)
	if err != nil {
		return err
	}
	switch {
	case !f.Has("worker"):
		q.id.Worker = -1
	case !f.Has("instance"):
		return refusal.Invalid("instance", "instance is missing: a worker is one of an instance")
	}
	heard, asked := syncer.AskSync(q.id.Instance, q.id.Worker)
	if heard == 0 && q.id.Instance != "" {
		e := &refusal.Error{Status: http.StatusNotFound, Code: "unknown_worker", Param: "instance", Message: "this server hears no worker of that instance: another replica may"}
		if f.Has("worker") {
			e.Param, e.Message = "worker", "this server does not hear that worker: another replica may"
		}
		return e
	}
	return c.replyJSON(http.StatusOK, lmcacheSyncReply{Workers: heard, Asked: asked})
}
