package main

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
)

// startSim starts the engines and waits until they listen.
func startSim(ctx context.Context, o *options) (*proc.Process, error) {
	port := o.port + o.pods
	control := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return proc.Start(ctx, control, proc.Answers("http://"+control+"/pods"), o.kvatlas, "sim", "--model", "m", "--engine", o.engine, "--pods", strconv.Itoa(o.pods), "--blocks", "8192",
		"--speed", fmt.Sprint(o.speed), "--port", strconv.Itoa(o.port), "--events-port", strconv.Itoa(port+1), "--replay-port", strconv.Itoa(port+1+o.pods), "--control", control)
}
