package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
)

// Check looks at the servers of the index and says what it finds: what is as it
// should be, and what will cost something, in words and with the remedy.
// docs/operations.md has a paragraph on each. budget is the time that a lookup
// may take, against which round trips are held.
//
// It changes nothing and takes about a hundred round trips on connections of its
// own; samples are bounded, so that it may be called on a busy server of any
// size. What it is not allowed to look at, it says so.
//
// When servers cannot be reached, that is a finding, and the error is
// store.ErrUnavailable as well.
func (x *Index) Check(ctx context.Context, budget time.Duration) ([]check.Finding, error) {
	if err := x.begin(ctx, "check"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(x.life, cancel)()

	to := x.config.connection(x.conn.Target)
	to.Log = nil // findings say it
	conn := redisx.Open(to)
	c := &checker{x: x, client: conn.Client, budget: budget}
	defer func() { _ = conn.Close() }()
	err := c.run(ctx)
	slices.SortStableFunc(c.findings, func(a, b check.Finding) int {
		return slices.Index(checkNames, a.What) - slices.Index(checkNames, b.What)
	})
	return c.findings, failed(ctx, "check", err)
}

// checkTrips is how many round trips are timed.
const checkTrips = 20

// checker is one check.
type checker struct {
	x      *Index
	client redis.UniversalClient
	budget time.Duration

	findings []check.Finding
}

func (c *checker) add(f check.Finding) { c.findings = append(c.findings, f) }

func (c *checker) run(ctx context.Context) error {
	if err := c.reach(ctx); err != nil {
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.add(unreachable(c.x.conn.Target, err))
		}
		return err
	}
	looks, err := c.looks(ctx)
	if err != nil {
		// Some master of a cluster; the others have been looked at.
		c.add(unreachable(c.x.conn.Target, err))
	}
	c.add(check.Finding{Level: check.OK, What: "connection", Found: fmt.Sprintf("%s, RESP%d", c.x.conn.Target, c.x.config.Protocol)})
	c.findings = append(c.findings, merge(looks)...)
	c.dataModel(ctx)
	if c.x.cluster {
		c.spread(ctx, looks)
	}
	return err
}

// reach makes a round trip. That the reply is a refusal is found later.
func (c *checker) reach(ctx context.Context) error {
	err := c.client.Get(ctx, c.x.names.epoch).Err()
	if err == nil || errors.Is(err, redis.Nil) {
		return nil
	}
	// The connection's own first commands may have been refused, too.
	if strings.Contains(err.Error(), "client|setname") || strings.Contains(err.Error(), "'select'") {
		return err
	}
	for _, refusal := range []string{"NOPERM", "WRONGTYPE", "MOVED", "READONLY"} {
		if strings.HasPrefix(err.Error(), refusal) {
			return nil
		}
	}
	return err
}

// looks looks at each master.
func (c *checker) looks(ctx context.Context) ([]*look, error) {
	var mu sync.Mutex // protects all
	var all []*look
	visit := func(ctx context.Context, node *redis.Client) error {
		l := &look{addr: node.Options().Addr, target: c.x.conn.Target, prefix: c.x.config.Prefix, budget: c.budget}
		if c.x.conn.Target.Topology == redisx.Sentinel {
			l.addr = "" // a placeholder of the client; there is but one
		}
		err := l.take(ctx, node, c.x.names)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			l.judge()
			all = append(all, l)
		}
		return err
	}
	var err error
	switch client := c.client.(type) {
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, visit)
	case *redis.Client:
		err = visit(ctx, client)
	default:
		err = fmt.Errorf("redis: a client of type %T cannot be checked", c.client)
	}
	slices.SortFunc(all, func(a, b *look) int { return cmp.Compare(a.addr, b.addr) })
	return all, err
}

// merge joins the findings about single servers. What is the same everywhere is
// said once.
func merge(looks []*look) []check.Finding {
	var out []check.Finding
	where := map[check.Finding][]string{}
	for _, l := range looks {
		for _, f := range l.findings {
			if where[f] == nil {
				out = append(out, f)
			}
			where[f] = append(where[f], l.addr)
		}
	}
	for i, f := range out {
		if at := where[f]; len(at) < len(looks) {
			out[i].Where = strings.Join(at, ", ")
		}
	}
	return out
}

// checkNames are the names of all findings, in the order in which they are told.
var checkNames = []string{
	"connection", "version", "access", "memory limit", "eviction policy", "memory of a block", "persistence", "replication",
	"round trip", "clock", "clients", "output buffers", "background work", "keys", "information", "data model", "registry", "cluster",
}

// unreachable says why servers cannot be reached and what to do about it.
func unreachable(t *redisx.Target, err error) check.Finding {
	f := check.Finding{
		Level: check.Fail, What: "connection", Found: t.String() + ": " + strings.TrimPrefix(err.Error(), "redis: "),
		Means: "scores are 0 and marked as degraded, and nothing can be written, until it works; then all goes on by itself",
	}
	said := func(what string) bool { return strings.Contains(err.Error(), what) }
	_, unknownCA := errors.AsType[x509.UnknownAuthorityError](err)
	_, otherName := errors.AsType[x509.HostnameError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	_, noHost := errors.AsType[*net.DNSError](err)
	switch {
	case said("WRONGPASS"), said("invalid password"):
		f.Do = "correct user and password in the URL; a special character in them is percent-encoded"
	case said("NOAUTH"):
		f.Do = "put the user and the password into the URL: redis://user:password@host; a password alone is :password@"
	case said("NOPERM"):
		f.Do = "allow the user client|setname, and select when the URL names a database; docs/operations.md has the whole list"
	case said("DB index is out of range"), said("SELECT is not allowed"):
		f.Do = "use a database that the server has: the number at the end of the URL, 0 without one"
	case said("cluster support disabled"):
		f.Do = "the server is no cluster: begin the URL with redis:// in place of redis+cluster://"
	case said("CLUSTERDOWN"):
		f.Do = "some slots have no master: CLUSTER INFO and CLUSTER NODES tell which; start the masters that are down, or fail over to their replicas"
	case said("LOADING"):
		f.Do = "wait: the server is reading its data"
	case said("MASTERDOWN"):
		f.Do = "the server is a replica without its master: start the master, or fail over"
	case unknownCA:
		f.Do = "name the file of the authority that signed the server's certificate in the URL: ?ca=/path/ca.crt"
	case otherName:
		f.Do = "use a host name that the server's certificate has, or say which it has: ?server_name=NAME"
	case said("certificate required"), said("bad certificate"), said("unknown certificate authority"):
		f.Do = "the server wants a client certificate that it knows: ?cert=/path/client.crt&key=/path/client.key"
	case noTLS:
		f.Do = "this port does not speak TLS: begin the URL with redis in place of rediss, or use the server's tls-port"
	case noHost:
		f.Do = "the host is not known here: correct the name in the URL, or the resolver"
	case errors.Is(err, fs.ErrPermission):
		f.Do = "let this user read and write the socket (unixsocketperm)"
	case errors.Is(err, fs.ErrNotExist):
		f.Do = "there is no such socket: correct the path in the URL, or set unixsocket on the server"
	case errors.Is(err, syscall.ECONNREFUSED) && t.Topology != redisx.Sentinel:
		f.Do = "nothing listens there: start the server, or correct host and port in the URL"
	case t.Topology == redisx.Sentinel:
		f.Do = "ask a sentinel who it thinks is master: redis-cli -p 26379 SENTINEL GET-MASTER-ADDR-BY-NAME " + t.Master + "; correct hosts and name in the URL when it does not answer"
	case !t.TLS() && (said("EOF") || errors.Is(err, syscall.ECONNRESET)):
		f.Do = "the server hangs up: if the port speaks TLS, begin the URL with rediss in place of redis"
	case t.TLS() && (said("timeout") || errors.Is(err, context.DeadlineExceeded)):
		f.Do = "no handshake in time: if the port does not speak TLS, begin the URL with redis in place of rediss; else see whether a firewall is in between"
	case errors.Is(err, context.DeadlineExceeded), said("i/o timeout"):
		f.Do = "no answer in time: see whether a firewall is in between, and whether the server is stopped or overloaded"
	default:
		f.Do = "try redis-cli with the same host, port and user from this machine"
	}
	return f
}

// dataModel reads what the index says of itself.
func (c *checker) dataModel(ctx context.Context) {
	x := c.x
	f := check.Finding{What: "data model"}
	snap, late, err := x.read(ctx, x.registry.current.Load())
	switch {
	case errors.Is(err, ErrSchema):
		f.Level, f.Found = check.Fail, strings.TrimPrefix(err.Error(), "redis: ")
		f.Means = "this version neither reads nor writes under the prefix " + x.config.Prefix
		f.Do = "choose another prefix (redis-prefix), or run the version that wrote it"
	case err != nil && strings.Contains(err.Error(), "WRONGTYPE"):
		f.Level, f.Found = check.Fail, "a key of the registry is of another type: "+err.Error()
		f.Means = "something else uses the prefix " + x.config.Prefix + "; nothing can be scored"
		f.Do = "delete that key, or choose another prefix (redis-prefix)"
	case err != nil:
		f.Level, f.Found = check.Fail, "the registry cannot be read: "+err.Error()
		f.Means = "who holds what cannot be told: nothing is scored"
	case snap.registry.Epoch == 0 && len(snap.registry.Models) == 0:
		f.Level, f.Found = check.Info, "the prefix "+x.config.Prefix+" is unused: nothing has been written yet"
		f.Means = "every score is 0 until pods register and write"
	default:
		f.Found = fmt.Sprintf("schema %d with %d partitions, prefix %s", Schema, blockkey.Partitions, x.config.Prefix)
	}
	c.add(f)
	if err != nil {
		return
	}
	c.values(ctx)
	r := snap.registry
	if r.Epoch == 0 {
		return
	}
	reg := check.Finding{What: "registry", Found: fmt.Sprintf("%s, %s, %s", count(len(r.Pods), "pod"), count(len(r.Holders()), "holder"), count(len(r.Models), "model"))}
	if len(late) > 0 {
		reg.Found += fmt.Sprintf("; the leases of %s have run out", count(len(late), "further pod"))
	}
	for _, full := range []struct {
		n, limit int
		what     string
	}{{len(r.Pods), x.config.MaxPods, "pods"}, {len(r.Holders()), x.config.MaxHolders, "holders"}, {len(r.Models), x.config.MaxModels, "models"}} {
		if full.n >= full.limit-full.limit/10 {
			reg.Level = check.Warn
			reg.Means = fmt.Sprintf("%d %s are allowed; beyond it, new ones are refused", full.limit, full.what)
			reg.Do = "retire what is gone, or raise index-max-" + full.what
		}
	}
	c.add(reg)
}

// values looks for numbers and settings that no script has written.
func (c *checker) values(ctx context.Context) {
	n := c.x.names
	bad := func(key, field, value, means, do string) {
		if field != "" {
			key += ", field " + field
		}
		c.add(check.Finding{Level: check.Warn, What: "data model", Found: fmt.Sprintf("%s is %q, which it cannot be", key, redisx.Clip(value)), Means: means, Do: do})
	}
	const itself = "nothing: it mends itself with the next registration, clear or new holder; find out who writes there"
	pipe := c.client.Pipeline()
	meta, counts, epoch := pipe.HGetAll(ctx, n.meta), pipe.HMGet(ctx, n.count, "holder", "reserved", "ended", "swept"), pipe.Get(ctx, n.epoch)
	_, _ = pipe.Exec(ctx) // each is looked at; what cannot be read has been told
	for _, field := range slices.Sorted(maps.Keys(meta.Val())) {
		name, ok := strings.CutPrefix(field, modelField)
		if !ok {
			continue
		}
		if _, err := parseModel(name, meta.Val()[field]); err != nil {
			bad(n.meta, field, meta.Val()[field], "the model counts as not set: each process cuts its prompts by its own block size, and writes may be refused", n.unfix(name)+" makes the next write fix it anew")
		}
	}
	numbers := map[string]uint64{}
	for i, field := range []string{"holder", "reserved", "ended", "swept"} {
		text, there := "", false
		if i < len(counts.Val()) {
			text, there = counts.Val()[i].(string)
		}
		v, err := strconv.ParseUint(text, 10, 53)
		numbers[field] = v
		// Its copy is never above it.
		low, _ := strconv.ParseUint(meta.Val()[field], 10, 53)
		if there && (err != nil || i < 2 && v >= uint64(store.FirstLocal)) || (there || len(counts.Val()) > 0) && v < low {
			bad(n.count, field, text, "it is taken for lost: ids begin anew above all that have been given, and the index is swept", itself)
		}
	}
	if numbers["swept"] > numbers["ended"] {
		bad(n.count, "swept", fmt.Sprint(numbers["swept"]), fmt.Sprintf("only %d lives have ended: the index is swept anew", numbers["ended"]), itself)
	}
	if text := epoch.Val(); text != "" {
		if v, err := strconv.ParseUint(text, 10, 64); err != nil || v >= maxEpoch {
			bad(n.epoch, "", text, "it is taken for lost: every lookup loads the registry", itself)
		}
	}
}

// spread tells how the partitions lie on the masters of a cluster.
func (c *checker) spread(ctx context.Context, looks []*look) {
	client, ok := c.client.(*redis.ClusterClient)
	if !ok {
		return
	}
	held := map[string]int{}
	for _, l := range looks {
		held[l.addr] = 0
	}
	var lost []string
	for p := range blockkey.Partitions {
		m, err := client.MasterForKey(ctx, c.x.names.high(p))
		if err != nil {
			lost = append(lost, fmt.Sprint(p))
			continue
		}
		held[m.Options().Addr]++
	}
	f := check.Finding{What: "cluster"}
	if len(lost) > 0 {
		f.Level, f.Found = check.Fail, fmt.Sprintf("no master for partitions %s", strings.Join(lost, ", "))
		f.Means = "lookups of their blocks fail; answers are degraded"
		f.Do = "CLUSTER NODES tells which slots have no master; redis-cli --cluster fix gives them one"
		c.add(f)
		return
	}
	var least, most int
	var each []string
	for i, addr := range slices.Sorted(maps.Keys(held)) {
		n := held[addr]
		if i == 0 {
			least, most = n, n
		}
		least, most = min(least, n), max(most, n)
		each = append(each, fmt.Sprintf("%s: %d", addr, n))
	}
	f.Found = fmt.Sprintf("%s of %d partitions (%s)", count(len(held), "master"), blockkey.Partitions, strings.Join(each, ", "))
	even := (blockkey.Partitions + len(held) - 1) / len(held)
	if most > even+max(1, even/2) {
		f.Level = check.Warn
		f.Means = fmt.Sprintf("one master does the work of %d partitions where an even share is %d, and another that of %d", most, even, least)
		f.Do = "redis-cli --cluster rebalance evens the slots out; partitions follow slots"
	}
	c.add(f)
}

// count is a number of things, in words.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
