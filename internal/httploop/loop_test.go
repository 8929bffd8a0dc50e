package httploop_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/httploop"
	"github.com/kvatlas/kvatlas/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(patient{m}) }

// patient runs the tests and gives goroutines longer to end than goleak does. Those that let a
// client read its last answer take half a second from then on, here as in net/http.
type patient struct{ *testing.M }

// Run implements goleak.TestingM.
func (p patient) Run() int {
	code := p.M.Run()
	for range 5 {
		if goleak.Find() == nil {
			break
		}
	}
	return code
}

var silent = log.New(io.Discard, "", 0)

// startLoop serves with a handler until the test ends.
func startLoop(t *testing.T, rest *http.Server) (s *httploop.Server, addr string) {
	t.Helper()
	rest.ErrorLog = silent
	s = httploop.New(rest, plain)
	return s, start(t, s.Serve, s.Close)
}

// client is a connection of a test.
type client struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	c := must.Get((&net.Dialer{}).DialContext(t.Context(), "tcp", addr))(t)
	t.Cleanup(func() { _ = c.Close() })
	must.OK(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return &client{t: t, Conn: c, in: bufio.NewReader(c)}
}

func (c *client) send(s string) {
	c.t.Helper()
	must.Get(io.WriteString(c, s))(c.t)
}

// receive returns the status and the body of the next answer, and whether the connection ends.
func (c *client) receive() (status int, body string, ends bool) {
	c.t.Helper()
	r, err := http.ReadResponse(c.in, nil)
	must.OK(c.t, err)
	b, err := io.ReadAll(r.Body)
	must.OK(c.t, errors.Join(err, r.Body.Close()))
	return r.StatusCode, string(b), r.Close
}

// ended waits for the server to end the connection, without another byte.
func (c *client) ended() {
	c.t.Helper()
	b, err := io.ReadAll(c.in)
	if errors.Is(err, os.ErrDeadlineExceeded) || len(b) > 0 {
		c.t.Fatalf("%q, %v: the connection has not ended", b, err)
	}
}

func text(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Length", fmt.Sprint(len(s)))
	_, _ = io.WriteString(w, s)
}

// TestClientGoes: a request whose client has gone ends, and one whose client waits does not.
func TestClientGoes(t *testing.T) {
	begun, over := make(chan struct{}, 1), make(chan error, 1)
	leave := make(chan struct{})
	_, addr := startLoop(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		select {
		case <-r.Context().Done():
			over <- r.Context().Err()
		case <-leave:
			over <- r.Context().Err()
			text(w, "here")
		}
	})})
	for name, leaves := range map[string]func(c *client){
		"closes":          func(c *client) { _ = c.Close() },
		"closes its side": func(c *client) { _ = c.Conn.(*net.TCPConn).CloseWrite() },
		"is reset": func(c *client) {
			_ = c.Conn.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		},
	} {
		c := dial(t, addr)
		c.send(request("wait", "abc"))
		<-begun
		leaves(c)
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}

	c := dial(t, addr)
	c.send(request("wait", "abc") + request("wait", "behind it"))
	<-begun
	for range 3 { // the watcher looks at all each time that it sees one go
		other := dial(t, addr)
		other.send(request("wait", "abc"))
		<-begun
		_ = other.Close()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Error("one that goes meanwhile:", err)
		}
	}
	leave <- struct{}{}
	if err := <-over; err != nil {
		t.Error("a client that waits:", err)
	}
	c.receive()
	<-begun
	leave <- struct{}{}
	if err := <-over; err != nil {
		t.Error("the request behind it:", err)
	}
	c.receive()
}

// TestContext: a request's context has what net/http puts there, and ends with the request.
func TestContext(t *testing.T) {
	type key struct{}
	contexts := make(chan context.Context, 3)
	rest := &http.Server{
		BaseContext: func(net.Listener) context.Context { return context.WithValue(context.Background(), key{}, "base") },
	}
	rest.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of := r.Context()
		contexts <- of
		local, _ := of.Value(http.LocalAddrContextKey).(net.Addr)
		text(w, fmt.Sprintf("%v, %t, %v, %v", of.Value(key{}), of.Value(http.ServerContextKey) == rest, local, of.Err()))
	})
	var handedOver atomic.Int64
	rest.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			handedOver.Add(1)
		}
	}
	_, addr := startLoop(t, rest)
	c := dial(t, addr)
	c.send(request("a", "abc") + request("a", "", "User-Agent: x", "Accept: */*", "Connection: keep-alive", "Authorization: Bearer x"))
	c.receive()
	if n := handedOver.Load(); n != 0 {
		t.Errorf("%d connections were handed over", n)
	}
	if _, got, _ := c.receive(); got != "base, true, "+addr+", <nil>" {
		t.Errorf("got %q", got)
	}
	<-(<-contexts).Done()
	c.send(strings.Replace(request("a", "abc"), "/plain/", "/other/", 1))
	c.receive()
	if n := handedOver.Load(); n != 1 {
		t.Errorf("%d connections were handed over", n)
	}
}

// TestHandlerChanges: what a handler does to a request is not seen by the next one, whose head
// is the same but for its length.
func TestHandlerChanges(t *testing.T) {
	_, addr := startLoop(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text(w, fmt.Sprintln(r.Method, r.Host, r.URL, r.Header, r.ContentLength))
		r.Method, r.Host, r.URL.Path, r.URL.RawQuery, r.ContentLength = "PUT", "y", "/other", "", -1
		r.Header.Del("A")
		r.Header.Set("B", "z")
		r.Header.Add("C", "z")
		r.Header.Set("Content-Length", "z")
	})})
	c := dial(t, addr)
	for _, body := range []string{"abc", "def", "", "a", "0123456789", "abc"} {
		c.send(request("change?d=e", body, "A: 1", "B: 2", "B: 3"))
		want := fmt.Sprintf("POST x /plain/change?d=e map[A:[1] B:[2 3] Content-Length:[%d]] %d\n", len(body), len(body))
		if _, got, ends := c.receive(); got != want || ends {
			t.Fatalf("%s, ends %t; want %s", got, ends, want)
		}
	}
}

// TestTimeouts: each thing that a client can be slow with has its end.
func TestTimeouts(t *testing.T) {
	const limit = 300 * time.Millisecond
	wrote := make(chan error, 1)
	_, addr := startLoop(t, &http.Server{
		ReadHeaderTimeout: limit, IdleTimeout: limit, WriteTimeout: limit, ReadTimeout: limit,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				text(w, err.Error())
				return
			}
			w.Header().Set("Content-Length", fmt.Sprint(64<<20))
			_, err := w.Write(make([]byte, 64<<20))
			wrote <- err
		}),
	})
	t.Run("nothing is sent", func(t *testing.T) { dial(t, addr).ended() })
	t.Run("half a head", func(t *testing.T) {
		c := dial(t, addr)
		c.send("POST /plain/a HTTP/1.1\r\n")
		c.ended()
	})
	t.Run("half a body", func(t *testing.T) {
		c := dial(t, addr)
		c.send("POST /plain/a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
		c.ended()
	})
	t.Run("a body by the byte", func(t *testing.T) {
		c := dial(t, addr)
		c.send("POST /plain/a HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
		ended, tick := make(chan struct{}), time.NewTicker(limit/10)
		defer tick.Stop()
		go func() {
			defer close(ended)
			c.ended()
		}()
		for range 1000 {
			select {
			case <-ended:
				return
			case <-tick.C:
				_, _ = c.Write([]byte("a")) // fails when the server has ended it
			}
		}
		t.Error("1000 bytes were taken, each in time")
	})
	t.Run("the answer is not taken", func(t *testing.T) {
		c := dial(t, addr)
		c.send(request("a", "abc"))
		if err := <-wrote; err == nil {
			t.Error("64 MiB were written")
		}
	})
	t.Run("no second request", func(t *testing.T) {
		_, addr := startLoop(t, &http.Server{IdleTimeout: limit, Handler: http.HandlerFunc(handler)})
		c := dial(t, addr)
		c.send(request("echo", "abc"))
		c.receive()
		c.ended()
	})
}

// TestDeadlines: those of a handler are in force where it waits, and gone with its request.
func TestDeadlines(t *testing.T) {
	_, addr := startLoop(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		var err error
		switch r.URL.Path {
		case "/plain/soon":
			err = control.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		case "/plain/cut":
			err = control.SetReadDeadline(time.Now().Add(time.Minute))
			time.AfterFunc(50*time.Millisecond, func() { _ = control.SetReadDeadline(time.Unix(1, 0)) })
		case "/plain/write":
			err = errors.Join(control.SetReadDeadline(time.Now().Add(-time.Second)), control.SetWriteDeadline(time.Now().Add(time.Minute)))
		}
		n, readErr := io.Copy(io.Discard, r.Body)
		text(w, fmt.Sprint(n, errors.Is(readErr, os.ErrDeadlineExceeded), err))
	})})
	for _, what := range []string{"soon", "cut"} {
		c := dial(t, addr)
		c.send("POST /plain/" + what + " HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
		if _, got, ends := c.receive(); got != "3 true <nil>" || !ends {
			t.Errorf("%s: got %q, connection ends: %t", what, got, ends)
		}
		c.ended()
	}
	// What has come is there whatever the deadline, and the next request has none of it.
	c := dial(t, addr)
	for range 3 {
		for _, what := range []string{"soon", "write", "cut", "none"} {
			c.send(request(what, "abc"))
			if _, got, ends := c.receive(); got != "3 false <nil>" || ends {
				t.Errorf("%s: got %q, connection ends: %t", what, got, ends)
			}
		}
	}
	// A deadline that was not needed is not left over for the wait between requests.
	later := dial(t, addr)
	later.send("POST /plain/soon HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
	later.receive() // its deadline was set behind those above
	c.send(request("none", "abc"))
	c.receive()
}

// TestShutdown: what runs is answered to its end, what is idle ends, nothing new begins.
func TestShutdown(t *testing.T) {
	begun, leave := make(chan struct{}, 2), make(chan struct{})
	s, addr := startLoop(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "wait") {
			begun <- struct{}{}
			<-leave
		}
		text(w, "ok")
	})})
	idle, running, other := dial(t, addr), dial(t, addr), dial(t, addr)
	idle.send(request("a", ""))
	idle.receive()
	running.send(request("wait", "abc"))
	<-begun
	other.send("GET /other/wait HTTP/1.1\r\nHost: x\r\n\r\n")
	<-begun

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with requests that run: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(t.Context()) }()
	idle.ended()
	if c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr); err == nil {
		_ = c.Close()
		t.Error("a connection was taken")
	}
	close(leave)
	for _, c := range []*client{running, other} {
		if _, got, ends := c.receive(); got != "ok" || !ends {
			t.Errorf("got %q, connection ends: %t", got, ends)
		}
		c.ended()
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Serve(closedListener{}); !errors.Is(err, http.ErrServerClosed) {
		t.Error("serving again:", err)
	}
}

// TestShutdownWaits: a request that comes on a connection which Shutdown has seen without one
// is answered, if it was begun or can still be expected.
func TestShutdownWaits(t *testing.T) {
	for _, path := range []string{"/plain/echo", "/other/echo"} {
		synctest.Test(t, func(t *testing.T) {
			parsing, parse := make(chan struct{}), make(chan struct{})
			s := httploop.New(&http.Server{Handler: http.HandlerFunc(handler), ErrorLog: silent}, func(method, path string) bool {
				close(parsing)
				<-parse
				return plain(method, path)
			})
			l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
			served, done := make(chan error, 1), make(chan error, 1)
			go func() { served <- s.Serve(l) }()
			unused, begun := l.dial(t), l.dial(t)
			began := time.Now()
			r := strings.Replace(request("echo", "abcdef"), "/plain/echo", path, 1)
			begun.send(r[:len(r)-3])
			<-parsing
			go func() { done <- s.Shutdown(t.Context()) }()
			synctest.Wait()         // until Shutdown has looked
			time.Sleep(time.Second) // of the bubble's clock
			close(parse)
			synctest.Wait()
			begun.send(r[len(r)-3:])
			if status, got, ends := begun.receive(); status != http.StatusOK || !strings.Contains(got, " 6 6 ") || !ends {
				t.Errorf("%s: got %d %q, connection ends: %t", path, status, got, ends)
			}
			begun.ended()
			unused.ended()
			if waited := time.Since(began).Round(time.Second); waited != 5*time.Second {
				t.Errorf("a connection without a byte was kept for %v", waited)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
			time.Sleep(time.Second) // of the bubble's clock: the watcher ends with its next tick
		})
	}
}

// pipes is a listener for tests with a clock of their own.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipes) dial(t *testing.T) *client {
	ours, theirs := net.Pipe()
	l.conns <- theirs
	t.Cleanup(func() { _ = ours.Close() })
	must.OK(t, ours.SetDeadline(time.Now().Add(time.Minute)))
	return &client{t: t, Conn: ours, in: bufio.NewReader(ours)}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	close(l.closed)
	return nil
}

func (l *pipes) Addr() net.Addr { return &net.TCPAddr{} }

type closedListener struct{ net.Listener }

func (closedListener) Close() error { return nil }

// TestFlood: connections that send requests, odd ones among them, close amid them and come
// again leave nothing behind, and get what is theirs.
func TestFlood(t *testing.T) {
	const clients, times = 64, 30
	var answered atomic.Int64
	_, addr := startLoop(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		answered.Add(1)
		text(w, string(b))
	})})
	before := runtime.NumGoroutine()
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for j := range times {
				c, err := (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				in := bufio.NewReader(c)
				for k := range 5 {
					body := strings.Repeat(string(rune('a'+(i+j+k)%26)), 1+(i*j*k*997)%20_000)
					r := request("echo", body)
					switch (i + j + k) % 7 {
					case 1:
						r = strings.Replace(r, "/plain/", "/other/", 1)
					case 2:
						r = r[:len(r)/2] // and no more
					}
					if _, err := io.WriteString(c, r); err != nil || (i+j+k)%7 == 2 {
						break
					}
					answer, err := http.ReadResponse(in, nil)
					if err != nil {
						t.Error(err)
						break
					}
					got, _ := io.ReadAll(answer.Body)
					_ = answer.Body.Close()
					if !bytes.Equal(got, []byte(body)) {
						t.Errorf("%d bytes came back, not %d", len(got), len(body))
					}
				}
				_ = c.Close()
			}
		})
	}
	all.Wait()
	if answered.Load() < clients*times {
		t.Error("only", answered.Load(), "were answered")
	}
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before+2; {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines are left of the flood", runtime.NumGoroutine()-before)
		}
		runtime.Gosched()
	}
}

// flaky is a listener that fails now and then as one does that has no more files.
type flaky struct {
	net.Listener
	failures atomic.Int64
}

func (l *flaky) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, tooManyError{}
	}
	return l.Listener.Accept()
}

type tooManyError struct{}

func (tooManyError) Error() string   { return "too many open files" }
func (tooManyError) Timeout() bool   { return false }
func (tooManyError) Temporary() bool { return true }

func TestAcceptFails(t *testing.T) {
	s := httploop.New(&http.Server{Handler: http.HandlerFunc(handler), ErrorLog: silent}, plain)
	addr := start(t, func(l net.Listener) error {
		f := &flaky{Listener: l}
		f.failures.Store(3)
		return s.Serve(f)
	}, s.Close)
	c := dial(t, addr)
	c.send(request("echo", "abc"))
	if status, _, _ := c.receive(); status != http.StatusOK {
		t.Error(status)
	}

	broken := httploop.New(&http.Server{Handler: http.HandlerFunc(handler), ErrorLog: silent}, plain)
	l := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	_ = l.Close()
	if err := broken.Serve(l); !errors.Is(err, net.ErrClosed) {
		t.Error("a listener that is broken:", err)
	}
}
