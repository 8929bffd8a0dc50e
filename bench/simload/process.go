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
	"syscall"
	"time"
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

// usage is what the process has taken, memory in bytes.
type usage struct {
	cpu  time.Duration
	peak int64
}

// usage reads it from /proc.
func (c *process) usage() (u usage, err error) {
	dir := "/proc/" + strconv.Itoa(c.cmd.Process.Pid)
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
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	n, err := strconv.ParseInt(strings.Fields(peak)[0], 10, 64)
	u.peak = n << 10
	return u, err
}

// processCPU is the CPU time that this program has used.
func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
