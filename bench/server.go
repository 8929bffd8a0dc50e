package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/cputime"
)

// server is the Redis that is measured, seen from the side: what it counts, and
// what lies in it. It is one server or the masters of a cluster.
type server struct {
	client redis.UniversalClient
	// nodes are the server, or the cluster's masters.
	nodes []*redis.Client
	trips *tripCounter
}

// errNotEmpty says that the database has keys, so that it may be in use.
var errNotEmpty = errors.New("bench: the database is not empty")

// connect connects to a server as the peer does: with go-redis and its defaults.
func connect(ctx context.Context, address string) (*server, error) {
	client, err := newClient(address)
	if err != nil {
		return nil, err
	}
	s := &server{client: client, trips: &tripCounter{}}
	client.AddHook(s.trips)
	if s.nodes, err = mastersOf(ctx, client); err != nil {
		return nil, errors.Join(fmt.Errorf("bench: the server cannot be reached: %w", err), client.Close())
	}
	return s, nil
}

func (s *server) close() error { return s.client.Close() }

func (s *server) cluster() bool {
	_, ok := s.client.(*redis.ClusterClient)
	return ok
}

// newClient makes a client of a URL in one of the forms of store/redis but that
// of sentinels.
func newClient(address string) (redis.UniversalClient, error) {
	scheme, rest, _ := strings.Cut(address, "://")
	switch scheme {
	case "redis+cluster", "rediss+cluster":
		options := &redis.ClusterOptions{}
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			user, password, _ := strings.Cut(rest[:i], ":")
			var err1, err2 error
			options.Username, err1 = url.PathUnescape(user)
			options.Password, err2 = url.PathUnescape(password)
			if err1 != nil || err2 != nil {
				return nil, errors.New("bench: the user or password in the URL cannot be read")
			}
			rest = rest[i+1:]
		}
		if scheme != "redis+cluster" || strings.ContainsAny(rest, "?/") {
			return nil, errors.New("bench: a cluster's URL can only be redis+cluster://[user:password@]host:port[,host:port...] here")
		}
		options.Addrs = strings.Split(rest, ",")
		return redis.NewClusterClient(options), nil
	case "redis+sentinel", "rediss+sentinel":
		return nil, errors.New("bench: name the master itself, not its sentinels: a failover would end the run anyway")
	}
	options, err := redis.ParseURL(address)
	if err != nil {
		// go-redis may quote the URL with its password.
		return nil, errors.New("bench: the URL cannot be read; the forms are redis://[user:password@]host:port[/db], rediss://..., unix:///path and redis+cluster://host:port[,host:port]")
	}
	return redis.NewClient(options), nil
}

func mastersOf(ctx context.Context, client redis.UniversalClient) ([]*redis.Client, error) {
	switch c := client.(type) {
	case *redis.Client:
		return []*redis.Client{c}, c.Ping(ctx).Err()
	case *redis.ClusterClient:
		var mu sync.Mutex // protects nodes
		var nodes []*redis.Client
		err := c.ForEachMaster(ctx, func(ctx context.Context, n *redis.Client) error {
			mu.Lock()
			nodes = append(nodes, n)
			mu.Unlock()
			return n.Ping(ctx).Err()
		})
		slices.SortFunc(nodes, func(a, b *redis.Client) int { return strings.Compare(a.Options().Addr, b.Options().Addr) })
		return nodes, err
	}
	return nil, fmt.Errorf("bench: a client of type %T", client)
}

// tripCounter counts round trips: commands alone, and pipelines.
type tripCounter struct {
	mu sync.Mutex // protects n
	n  uint64
}

func (t *tripCounter) count() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

func (t *tripCounter) add() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

// DialHook implements redis.Hook.
func (t *tripCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (t *tripCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		t.add()
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (t *tripCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		t.add()
		return next(ctx, cmds)
	}
}

// reading is what the servers have used and carried since they began.
type reading struct {
	cpu     time.Duration // of the main threads
	in, out float64       // bytes
}

func (s *server) read(ctx context.Context) (reading, error) {
	var r reading
	for _, n := range s.nodes {
		pipe := n.Pipeline()
		cpu, stats := pipe.Info(ctx, "cpu"), pipe.Info(ctx, "stats")
		if _, err := pipe.Exec(ctx); err != nil {
			return r, err
		}
		st := parseInfo(stats.Val())
		r.cpu += cputime.Redis(cpu.Val())
		r.in += number(st["total_net_input_bytes"])
		r.out += number(st["total_net_output_bytes"])
	}
	return r, nil
}

// ownTraffic is what two readings in a row differ by: the first one's reply and
// the second one's request.
func (s *server) ownTraffic(ctx context.Context) (reading, error) {
	var before, after reading
	var err error
	for range 2 {
		if before, err = s.read(ctx); err != nil {
			return reading{}, err
		}
		if after, err = s.read(ctx); err != nil {
			return reading{}, err
		}
	}
	return reading{in: after.in - before.in, out: after.out - before.out}, nil
}

func parseInfo(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if name, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			out[name] = v
		}
	}
	return out
}

func number(s string) float64 {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0
	}
	return f
}

// keys is the number of keys.
func (s *server) keys(ctx context.Context) (int64, error) {
	var sum int64
	for _, n := range s.nodes {
		k, err := n.DBSize(ctx).Result()
		if err != nil {
			return 0, err
		}
		sum += k
	}
	return sum, nil
}

func (s *server) mustBeEmpty(ctx context.Context) error {
	switch n, err := s.keys(ctx); {
	case err != nil:
		return err
	case n > 0:
		return fmt.Errorf("%w: it has %d keys. Name an empty one (redis://host:port/db), or let the program start a server of its own", errNotEmpty, n)
	}
	return nil
}

// memory is what the data take, in bytes: all that the servers have allocated
// but the buffers of connections.
func (s *server) memory(ctx context.Context) (float64, error) {
	var sum float64
	for _, n := range s.nodes {
		text, err := n.Info(ctx, "memory").Result()
		if err != nil {
			return 0, err
		}
		m := parseInfo(text)
		sum += number(m["used_memory"]) - number(m["mem_clients_normal"])
	}
	return sum, nil
}

// settledMemory waits until the memory stays as it is: deleted values are freed
// in the background, tables grow and shrink step by step.
func (s *server) settledMemory(ctx context.Context, interval time.Duration) (float64, error) {
	const (
		calm  = 4
		limit = 240
	)
	// Nodes of a cluster talk with each other, in messages of up to 5 KB.
	noise := 4096.0
	if s.cluster() {
		noise += 6144 * float64(len(s.nodes))
	}
	last, same := -1.0, 0
	for range limit {
		m, err := s.memory(ctx)
		if err != nil {
			return 0, err
		}
		if d := m - last; d < noise && d > -noise {
			same++
		} else {
			same = 0
		}
		if last = m; same == calm {
			return m, nil
		}
		if err := sleep(ctx, interval); err != nil {
			return 0, err
		}
	}
	return 0, errors.New("bench: the server's memory does not settle: something else uses it")
}

// settle lets the tables of keys become what they are in a server that has been running
// for a while. Redis moves a table that has grown to its new size step by step, one with
// each key that is looked up. Until that is done each key costs several times as much, in
// every layout. Five million keys that have just been written are in the middle of it. So
// it looks up a key that is not there as often as there are keys, and a quarter more.
func (s *server) settle(ctx context.Context) error {
	for _, n := range s.nodes {
		keys, err := n.DBSize(ctx).Result()
		if err != nil {
			return fmt.Errorf("bench: counting keys: %w", err)
		}
		var name string
		for i := 0; ; i++ { // one that a cluster's node has the slot of
			name = "kvatlas:bench:none:" + strconv.Itoa(i)
			err := n.Exists(ctx, name).Err()
			if err == nil {
				break
			}
			if !redis.HasErrorPrefix(err, "MOVED") {
				return fmt.Errorf("bench: looking a key up: %w", err)
			}
		}
		names := slices.Repeat([]string{name}, 1000)
		for left := keys * 5 / 4; left > 0; {
			pipe := n.Pipeline()
			for range 100 {
				pipe.Exists(ctx, names...)
				left -= int64(len(names))
			}
			if _, err := pipe.Exec(ctx); err != nil {
				return fmt.Errorf("bench: looking a key up: %w", err)
			}
		}
	}
	return nil
}

// about describes the server in a line.
func (s *server) about(ctx context.Context) (string, error) {
	text, err := s.nodes[0].Info(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	m := parseInfo(text)
	name := "Redis " + m["redis_version"]
	if v := m["valkey_version"]; v != "" {
		name = "Valkey " + v
	}
	if s.cluster() {
		name += fmt.Sprintf(", cluster of %d masters", len(s.nodes))
	}
	if m, err := s.nodes[0].Info(ctx, "memory").Result(); err == nil {
		f := parseInfo(m)
		name += ", " + f["mem_allocator"] + ", maxmemory-policy " + f["maxmemory_policy"]
	}
	return name, nil
}

// unlink deletes keys, many in a round trip.
func (s *server) unlink(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if !s.cluster() {
		return s.client.Unlink(ctx, names...).Err()
	}
	pipe := s.client.Pipeline()
	for _, n := range names {
		pipe.Unlink(ctx, n)
	}
	_, err := pipe.Exec(ctx)
	return err
}

// unlinkPrefix deletes the keys whose names begin with the prefix, which has no
// character that means something in a pattern.
func (s *server) unlinkPrefix(ctx context.Context, prefix string) error {
	for _, n := range s.nodes {
		for cursor := uint64(0); ; {
			names, next, err := n.Scan(ctx, cursor, prefix+"*", 4096).Result()
			if err != nil {
				return err
			}
			if err := s.unlink(ctx, names); err != nil {
				return err
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
	}
	return nil
}

// sleep waits for d or the context's end, which is then its error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
