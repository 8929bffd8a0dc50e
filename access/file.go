package access

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// lookEvery is how often a file that may change is looked at, while requests come.
const lookEvery = time.Second

// Credentials are the callers that a file names.
type Credentials struct {
	watch watched
	all   atomic.Pointer[[]credential]
}

// Open reads a file of credentials. Requests look once a second whether it has changed. A new
// file counts from then on. One that cannot be read leaves the last one in force and goes to
// failed, which may be nil. It must not block.
func Open(path string, failed func(error)) (*Credentials, error) {
	c := &Credentials{watch: watched{paths: []string{path}, failed: failed}}
	c.watch.load = func() error {
		text, err := readBounded(path)
		if err != nil {
			return err
		}
		all, err := parse(text)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		c.all.Store(&all)
		return nil
	}
	if err := c.watch.first(); err != nil {
		return nil, err
	}
	return c, nil
}

// Caller returns the sender of the request; ok is false when it brings no credentials. A token
// that is not known is ErrUnauthorized, even beside a certificate that is. A certificate that
// TLS has verified and the file does not name brings none.
func (c *Credentials) Caller(r *http.Request) (_ Caller, ok bool, err error) {
	c.watch.look(time.Now())
	all := *c.all.Load()
	token, given, err := bearer(r)
	switch {
	case err != nil:
		return Caller{}, false, err
	case given:
		caller, ok := byToken(all, token)
		if !ok {
			return Caller{}, false, ErrUnauthorized
		}
		return caller, true, nil
	case r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
		caller, ok := byCertificate(all, r.TLS.VerifiedChains[0][0])
		return caller, ok, nil
	}
	return Caller{}, false, nil
}

// readBounded reads a file of at most maxFileBytes.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // the operator names it
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(text) > maxFileBytes {
		err = fmt.Errorf("%s: more than %d bytes", path, maxFileBytes)
	}
	return text, err
}

// watched loads files anew when they have changed. Looking costs an atomic read but once in
// lookEvery; one request then looks for all.
type watched struct {
	paths  []string
	load   func() error
	failed func(error)

	next atomic.Int64 // when to look again, in Unix nanoseconds
	mu   sync.Mutex   // protects seen
	seen []stamp
}

// stamp is how a change of a file is seen. Kubernetes changes a link: Stat follows it.
type stamp struct {
	changed time.Time
	size    int64
}

func (w *watched) stamps() []stamp {
	s := make([]stamp, len(w.paths))
	for i, p := range w.paths {
		if info, err := os.Stat(p); err == nil {
			s[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return s
}

// first loads the files and remembers what they were.
func (w *watched) first() error {
	w.seen = w.stamps()
	w.next.Store(time.Now().Add(lookEvery).UnixNano())
	return w.load()
}

// look loads the files if they have changed since.
func (w *watched) look(now time.Time) {
	at := w.next.Load()
	if now.UnixNano() < at || !w.next.CompareAndSwap(at, now.Add(lookEvery).UnixNano()) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	stamps := w.stamps()
	same := true
	for i := range stamps {
		same = same && stamps[i].size == w.seen[i].size && stamps[i].changed.Equal(w.seen[i].changed)
	}
	if same {
		return
	}
	w.seen = stamps
	if err := w.load(); err != nil && w.failed != nil {
		w.failed(err)
	}
}
