package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/lmcache/filing"
	"github.com/kvatlas/kvatlas/store"
)

// Controller takes what LMCache's workers say into an index. Its methods are safe for
// concurrent use.
type Controller struct {
	config  Config
	sockets []*zmq.Listener
	pull    *zmq.Listener
	beats   *zmq.Listener // nil without a socket for heartbeats
	count   counters
	ctx     context.Context // of all that serves
	end     context.CancelFunc
	wg      sync.WaitGroup

	mu      sync.Mutex // protects workers and told; it is taken before worker.mu
	workers map[filing.ID]*worker
	told    map[string]bool // locations that nobody knows, of which was told
}

// New binds the sockets and serves until Close.
func New(ctx context.Context, c Config) (_ *Controller, err error) {
	if c, err = c.withDefaults(); err != nil {
		return nil, err
	}
	x := &Controller{config: c, workers: map[filing.ID]*worker{}, told: map[string]bool{}}
	x.ctx, x.end = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = errors.Join(err, x.Close())
		}
	}()
	bind := func(endpoint string, kind zmq.Kind, handle func(*zmq.Peer, [][]byte)) (*zmq.Listener, error) {
		lc := c.listener(endpoint, kind)
		lc.Handle = handle
		lc.Refused = x.malformed
		l, err := zmq.Listen(ctx, lc)
		if err != nil {
			return nil, fmt.Errorf("controller: %s: %w", endpoint, err)
		}
		x.sockets = append(x.sockets, l)
		return l, nil
	}
	// Heartbeats first: their address is told by the next one.
	if c.Heartbeat != "" {
		if x.beats, err = bind(c.Heartbeat, zmq.Router, x.request); err != nil {
			return nil, err
		}
	}
	if c.Reply != "" {
		if _, err = bind(c.Reply, zmq.Router, x.request); err != nil {
			return nil, err
		}
	}
	if x.pull, err = bind(c.Pull, zmq.Pull, x.push); err != nil {
		return nil, err
	}
	x.wg.Go(x.beat)
	return x, nil
}

// Addrs are what the sockets are bound to: pull, reply, heartbeat; nil for those that
// are not there.
func (c *Controller) Addrs() (pull, reply, heartbeat net.Addr) {
	for _, l := range c.sockets {
		switch l {
		case c.pull:
			pull = l.Addr()
		case c.beats:
			heartbeat = l.Addr()
		default:
			reply = l.Addr()
		}
	}
	return pull, reply, heartbeat
}

// AskSync asks all workers for a full sync with their next heartbeats: for an index that
// has lost something.
func (c *Controller) AskSync() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.workers {
		w.wantSync("asked")
	}
}

// Close ends all. Registrations are left to their leases, so that another process, or
// this one started again, can go on with them.
func (c *Controller) Close() error {
	c.end()
	var errs []error
	for _, l := range c.sockets {
		errs = append(errs, l.Close())
	}
	c.wg.Wait()
	return errors.Join(errs...)
}

func (c *Controller) malformed(addr string, err error) {
	c.count.malformed.Add(1)
	if told := c.config.Observer.Malformed; told != nil {
		told(addr, err)
	}
}

// refused counts a message that asks for what cannot be.
func (c *Controller) refused(addr string, err error) {
	c.count.refused.Add(1)
	if told := c.config.Observer.Malformed; told != nil {
		told(addr, err)
	}
}

// push handles a message of a PUSH socket: each frame is one of LMCache's.
func (c *Controller) push(p *zmq.Peer, frames [][]byte) {
	for _, frame := range frames {
		m, err := decode(frame)
		if err != nil {
			c.malformed(p.Addr(), err)
			continue
		}
		c.count.messages.Add(1)
		if err := c.said(p, m); err != nil {
			c.refused(p.Addr(), err)
		}
	}
}

// errUnknown says that nobody knows a type of message.
var errUnknown = errors.New("controller: unknown type of message")

// said takes a message in that needs no answer.
func (c *Controller) said(p *zmq.Peer, m *message) error {
	switch m.Type {
	case "RegisterMsg", "DeRegisterMsg", "HeartbeatMsg", "KVAdmitMsg", "KVEvictMsg", "BatchedKVOperationMsg", "FullSyncBatchMsg", "FullSyncEndMsg":
	default:
		return fmt.Errorf("%w: %.60q", errUnknown, m.Type)
	}
	w, err := c.worker(p, m)
	if err != nil || w == nil {
		return err
	}
	switch m.Type {
	case "RegisterMsg":
		w.put(item{kind: doRegister})
	case "DeRegisterMsg":
		w.put(item{kind: doDeregister})
	case "KVAdmitMsg":
		return c.operations(w, m, []kvOp{{"admit", m.Key, m.Seq}})
	case "KVEvictMsg":
		return c.operations(w, m, []kvOp{{"evict", m.Key, m.Seq}})
	case "BatchedKVOperationMsg":
		return c.operations(w, m, m.Ops)
	case "FullSyncBatchMsg":
		return w.syncBatch(m)
	case "FullSyncEndMsg":
		w.put(item{kind: doSyncEnd, syncID: m.SyncID})
	}
	return nil
}

// operations queues admissions and evictions.
func (c *Controller) operations(w *worker, m *message, ops []kvOp) error {
	at, ok := locationOf(m.Location)
	if !ok {
		c.count.unknown.Add(uint64(len(ops)))
		c.mu.Lock()
		tell := !c.told[m.Location] && len(c.told) < 256
		if tell {
			c.told[m.Location] = true
		}
		c.mu.Unlock()
		if told := c.config.Observer.Location; tell && told != nil {
			told(m.Location)
		}
		return nil
	}
	var bad error
	it := item{location: at, ops: make([]op, 0, len(ops))}
	for i := range ops {
		o := &ops[i]
		var kind store.OpKind
		switch {
		case o.Key == nil:
			bad = fmt.Errorf("%w: operation %d has no key", errMalformed, i)
			continue
		case o.Op == "admit":
			kind = store.Add
		case o.Op == "evict":
			kind = store.Remove
		default:
			bad = fmt.Errorf("%w: operation %d is %.40q, neither admit nor evict", errMalformed, i, o.Op)
			continue
		}
		if c.config.Heard != nil && kind == store.Add {
			c.config.Heard(o.Key.Hash)
		}
		next := op{kind: kind, key: o.Key.ChunkKey()}
		if o.Seq != nil && *o.Seq < 1<<62 {
			next.seq = *o.Seq + 1
		}
		it.ops = append(it.ops, next)
	}
	if len(it.ops) > 0 {
		w.put(it)
	}
	return bad
}

// worker returns the worker that a message is of, which is nil for one of a process that
// is gone.
func (c *Controller) worker(p *zmq.Peer, m *message) (*worker, error) {
	id := filing.ID{Instance: m.Instance, Worker: m.Worker}
	if err := id.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Type, err)
	}
	w, err := c.known(id, p, m)
	if err != nil || !w.hear(p, m) {
		return nil, err
	}
	return w, nil
}

// known returns the worker of an id, which is a new one if it must be.
func (c *Controller) known(id filing.ID, p *zmq.Peer, m *message) (*worker, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.workers[id]; w != nil {
		return w, nil
	}
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	if len(c.workers) >= c.config.MaxWorkers {
		return nil, fmt.Errorf("%w: %v would be one more than %d workers", ErrFull, id, c.config.MaxWorkers)
	}
	ctx, stop := context.WithCancel(c.ctx)
	w := &worker{c: c, id: id, wake: make(chan struct{}, 1), stop: stop, peers: map[*zmq.Peer]struct{}{}}
	c.workers[id] = w
	c.wg.Go(func() { w.run(ctx) })
	if m.Type != "RegisterMsg" {
		// Find its pod, and take its generation over.
		w.put(item{kind: doRenew})
	}
	if host, _, err := net.SplitHostPort(p.Addr()); err == nil {
		w.mu.Lock()
		w.ip = host // as good a guess as there is, until it tells
		w.mu.Unlock()
	}
	return w, nil
}

// ErrFull says that there are as many workers as there can be.
var ErrFull = errors.New("controller: no room")

// remove ends a worker.
func (c *Controller) remove(w *worker, silent bool) {
	c.mu.Lock()
	if c.workers[w.id] == w {
		delete(c.workers, w.id)
	}
	c.mu.Unlock()
	w.stop()
	if silent {
		c.count.lapsed.Add(1)
	}
	if told := c.config.Observer.Gone; told != nil {
		told(w.id, silent)
	}
}

// workersOf is how many workers the instance of a worker has, as far as is known.
func (c *Controller) workersOf(reg *store.Registry, id filing.ID, t filing.Target) int {
	n := max(c.config.Workers, id.Worker+1, filing.Workers(reg, id.Instance, t))
	c.mu.Lock()
	defer c.mu.Unlock()
	for other := range c.workers {
		if other.Instance == id.Instance {
			n = max(n, other.Worker+1)
		}
	}
	return n
}

// nudge makes the other workers of an instance renew, so that all tell the same number of
// them.
func (c *Controller) nudge(id filing.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, w := range c.workers {
		if other.Instance == id.Instance && other.Worker < id.Worker {
			w.put(item{kind: doRenew})
		}
	}
}

// beat renews the workers that live, and ends those that do not.
func (c *Controller) beat() {
	tick := time.NewTicker(c.config.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		var list []*worker
		c.mu.Lock()
		for _, w := range c.workers {
			list = append(list, w)
		}
		c.mu.Unlock()
		for _, w := range list {
			if w.alive() {
				w.put(item{kind: doRenew})
			} else {
				c.remove(w, true)
			}
		}
	}
}

// request handles a message of a DEALER or REQ socket: an empty frame and LMCache's.
func (c *Controller) request(p *zmq.Peer, frames [][]byte) {
	m, err := decode(frames[len(frames)-1])
	var r reply
	if err != nil {
		c.malformed(p.Addr(), err)
		r = errorReply("%v", err)
	} else {
		c.count.messages.Add(1)
		r = c.answer(p, m)
	}
	// A reply that cannot be sent ends the connection, and the worker asks again.
	_ = p.Reply([]byte{}, r)
}

// answer handles a message that wants an answer.
func (c *Controller) answer(p *zmq.Peer, m *message) reply {
	switch m.Type {
	case "BatchedP2PLookupMsg":
		return c.peerLookup(m)
	case "LookupMsg":
		return c.lookup(m)
	case "QueryInstMsg":
		return c.queryInstance(m)
	case "RegisterMsg", "HeartbeatMsg", "FullSyncStartMsg", "FullSyncStatusMsg":
	default:
		err := c.said(p, m)
		if err == nil {
			err = fmt.Errorf("%w: %s wants no answer", errUnknown, m.Type)
		}
		c.refused(p.Addr(), err)
		return errorReply("%v", err)
	}
	w, err := c.worker(p, m)
	if err != nil {
		c.refused(p.Addr(), err)
		return errorReply("%v", err)
	}
	if w == nil {
		return errorReply("the worker has registered anew since")
	}
	switch m.Type {
	case "RegisterMsg":
		w.put(item{kind: doRegister})
		url := c.heartbeatURL(p)
		if url == "" {
			return newReply("RegisterRetMsg", 1).mapping("extra_config", 0)
		}
		return newReply("RegisterRetMsg", 1).mapping("extra_config", 1).text("heartbeat_url", url)
	case "HeartbeatMsg":
		why := w.ask(c.config.AskAgain)
		if why == "" {
			return newReply("HeartbeatRetMsg", 1).list("commands", 0)
		}
		c.count.asked.Add(1)
		command := reply(newMap(3)).text("command_type", "full_sync").text("reason", why).null("args")
		return append(newReply("HeartbeatRetMsg", 1).list("commands", 1), command...)
	case "FullSyncStartMsg":
		refusal := w.startSync(m)
		r := newReply("FullSyncStartRetMsg", 3).text("sync_id", m.SyncID).yes("accepted", refusal == "")
		if refusal == "" {
			return r.null("error_msg")
		}
		c.count.refused.Add(1)
		return r.text("error_msg", refusal)
	}
	return w.status(m)
}

// heartbeatURL is where a worker is to send heartbeats, "" is nowhere.
func (c *Controller) heartbeatURL(p *zmq.Peer) string {
	if c.config.HeartbeatURL != "" {
		return c.config.HeartbeatURL
	}
	if c.beats == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Local())
	bound, ok := c.beats.Addr().(*net.TCPAddr)
	if err != nil || !ok {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(bound.Port))
}

// peerLookup answers which other instance has the most of the chunks, for a worker that
// would fetch them: of the worker with the same number there.
func (c *Controller) peerLookup(m *message) reply {
	nobody := newReply("BatchedP2PLookupRetMsg", 1).list("layout_info", 1).values(4).item("").item("").int(0).item("")
	c.mu.Lock()
	w := c.workers[filing.ID{Instance: m.Instance, Worker: m.Worker}]
	c.mu.Unlock()
	if w == nil {
		return nobody
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.config.Timeout)
	defer cancel()
	w.mu.Lock()
	ip := w.ip
	w.mu.Unlock()
	targets, err := c.config.Pods.Find(c.config.Index.Cached(), m.Instance, ip)
	if err != nil {
		return nobody
	}
	keys := make([]blockkey.Key, len(m.Hashes))
	for i := range keys {
		keys[i] = m.Hashes[i].ChunkKey()
	}
	list, err := filing.Prefixes(ctx, c.config.Index, targets[0].Model, keys)
	if err != nil {
		c.count.failures.Add(1)
		return nobody
	}
	for _, found := range list {
		if found.Instance != m.Instance && found.Worker == m.Worker && found.Peer != "" {
			return newReply("BatchedP2PLookupRetMsg", 1).list("layout_info", 1).values(4).
				item(found.Instance).item(backendOf(found.Tier)).int(found.Chunks).item(found.Peer)
		}
	}
	return nobody
}

// lookup answers which instances hold the beginning of a text, in tokens.
func (c *Controller) lookup(m *message) reply {
	ctx, cancel := context.WithTimeout(c.ctx, c.config.Timeout)
	defer cancel()
	type place struct {
		where  string
		tokens int
	}
	found := map[string]place{}
	for model, h := range c.config.Hashers {
		var keys []blockkey.Key
		for _, hash := range h.Append(nil, m.Tokens) {
			keys = append(keys, hash.ChunkKey())
		}
		list, err := filing.Prefixes(ctx, c.config.Index, model, keys)
		if err != nil {
			c.count.failures.Add(1)
			return errorReply("the index does not answer")
		}
		for _, p := range filing.Whole(list) {
			if n := min(p.Chunks*h.ChunkSize(), len(m.Tokens)); n > found[p.Instance].tokens {
				found[p.Instance] = place{backendOf(p.Tier), n}
			}
		}
	}
	r := newReply("LookupRetMsg", 2).text("event_id", m.EventID).mapping("layout_info", len(found))
	for instance, p := range found {
		r = r.item(instance).values(2).item(p.where).int(p.tokens)
	}
	return r
}

// queryInstance answers which instance is at an IP, nil if none is.
func (c *Controller) queryInstance(m *message) reply {
	r := newReply("QueryInstRetMsg", 2).text("event_id", m.EventID)
	for _, p := range c.config.Index.Cached().Pods {
		if p.PartOf != nil && p.Labels[filing.LabelIP] == m.IP && m.IP != "" {
			return r.text("instance_id", p.Labels[filing.LabelInstance])
		}
	}
	return r.null("instance_id")
}
