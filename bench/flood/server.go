package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
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

// usage is what the process has taken, memory in bytes.
type usage struct {
	cpu       time.Duration
	rss, peak int64
}

// usage reads it from /proc.
func (s *server) usage() (u usage, err error) {
	dir := "/proc/" + strconv.Itoa(s.cmd.Process.Pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return u, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return u, errors.New("no CPU time in " + dir + "/stat")
	}
	for _, f := range fields[11:13] { // user and system, in hundredths of a second
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return u, err
		}
		u.cpu += time.Duration(n) * 10 * time.Millisecond
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		to := map[string]*int64{"VmRSS": &u.rss, "VmHWM": &u.peak}[name]
		if to == nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return u, err
		}
		*to = n << 10
	}
	return u, nil
}
