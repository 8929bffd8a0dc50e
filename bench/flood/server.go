package main

import (
	"context"
	"fmt"
	"os"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
)

// server is a process of the program that is measured.
type server struct {
	*proc.Server
	log *os.File
}

// startServer starts the program and waits until it is ready.
func startServer(ctx context.Context, o *options) (*server, error) {
	log, err := os.CreateTemp("", "kvatlas-flood-*.log")
	if err != nil {
		return nil, err
	}
	s, err := proc.Serve(ctx, o.kvatlas, log, append([]string{
		"--tokenizers", o.tokenizers, "--hub-offline", "--preload", o.model, "--drain-delay", "0s", "--drain-timeout", "0s",
	}, o.extra...)...)
	if err != nil {
		return nil, fmt.Errorf("%w; its log is %s", err, log.Name())
	}
	return &server{s, log}, nil
}

// stop kills the process.
func (s *server) stop() {
	s.Stop()
	_ = os.Remove(s.log.Name())
	_ = s.log.Close()
}
