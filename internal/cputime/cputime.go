// Package cputime reads CPU times for benchmarks and tests. On a machine that others use
// too they say more than the clock does.
package cputime

import (
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process returns the CPU time that this process has used, of users and the system. It is
// safe for concurrent use.
func Process() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // of one's own process it never fails
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Redis returns the CPU time of a Redis server's main thread, from its INFO cpu: the thread
// that runs commands.
func Redis(info string) time.Duration {
	var sum float64
	for line := range strings.Lines(info) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "used_cpu_user_main_thread", "used_cpu_sys_main_thread":
			v, _ := strconv.ParseFloat(value, 64)
			sum += v
		}
	}
	return time.Duration(sum * float64(time.Second))
}
