package proc

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"time"
)

// Process is a program that runs.
type Process struct {
	// Address is where it serves, host:port, and URL the same as a URL.
	Address, URL string
	cmd          *exec.Cmd
	log          bytes.Buffer // what it has written; to read when it has ended
	ended        chan struct{}
}

// FreeAddress is an address of this machine, host:port, that nothing listens at.
func FreeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Start starts a program that serves at an address, and waits a minute at most until ready has
// no error. The error of one that never is has the end of its log.
func Start(ctx context.Context, address string, ready func(context.Context) error, program string, args ...string) (*Process, error) {
	p := &Process{Address: address, URL: "http://" + address, ended: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), program, args...) //nolint:gosec // the program is the user's to choose
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // it says that it was killed
		close(p.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return p, nil
		}
		select {
		case <-tick.C:
			continue
		case <-p.ended:
		case <-ctx.Done():
			p.Stop()
		}
		text := p.log.Bytes()
		return nil, fmt.Errorf("%s is not ready: %w; the end of its log: %s", program, err, text[max(0, len(text)-2000):])
	}
}

// Answers is the ready of Start for a URL that answers 200 by then.
func Answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode == http.StatusOK {
			return err
		}
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
}

// Serve starts a kvatlas's serve at a free address of this machine, with more arguments.
func Serve(ctx context.Context, program string, args ...string) (*Process, error) {
	address, err := FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	return Start(ctx, address, Answers("http://"+address+"/readyz"), program, append([]string{"serve", "--listen", address}, args...)...)
}

// Stop kills the process.
func (p *Process) Stop() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.ended
}

// Usage is what the process has taken.
func (p *Process) Usage() (Usage, error) { return Read(p.cmd.Process.Pid) }

// CPU is the processor time that it has taken.
func (p *Process) CPU() (time.Duration, error) { return CPU(p.cmd.Process.Pid) }
