package admin

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/terminal"
	"github.com/kvatlas/kvatlas/store/redis"
)

// place is the index that a command is about: that of a server, or the one in
// Redis itself.
type place struct {
	server  string
	redis   string
	prefix  string
	timeout time.Duration

	client *client.Client // of the server
	index  *redis.Index   // in Redis
}

// placeFlags adds the flags that say which index it is.
func placeFlags(p *cli.Program, fs *flag.FlagSet) *place {
	at := &place{server: cmp.Or(p.Getenv("KVATLAS_SERVER"), cli.DefaultServer)}
	fs.StringVar(&at.server, "server", at.server, "the server's `URL`, of its admin listener when it has one [$KVATLAS_SERVER]")
	at.redisFlags(fs)
	return at
}

// redisFlags adds the flags of an index in Redis.
func (at *place) redisFlags(fs *flag.FlagSet) {
	fs.StringVar(&at.redis, "redis", "", "the `URL` of Redis, to do without a server; - takes it from $KVATLAS_REDIS, which keeps a password out of the list of processes")
	fs.StringVar(&at.prefix, "redis-prefix", redis.DefaultPrefix, "what the names of all keys in Redis begin with")
	fs.DurationVar(&at.timeout, "timeout", 30*time.Second, "how long to wait when nothing moves")
}

// open opens the index.
func (at *place) open(p *cli.Program, fs *flag.FlagSet, command string) error {
	if at.timeout <= 0 {
		return fmt.Errorf("--timeout is %v, it must be positive", at.timeout)
	}
	var err error
	if at.redis == "" {
		if cli.FlagGiven(fs, "redis-prefix") {
			return errors.New("--redis-prefix is for --redis, which is not given")
		}
		at.client, err = p.Client(command, at.server, at.timeout)
		return err
	}
	if cli.FlagGiven(fs, "server") {
		return errors.New("--server and --redis are both given: the index is at one of them")
	}
	if at.redis == "-" {
		if at.redis = p.Getenv("KVATLAS_REDIS"); at.redis == "" {
			return errors.New("--redis -: $KVATLAS_REDIS is not set")
		}
	}
	at.index, err = redis.Open(redis.Config{URL: at.redis, Prefix: at.prefix, Timeout: at.timeout, NoSweep: true})
	if err != nil {
		return fmt.Errorf("--redis: %s", strings.TrimPrefix(err.Error(), "redis: "))
	}
	return nil
}

func (at *place) close() {
	if at.client != nil {
		at.client.Close()
	}
	if at.index != nil {
		_ = at.index.Close() // nothing waits to be written
	}
}

// String says where the index is, without a password.
func (at *place) String() string {
	if at.index != nil {
		return at.index.String()
	}
	return at.server
}

// failure says what to do about an error that has a remedy.
func (at *place) failure(err error) error {
	if at.client == nil || errors.Is(err, context.Canceled) {
		return errors.New(terminal.Printable(err.Error()))
	}
	if e, ok := errors.AsType[*client.Error](err); ok && e.Status == 404 && e.Code == "not_found" {
		return fmt.Errorf("%w\nIs it an older server, or is this the address of its API where dump, restore and reset are on the admin listener?", terminal.ServerError(at.server, err))
	}
	return terminal.ServerError(at.server, err)
}

// confirm asks for a word that must be typed.
func confirm(p *cli.Program, about, word string) error {
	fmt.Fprintf(p.Stderr, "%s\nType %s to go on: ", about, terminal.Printable(word))
	line, err := bufio.NewReader(io.LimitReader(p.Stdin, 4096)).ReadString('\n')
	if strings.TrimRight(line, "\r\n") == word {
		return nil
	}
	if err != nil && line == "" {
		fmt.Fprintln(p.Stderr)
		return errors.New("it was not typed (--yes goes on without): nothing was changed")
	}
	return errors.New("that is something else: nothing was changed")
}
