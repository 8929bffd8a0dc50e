package server

import (
	"net/http"

	"github.com/kvatlas/kvatlas/lmcache/controller"
	"github.com/kvatlas/kvatlas/lmcache/filing"
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
type lmcacheSyncRequest struct{ id filing.ID }

var lmcacheSyncFields = fields[lmcacheSyncRequest]{
	{"instance", func(s *scanner, q *lmcacheSyncRequest) error {
		if err := s.text(&q.id.Instance); err != nil {
			return err
		}
		if err := (filing.ID{Instance: q.id.Instance}).Validate(); err != nil {
			return s.refused(err)
		}
		return nil
	}},
	{"worker", func(s *scanner, q *lmcacheSyncRequest) error {
		n, err := s.uint(store.MaxRanks-1, "a whole number")
		q.id.Worker = int(n)
		return err
	}},
}

var lmcacheSyncNames = namesOf(lmcacheSyncFields)

// lmcacheSyncReply is its answer.
type lmcacheSyncReply struct {
	Workers int `json:"workers"`
	Asked   int `json:"asked"`
}

// lmcacheSync is POST /v1/lmcache/sync.
func (c *call) lmcacheSync() error {
	syncer := c.s.cfg.Syncer
	if syncer == nil {
		return &apiError{status: http.StatusNotImplemented, code: "no_lmcache", message: "this server does not stand in for LMCache's controller: lmcache-controller-pull is not set"}
	}
	var q lmcacheSyncRequest
	f, err := read(c, lmcacheSyncFields, lmcacheSyncNames, &q)
	if err != nil {
		return err
	}
	switch {
	case !f.has("worker"):
		q.id.Worker = -1
	case !f.has("instance"):
		return invalid("instance", "instance is missing: a worker is one of an instance")
	}
	heard, asked := syncer.AskSync(q.id.Instance, q.id.Worker)
	if heard == 0 && q.id.Instance != "" {
		e := &apiError{status: http.StatusNotFound, code: "unknown_worker", param: "instance", message: "this server hears no worker of that instance: another replica may"}
		if f.has("worker") {
			e.param, e.message = "worker", "this server does not hear that worker: another replica may"
		}
		return e
	}
	return c.replyJSON(http.StatusOK, lmcacheSyncReply{Workers: heard, Asked: asked})
}
