package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
	"github.com/kvatlas/kvatlas/bench/internal/traffic"
	"github.com/kvatlas/kvatlas/internal/httploop"
)

// server is a process that is measured.
type server struct{ *proc.Process }

// startServer starts a build of kvatlas and waits until it is ready.
func (o *options) startServer(ctx context.Context, program, redis string) (*server, error) {
	args := []string{"--hub-offline", "--tokenizers", o.tokenizers}
	if redis != "" {
		args = append(args, "--redis", redis)
	} else {
		args = append(args, "--preload", o.model)
	}
	p, err := proc.Serve(ctx, program, append(args, o.extra...)...)
	return &server{p}, err
}

// startBare starts this program as a server that does nothing: of net/http, or of the loop
// that kvatlas has before it.
func startBare(ctx context.Context, kind string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	address, err := proc.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	p, err := proc.Start(ctx, address, proc.Answers("http://"+address), self, "bare", kind, address)
	return &server{p}, err
}

// post sends a request of which only the status counts.
func (s *server) post(ctx context.Context, path string, body []byte) error {
	c, err := traffic.Dial(ctx, s.Address)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Ask(request(path, body, 0))
	return err
}

// warmUp sends n requests and returns how long an answer is.
func (s *server) warmUp(ctx context.Context, k kind, n int) (answer int, err error) {
	c, err := traffic.Dial(ctx, s.Address)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	for range n {
		body, err := c.Ask(request(k.path, k.body, 0))
		if err != nil {
			return 0, err
		}
		answer = len(body)
	}
	return answer, nil
}

// send sends n requests on connections at once, and returns the processor time of the server and
// the time by the clock of one. Argument answer is how long a bare server's answers are.
func (s *server) send(ctx context.Context, k kind, n, connections, answer int) (cpu, wall time.Duration, err error) {
	text := request(k.path, k.body, answer)
	conns := make([]*traffic.Conn, 0, connections)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range connections {
		c, err := traffic.Dial(ctx, s.Address)
		if err != nil {
			return 0, 0, err
		}
		conns = append(conns, c)
	}
	before, err := s.CPU()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	failed := make([]error, connections)
	var all sync.WaitGroup
	each := max(1, n/connections)
	for i, c := range conns {
		all.Go(func() {
			for range each {
				if _, failed[i] = c.Ask(text); failed[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	after, err := s.CPU()
	if err := errors.Join(err, errors.Join(failed...)); err != nil {
		return 0, 0, err
	}
	return (after - before) / time.Duration(each*connections), took / time.Duration(each), nil
}

// request is the bytes of a request.
func request(path string, body []byte, answer int) []byte {
	b := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: kvatlas\r\nUser-Agent: httpcost\r\nAccept-Encoding: gzip\r\nContent-Type: application/json\r\nX-Answer: %d\r\nContent-Length: %d\r\n\r\n", path, answer, len(body))
	return append(b, body...)
}

// serveBare serves answers of X-Answer bytes, with the timeouts that kvatlas has.
func serveBare(ctx context.Context, kind, address string) error {
	srv := &http.Server{
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			n, _ := strconv.Atoi(r.Header.Get("X-Answer")) // 0 of another request
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(n))
			_, _ = w.Write(answers[:min(n, len(answers))]) // the client counts them
		}),
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	if kind == "loop" {
		return httploop.New(srv, func(string, string) bool { return true }).Serve(l)
	}
	return srv.Serve(l)
}

// answers are those of a bare server.
var answers = bytes.Repeat([]byte("."), 1<<20)
