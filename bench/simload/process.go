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
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
)

// process is the engines' process.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has
}

// startSim starts the engines and waits until they listen.
func startSim(ctx context.Context, o *options) (*process, error) {
	port := o.port + o.pods
	control := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	c := &process{ended: make(chan struct{})}
	c.cmd = exec.CommandContext(context.WithoutCancel(ctx), o.kvatlas, "sim", "--model", "m", "--engine", o.engine, "--pods", strconv.Itoa(o.pods), "--blocks", "8192", //nolint:gosec // the program is the user's to choose
		"--speed", fmt.Sprint(o.speed), "--port", strconv.Itoa(o.port), "--events-port", strconv.Itoa(port+1), "--replay-port", strconv.Itoa(port+1+o.pods), "--control", control)
	c.cmd.Stderr = os.Stderr
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = c.cmd.Wait() // it says that it was killed
		close(c.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		select {
		case <-c.ended:
			return nil, errors.New("the engines have ended at once")
		case <-ctx.Done():
			c.stop()
			return nil, errors.New("the engines do not listen after 30 s")
		case <-time.After(20 * time.Millisecond):
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+control+"/pods", http.NoBody)
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			continue
		}
		if err := resp.Body.Close(); err == nil && resp.StatusCode == http.StatusOK {
			return c, nil
		}
	}
}

// stop kills the process.
func (c *process) stop() {
	_ = c.cmd.Process.Kill() // it may have ended by itself
	<-c.ended
}

// usage is what the process has taken.
func (c *process) usage() (proc.Usage, error) { return proc.Read(c.cmd.Process.Pid) }

// processCPU is the CPU time that this program has used.
func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
