package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
)

// server is a process of the program that is measured.
type server struct {
	cmd *exec.Cmd
	url string
	out *os.File
}

// startServer starts the program and waits until it is ready.
func startServer(ctx context.Context, o *options) (*server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	out, err := os.CreateTemp("", "kvatlas-flood-*.log")
	if err != nil {
		return nil, err
	}
	args := append([]string{
		"serve", "--listen", address, "--tokenizers", o.tokenizers, "--hub-offline", "--preload", o.model, "--drain-delay", "0s", "--drain-timeout", "0s",
	}, o.extra...)
	s := &server{cmd: exec.CommandContext(ctx, o.kvatlas, args...), url: "http://" + address, out: out} //nolint:gosec // the program is the user's to choose
	s.cmd.Stderr = out
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", http.NoBody)
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			continue
		}
		_ = resp.Body.Close() // it is not read
		if resp.StatusCode == http.StatusOK {
			return s, nil
		}
	}
	s.stop()
	return nil, fmt.Errorf("it is not ready after a minute; its log is %s", out.Name())
}

// stop kills the process.
func (s *server) stop() {
	_ = s.cmd.Process.Kill() // it may have ended by itself
	_ = s.cmd.Wait()         // it says that it was killed
	_ = os.Remove(s.out.Name())
	_ = s.out.Close()
}

// usage is what the process has taken.
func (s *server) usage() (proc.Usage, error) { return proc.Read(s.cmd.Process.Pid) }
