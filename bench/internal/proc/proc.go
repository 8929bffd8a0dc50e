// Package proc starts the server that a program measures, and reads what a process has taken, on Linux.
package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Usage is what a process has taken: its CPU time, and its memory now and at most, in bytes.
type Usage struct {
	CPU       time.Duration
	RSS, Peak int64
}

// Read reads the usage of a process that runs from /proc.
func Read(pid int) (u Usage, err error) {
	dir := "/proc/" + strconv.Itoa(pid)
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
		u.CPU += time.Duration(n) * 10 * time.Millisecond
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		to := map[string]*int64{"VmRSS": &u.RSS, "VmHWM": &u.Peak}[name]
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

// CPU returns the processor time that the threads of a process have taken, to the microsecond and
// better, by their schedstat. Threads that have ended count no more.
func CPU(pid int) (time.Duration, error) {
	files, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/schedstat")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, name := range files {
		text, err := os.ReadFile(name) //nolint:gosec // a file of the kernel
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n)
	}
	if sum == 0 {
		return 0, fmt.Errorf("no CPU time of process %d", pid)
	}
	return sum, nil
}
