package proc

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"time"
)

// Server is a process of kvatlas serve.
type Server struct {
	// URL is where it serves.
	URL string
	cmd *exec.Cmd
}

// Serve starts a program's serve at a free port of this machine, with more arguments, and waits a
// minute at most until it is ready. Its log goes to log.
func Serve(ctx context.Context, program string, log io.Writer, args ...string) (*Server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + address}
	s.cmd = exec.CommandContext(ctx, program, append([]string{"serve", "--listen", address}, args...)...) //nolint:gosec // the program is the user's to choose
	s.cmd.Stderr = log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/readyz", http.NoBody)
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
	s.Stop()
	return nil, fmt.Errorf("%s is not ready after a minute", program)
}

// Stop kills the process.
func (s *Server) Stop() {
	_ = s.cmd.Process.Kill() // it may have ended by itself
	_ = s.cmd.Wait()         // it says that it was killed
}

// Usage is what the process has taken.
func (s *Server) Usage() (Usage, error) { return Read(s.cmd.Process.Pid) }

// CPU is the processor time that it has taken.
func (s *Server) CPU() (time.Duration, error) { return CPU(s.cmd.Process.Pid) }
