package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/lmcache/feed"
)

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
		return c.peerLookup(p, m)
	case "LookupMsg":
		return c.lookup(m)
	case "QueryInstMsg":
		return c.queryInstance(m)
	case "RegisterMsg", "HeartbeatMsg", "FullSyncStartMsg", "FullSyncStatusMsg":
	default:
		err := c.said(p, m)
		switch {
		case errors.Is(err, errStale):
			return errorReply("%v", err)
		case err == nil:
			err = fmt.Errorf("%w: %s wants no answer", errUnknown, m.Type)
		}
		c.refused(p.Addr(), err)
		return errorReply("%v", err)
	}
	w, err := c.worker(p, m)
	if err != nil {
		if !errors.Is(err, errStale) { // which is counted as such
			c.refused(p.Addr(), err)
		}
		return errorReply("%v", err)
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
// would fetch them. It goes by the worker with the same number there.
func (c *Controller) peerLookup(p *zmq.Peer, m *message) reply {
	nobody := newReply("BatchedP2PLookupRetMsg", 1).list("layout_info", 1).values(4).item("").item("").int(0).item("")
	c.mu.Lock()
	id := feed.ID{Instance: m.Instance, Worker: m.Worker}
	w := c.speakers[p].w
	if !c.roll.has(w) || w.id != id {
		w = c.find(id, p, address{}, false)
	}
	c.mu.Unlock()
	if w == nil {
		return nobody
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.config.Timeout)
	defer cancel()
	target, err := w.place(c.config.Index.Cached())
	if err != nil {
		return nobody
	}
	keys := make([]blockkey.Key, len(m.Hashes))
	for i := range keys {
		keys[i] = m.Hashes[i].ChunkKey()
	}
	list, err := feed.Prefixes(ctx, c.config.Index, target.Model, keys)
	if err != nil {
		c.count.failures.Add(1)
		return nobody
	}
	for _, found := range list {
		own := found.Instance == m.Instance && found.Pod == target.Pod
		if !own && found.Worker == m.Worker && found.Peer != "" {
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
		list, err := feed.Prefixes(ctx, c.config.Index, model, keys)
		if err != nil {
			c.count.failures.Add(1)
			return errorReply("the index does not answer")
		}
		for _, p := range feed.Whole(list) {
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
		if p.PartOf != nil && p.Labels[feed.LabelIP] == m.IP && m.IP != "" {
			return r.text("instance_id", p.Labels[feed.LabelInstance])
		}
	}
	return r.null("instance_id")
}
