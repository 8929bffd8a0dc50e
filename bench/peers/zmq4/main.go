// Command zmq4 compares ingest/zmq with libzmq (through pebbe/zmq4) as the receiver
// of an engine's events. It measures CPU time and losses for messages that a PUB of
// libzmq, in a process of its own, publishes at a rate. It also measures the most
// that comes through without one. It is a module of its own so that kvatlas does not
// depend on libzmq.
//
//	apt-get install libzmq3-dev pkg-config
//	cd bench/peers/zmq4 && go run . [-n 150000] [-size 1024] [-rate 50000] [-runs 2]
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvatlas/kvatlas/ingest/zmq"
)

var (
	n       = flag.Int("n", 150_000, "messages a run")
	size    = flag.Int("size", 1024, "bytes of a payload")
	rate    = flag.Int("rate", 50_000, "messages a second, 0 for as fast as it goes")
	runs    = flag.Int("runs", 2, "runs of each")
	publish = flag.String("publish", "", "be the publisher at this endpoint")
)

func main() {
	flag.Parse()
	if *publish != "" {
		check(publisher(*publish))
		return
	}
	major, minor, patch := zmq4.Version()
	fmt.Printf("%s, %d CPUs, libzmq %d.%d.%d; %d messages of %d bytes at %d/s\n", runtime.Version(), runtime.NumCPU(), major, minor, patch, *n, *size, *rate)
	for run := range *runs {
		for _, c := range []struct {
			name    string
			receive func(endpoint string, got func(seq uint64) (more bool)) error
		}{{"libzmq", libzmq}, {"ingest/zmq", ours}} {
			check(measure(run, c.name, c.receive))
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "zmq4:", err)
		os.Exit(1)
	}
}

// measure receives a run from a publisher of its own.
func measure(run int, name string, receive func(string, func(uint64) bool) error) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	endpoint := "tcp://" + l.Addr().String()
	l.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-publish", endpoint, "-n", strconv.Itoa(*n), "-size", strconv.Itoa(*size), "-rate", strconv.Itoa(*rate))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Process.Kill()
	var began time.Time
	var cpu time.Duration
	count, lost, next := 0, uint64(0), uint64(0)
	err = receive(endpoint, func(seq uint64) bool {
		if began.IsZero() {
			began, cpu, next = time.Now(), cpuTime(), seq
		}
		count++
		lost += seq - next
		next = seq + 1
		return next < uint64(*n)
	})
	took, used := time.Since(began), cpuTime()-cpu
	fmt.Printf("run %d  %-10s  %7d messages, %d lost, %6.2f s CPU, %5.2f us CPU a message, %8.0f messages/s\n",
		run+1, name, count, lost, used.Seconds(), float64(used.Microseconds())/float64(max(count, 1)), float64(count)/took.Seconds())
	return err
}

// cpuTime is the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func libzmq(endpoint string, got func(uint64) bool) error {
	s, err := zmq4.NewSocket(zmq4.SUB)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, err := range []error{s.SetRcvhwm(0), s.SetHeartbeatIvl(time.Second), s.SetSubscribe("")} {
		if err != nil {
			return err
		}
	}
	if err := s.Connect(endpoint); err != nil {
		return err
	}
	for {
		frames, err := s.RecvMessageBytes(0)
		if err != nil {
			return err
		}
		if !got(binary.BigEndian.Uint64(frames[1])) {
			return nil
		}
	}
}

type handler struct {
	got    func(uint64) bool
	cancel context.CancelFunc
	done   bool
}

func (h *handler) Connected(string)   {}
func (h *handler) Malformed(error)    {}
func (h *handler) Disconnected(error) {}
func (h *handler) Message(m zmq.Message) {
	if !h.done && !h.got(m.Seq) {
		h.done = true
		h.cancel()
	}
}

func ours(endpoint string, got func(uint64) bool) error {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := zmq.NewSubscriber(zmq.Config{Endpoint: endpoint}, &handler{got: got, cancel: cancel})
	if err != nil {
		return err
	}
	_ = s.Run(ctx) // it ends when all has come
	return nil
}

// publisher publishes until the last message, with a second for the subscription.
func publisher(endpoint string) error {
	s, err := zmq4.NewSocket(zmq4.PUB)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.SetSndhwm(0); err != nil {
		return err
	}
	if err := s.Bind(endpoint); err != nil {
		return err
	}
	time.Sleep(time.Second)
	payload := make([]byte, *size)
	var seq [8]byte
	began := time.Now()
	for i := range *n {
		binary.BigEndian.PutUint64(seq[:], uint64(i))
		if _, err := s.SendMessage([]byte(""), seq[:], payload); err != nil {
			return err
		}
		if *rate > 0 && i%64 == 63 {
			if d := time.Duration(i) * time.Second / time.Duration(*rate); d > time.Since(began) {
				time.Sleep(d - time.Since(began))
			}
		}
	}
	time.Sleep(30 * time.Second) // until it is killed
	return nil
}
