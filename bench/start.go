package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Started is a throw-away server, or cluster, on this machine.
type Started struct {
	// URL names it in the form of store/redis.
	URL string

	dir  string
	cmds []*exec.Cmd
}

// startTimeout is how long servers may take until they answer, and until a
// cluster agrees.
const startTimeout = 30 * time.Second

// Start starts the redis-server of the binary, without persistence, in a
// temporary directory; with masters above 1 a cluster of so many, without
// replicas. A single one listens on a unix socket alone. Close ends it.
func Start(ctx context.Context, binary string, masters int) (_ *Started, err error) {
	if masters < 1 || masters > 64 {
		return nil, fmt.Errorf("bench: %d masters; it can be 1 to 64", masters)
	}
	path, err := exec.LookPath(binary)
	if err != nil {
		return nil, fmt.Errorf("bench: there is no %s to start (on Debian: apt-get install redis-server): %w", binary, err)
	}
	// A socket's path must be short.
	dir, err := os.MkdirTemp("", "kvb")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	s := &Started{dir: dir}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if masters == 1 {
		socket := filepath.Join(dir, "s")
		if err := s.run(ctx, path, dir, &redis.Options{Network: "unix", Addr: socket}, "--port", "0", "--unixsocket", socket); err != nil {
			return nil, err
		}
		s.URL = "unix://" + socket
		return s, nil
	}
	err = s.startCluster(ctx, path, masters)
	return s, err
}

func (s *Started) startCluster(ctx context.Context, path string, masters int) error {
	ports, err := freePorts(ctx, 2*masters)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	var addrs []string
	for i := range masters {
		dir := filepath.Join(s.dir, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		addrs = append(addrs, "127.0.0.1:"+strconv.Itoa(ports[i]))
		err := s.run(ctx, path, dir, &redis.Options{Addr: addrs[i]},
			"--port", strconv.Itoa(ports[i]), "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(ports[masters+i]), "--cluster-config-file", "nodes.conf")
		if err != nil {
			return err
		}
	}
	s.URL = "redis+cluster://" + strings.Join(addrs, ",")
	const slots = 16384
	for i, addr := range addrs {
		err := ask(&redis.Options{Addr: addr}, func(c *redis.Client) error {
			pipe := c.Pipeline()
			pipe.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", i*slots/masters, (i+1)*slots/masters-1)
			pipe.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
			if i > 0 {
				pipe.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", ports[0], ports[masters])
			}
			_, err := pipe.Exec(ctx)
			return err
		})
		if err != nil {
			return fmt.Errorf("bench: making a cluster: %w", err)
		}
	}
	for _, addr := range addrs {
		err := until(ctx, func() error {
			return ask(&redis.Options{Addr: addr}, func(c *redis.Client) error {
				info := parseInfo(c.ClusterInfo(ctx).Val())
				if info["cluster_state"] != "ok" || info["cluster_known_nodes"] != strconv.Itoa(masters) {
					return fmt.Errorf("its state is %q, it knows %s nodes", info["cluster_state"], info["cluster_known_nodes"])
				}
				return nil
			})
		})
		if err != nil {
			return fmt.Errorf("bench: making a cluster: node %s: %w", addr, err)
		}
	}
	return nil
}

// run starts a process and waits until it answers.
func (s *Started) run(ctx context.Context, path, dir string, at *redis.Options, args ...string) error {
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { _ = log.Close() }()
	// Not bound to ctx: the database is to be cleaned after its end.
	cmd := exec.Command(path, append([]string{"--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}, args...)...) //nolint:noctx // ended by Close
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttr()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("bench: starting %s: %w", path, err)
	}
	s.cmds = append(s.cmds, cmd)
	err = until(ctx, func() error {
		return ask(at, func(c *redis.Client) error { return c.Ping(ctx).Err() })
	})
	if err != nil {
		words, _ := os.ReadFile(log.Name())
		return fmt.Errorf("bench: %s does not answer: %w\n%s", path, err, words)
	}
	return nil
}

// Close ends the processes and deletes the directory.
func (s *Started) Close() error {
	var errs []error
	for _, c := range s.cmds {
		if err := c.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
		_ = c.Wait() // killed is what it reports
	}
	s.cmds = nil
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// ask opens a connection for one question.
func ask(at *redis.Options, f func(*redis.Client) error) error {
	o := *at
	o.DisableIdentity, o.MaxRetries, o.ContextTimeoutEnabled = true, -1, true
	c := redis.NewClient(&o)
	defer func() { _ = c.Close() }()
	return f(c)
}

// until repeats f until it works, at most for startTimeout.
func until(ctx context.Context, f func() error) error {
	end := time.Now().Add(startTimeout)
	for {
		err := f()
		if err == nil || time.Now().After(end) {
			return err
		}
		if cause := sleep(ctx, 20*time.Millisecond); cause != nil {
			return errors.Join(cause, err)
		}
	}
}

// freePorts returns ports that are free now.
func freePorts(ctx context.Context, n int) ([]int, error) {
	var ports []int
	var open []net.Listener
	defer func() {
		for _, l := range open {
			_ = l.Close()
		}
	}()
	for range n {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		open = append(open, l)
		a, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return nil, fmt.Errorf("a listener at %v", l.Addr())
		}
		ports = append(ports, a.Port)
	}
	return ports, nil
}
