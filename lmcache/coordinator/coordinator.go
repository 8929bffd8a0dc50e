package coordinator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

// Coordinator is LMCache's coordinator as a http.Handler. It is safe for concurrent use.
type Coordinator struct {
	config Config
	mux    *http.ServeMux
	bodies chan struct{}
	flight atomic.Int64    // bytes of bodies
	plain  *lmcache.Hasher // LMCache's defaults
	count  counters

	mu        sync.Mutex // protects instances
	instances map[instanceID]*instance
}

// instanceID is an instance as it is told from others: servers that share an id are at
// different hosts.
type instanceID struct{ id, host string }

// Stats are figures for metrics. Those without another word count since the start.
type Stats struct {
	// Instances is how many instances this process has heard of.
	Instances int
	// Applied, Duplicates and Stale count batches.
	Applied, Duplicates, Stale uint64
	// Stored and Deleted count entries, Skipped those with a salt, a further object group or one worker too
	// many. Foreign counts those of models that the instance's pods do not serve, and Unplaced those of
	// instances without a pod.
	Stored, Deleted, Skipped, Foreign, Unplaced uint64
	// Gaps counts holes in the numbers of batches, and TookOver instances that another
	// process has written. Refused counts requests that could not be understood, and
	// Failures those that the index did not take.
	Gaps, TookOver, Refused, Failures uint64
	// Lookups counts lookups.
	Lookups uint64
}

type counters struct {
	applied, duplicates, stale                  atomic.Uint64
	stored, deleted, skipped, foreign, unplaced atomic.Uint64
	gaps, tookOver, refused, failures, lookups  atomic.Uint64
}

func (c *counters) add(t tally) {
	c.stored.Add(t.stored)
	c.deleted.Add(t.deleted)
	c.skipped.Add(t.skipped)
	c.foreign.Add(t.foreign)
	c.gaps.Add(t.gaps)
}

// New returns a Coordinator.
func New(c Config) (*Coordinator, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	x := &Coordinator{config: c, mux: http.NewServeMux(), bodies: make(chan struct{}, c.MaxBodies), instances: map[instanceID]*instance{}}
	if x.plain, err = lmcache.New(lmcache.Config{Version: lmcache.V046, MP: true}); err != nil {
		return nil, err
	}
	x.mux.HandleFunc("POST /events", x.events)
	x.mux.HandleFunc("POST /directory/lookup", x.lookup)
	x.mux.HandleFunc("POST /instances", x.register)
	x.mux.HandleFunc("GET /instances", x.list)
	x.mux.HandleFunc("PUT /instances/{id}/heartbeat", x.heartbeat)
	x.mux.HandleFunc("DELETE /instances/{id}", x.deregister)
	x.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "healthy"})
	})
	for path, why := range map[string]string{
		"/directory/keys":           "the index keeps 64 bits of a chunk's hash and cannot list keys by holder",
		"/directory/stats":          "the index counts no keys by holder",
		"/directory/blend-lookup":   "the index keeps no tokens",
		"GET /instances/usage":      "the index keeps no sizes",
		"GET /instances/{id}/usage": "the index keeps no sizes",
		"/quota":                    "kvatlas keeps no quotas", "/quota/{rest...}": "kvatlas keeps no quotas",
		"/cache/{rest...}": "kvatlas gives no orders to servers",
	} {
		x.mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			fail(w, http.StatusNotImplemented, why)
		})
	}
	return x, nil
}

// ServeHTTP implements http.Handler.
func (c *Coordinator) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.mux.ServeHTTP(w, r) }

// Stats returns figures as of now.
func (c *Coordinator) Stats() Stats {
	n := &c.count
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{
		Instances: len(c.instances), Applied: n.applied.Load(), Duplicates: n.duplicates.Load(), Stale: n.stale.Load(),
		Stored: n.stored.Load(), Deleted: n.deleted.Load(), Skipped: n.skipped.Load(), Foreign: n.foreign.Load(), Unplaced: n.unplaced.Load(),
		Gaps: n.gaps.Load(), TookOver: n.tookOver.Load(), Refused: n.refused.Load(), Failures: n.failures.Load(), Lookups: n.lookups.Load(),
	}
}

func (c *Coordinator) feed() feed.Config {
	return feed.Config{Index: c.config.Index, Lease: c.config.Lease, Timeout: c.config.Timeout}
}

func (c *Coordinator) registry(ctx context.Context) (*store.Registry, error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	return c.config.Index.Registry(ctx)
}

// answer writes a JSON body.
func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that does not read it does not want it
}

// fail writes an error as FastAPI does.
func fail(w http.ResponseWriter, status int, why string) {
	answer(w, status, map[string]string{"detail": why})
}

// read reads a body and has it decoded. It answers by itself when that cannot be. The
// caller calls done when it needs the body's contents no more.
func (c *Coordinator) read(w http.ResponseWriter, r *http.Request, decode func(gjson.Result) error) (done func(), ok bool) {
	taken := int64(0)
	done = func() { c.flight.Add(-taken) }
	// A slow client holds what it has sent, for ReadTimeout, and takes no place of the others.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(c.config.ReadTimeout)) // where there is no connection it cannot be slow
	body, err := c.receive(r.Body, &taken)
	if err == nil {
		// Else it stays, for the server reads on before it closes the connection.
		_ = control.SetReadDeadline(time.Time{})
		select {
		case c.bodies <- struct{}{}:
		case <-r.Context().Done():
			done()
			return nil, false
		}
		var v gjson.Result
		if v, err = parse(body); err == nil {
			err = decode(v)
		}
		<-c.bodies
	}
	if err != nil {
		done()
		status := http.StatusUnprocessableEntity
		if f, ok := errors.AsType[*fault](err); ok {
			status = f.status
		}
		if status != http.StatusUnprocessableEntity {
			w.Header().Set("Connection", "close") // what is left of it need not be read
		}
		c.refuse(w, r, status, err)
		return nil, false
	}
	return done, true
}

// receive reads a body, and takes room of MaxInFlight for it, which it adds to taken.
func (c *Coordinator) receive(from io.Reader, taken *int64) ([]byte, error) {
	var body []byte
	for {
		if len(body) == cap(body) {
			more := max(4096, int64(len(body)))
			more = min(more, c.config.MaxBody+1-int64(len(body)))
			if more <= 0 {
				return nil, &fault{status: http.StatusRequestEntityTooLarge, why: fmt.Sprintf("has more than %d bytes", c.config.MaxBody)}
			}
			*taken += more
			if c.flight.Add(more) > c.config.MaxInFlight {
				return nil, &fault{status: http.StatusServiceUnavailable, why: "finds no room: too many bytes are being worked on at the moment"}
			}
			body = append(make([]byte, 0, int64(len(body))+more), body...)
		}
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > c.config.MaxBody || err == nil:
		case errors.Is(err, io.EOF):
			return body, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, &fault{status: http.StatusRequestTimeout, why: fmt.Sprintf("has not come within %v", c.config.ReadTimeout)}
		default:
			return nil, &fault{status: http.StatusBadRequest, why: "cannot be read: " + clip(err.Error(), 100)}
		}
	}
}

func (c *Coordinator) refuse(w http.ResponseWriter, r *http.Request, status int, err error) {
	if why := err.Error(); len(why) > 512 {
		err = errors.New(clip(why, 512))
	}
	c.count.refused.Add(1)
	c.config.Observer.Refused(r.RemoteAddr, err)
	fail(w, status, err.Error())
}

// unavailable answers that the index does not take something, and why.
func (c *Coordinator) unavailable(w http.ResponseWriter, instance string, err error) {
	c.count.failures.Add(1)
	c.config.Observer.Failed(instance, err)
	switch {
	case errors.Is(err, store.ErrFull):
		fail(w, http.StatusInsufficientStorage, "the index has no room for another registration: "+err.Error())
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		fail(w, http.StatusServiceUnavailable, "the index does not answer: "+err.Error())
	default:
		fail(w, http.StatusServiceUnavailable, "the index does not take it: "+err.Error())
	}
}

// hostOf is where a request comes from, "" of none that is known.
func hostOf(r *http.Request) string {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return host
}

// errFull says that there are as many instances as there can be.
var errFull = errors.New("coordinator: as many instances as there can be")

// instance returns the instance of an id, nil if there is none and none is to be made. One
// that was silent for long makes room for another.
func (c *Coordinator) instance(id, host string, create bool) (*instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.instances[instanceID{id, host}]
	if in == nil && create {
		if len(c.instances) >= c.config.MaxInstances {
			for other, old := range c.instances {
				if old.silent() > 2*c.config.Lease {
					delete(c.instances, other)
				}
			}
		}
		if len(c.instances) >= c.config.MaxInstances {
			return nil, fmt.Errorf("%w: %d", errFull, c.config.MaxInstances)
		}
		in = &instance{c: c, id: id, host: host, workers: map[workerID]*feed.Worker{}}
		c.instances[instanceID{id, host}] = in
	}
	if in != nil {
		in.memberMu.Lock()
		in.heard = time.Now()
		in.memberMu.Unlock()
	}
	return in, nil
}

func (in *instance) silent() time.Duration {
	in.memberMu.Lock()
	defer in.memberMu.Unlock()
	return time.Since(in.heard)
}

// events handles POST /events.
func (c *Coordinator) events(w http.ResponseWriter, r *http.Request) {
	var batches []batch
	done, ok := c.read(w, r, func(v gjson.Result) (err error) {
		batches, err = c.readBatches(v)
		return err
	})
	if !ok {
		return
	}
	defer done()
	var total summary
	for list := batches; len(list) > 0; {
		n := 1
		for n < len(list) && list[n].Instance == list[0].Instance {
			n++
		}
		in, err := c.instance(list[0].Instance, hostOf(r), true)
		if err != nil {
			c.refuse(w, r, http.StatusServiceUnavailable, err)
			return
		}
		s, err := in.ingest(r.Context(), list[:n])
		if err != nil {
			c.unavailable(w, in.id, err)
			return
		}
		total.Applied += s.Applied
		total.Duplicates += s.Duplicates
		total.Stale += s.Stale
		c.count.applied.Add(uint64(s.Applied))
		c.count.duplicates.Add(uint64(s.Duplicates))
		c.count.stale.Add(uint64(s.Stale))
		list = list[n:]
	}
	answer(w, http.StatusOK, total)
}

// register handles POST /instances.
func (c *Coordinator) register(w http.ResponseWriter, r *http.Request) {
	var m member
	done, ok := c.read(w, r, m.read)
	if !ok {
		return
	}
	defer done()
	m.ID, m.IP, m.P2P = strings.TrimSpace(m.ID), strings.TrimSpace(m.IP), strings.TrimSpace(m.P2P)
	if m.ID == "" {
		m.ID = "mp-" + strings.ToLower(rand.Text())
	}
	err := (feed.ID{Instance: m.ID}).Validate()
	switch {
	case err != nil:
	case m.IP == "" || len(m.IP) > 253 || len(m.P2P) > 512:
		err = errors.New("ip has 1 to 253 bytes, p2p_advertised_url up to 512")
	case m.Port < 1 || m.Port > 65535 || m.MQPort < 0 || m.MQPort > 65535:
		err = errors.New("http_port can be 1 to 65535, mq_port 0 to 65535")
	}
	if err != nil {
		c.refuse(w, r, http.StatusUnprocessableEntity, err)
		return
	}
	in, err := c.instance(m.ID, hostOf(r), true)
	if err != nil {
		c.refuse(w, r, http.StatusServiceUnavailable, err)
		return
	}
	if m.Metadata == nil {
		m.Metadata = map[string]string{}
	}
	m.Registered = float64(time.Now().UnixMicro()) / 1e6
	in.memberMu.Lock()
	again := in.member.ID != ""
	if again && (in.member.IP != m.IP || in.member.Port != m.Port) {
		in.before, in.replaced = in.member, time.Now()
	}
	in.member = m
	in.memberMu.Unlock()
	answer(w, http.StatusOK, struct {
		ID    string `json:"instance_id"`
		Again bool   `json:"re_registered"`
	}{m.ID, again})
}

// heartbeat handles PUT /instances/{id}/heartbeat.
func (c *Coordinator) heartbeat(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	in, err := c.instance(id, hostOf(r), false)
	if in == nil || err != nil || !in.registered() {
		// It registers anew then, which costs it nothing.
		answer(w, http.StatusNotFound, map[string]string{"error": fmt.Sprintf("unknown instance %s; re-register", id)})
		return
	}
	if err := in.beat(r.Context()); err != nil {
		c.unavailable(w, id, err)
		return
	}
	answer(w, http.StatusOK, map[string]string{"instance_id": id})
}

func (in *instance) registered() bool {
	in.memberMu.Lock()
	defer in.memberMu.Unlock()
	return in.member.ID != ""
}

// deregister handles DELETE /instances/{id}.
func (c *Coordinator) deregister(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if err := (feed.ID{Instance: id}).Validate(); err == nil {
		// Another replica may have its events: the index knows.
		in, err := c.instance(id, hostOf(r), false)
		if in == nil {
			in = &instance{c: c, id: id, host: hostOf(r)}
		}
		if err = cmp.Or(err, in.retire(r.Context())); err != nil {
			c.unavailable(w, id, err)
			return
		}
		c.mu.Lock()
		delete(c.instances, instanceID{id, in.host})
		c.mu.Unlock()
	}
	w.WriteHeader(http.StatusNoContent)
}

// list handles GET /instances.
func (c *Coordinator) list(w http.ResponseWriter, _ *http.Request) {
	list := []member{}
	c.mu.Lock()
	for _, in := range c.instances {
		in.memberMu.Lock()
		if in.member.ID != "" {
			list = append(list, in.member.clone())
		}
		in.memberMu.Unlock()
	}
	c.mu.Unlock()
	slices.SortFunc(list, func(a, b member) int { return cmp.Compare(a.ID, b.ID) })
	answer(w, http.StatusOK, map[string]any{"instances": list})
}
