package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrResponseTooLarge says that a response is longer than
	// Config.MaxResponseBytes.
	ErrResponseTooLarge = errors.New("client: response is too large")
	// ErrBadResponse says that a response is not what the API answers;
	// something else may be listening at the URL.
	ErrBadResponse = errors.New("client: not an answer of kvatlas")
)

// Config configures a Client. Zero fields take their defaults.
type Config struct {
	// URL is where the server is: scheme, host and perhaps a path in front of
	// /v1. Without a scheme it is http: host:port will do. Required.
	URL string
	// Timeout bounds one call, from the first byte to the last. Default 30 s;
	// negative leaves it to the context alone.
	Timeout time.Duration
	// MaxResponseBytes is the longest response read. Default 64 MiB.
	MaxResponseBytes int64
	// HTTP sends the requests; it decides about proxies, TLS and connections.
	// Default: a transport of the Client's own that keeps up to 64 idle
	// connections and follows no redirect.
	HTTP *http.Client
	// Token is sent as Authorization: Bearer with each request; empty sends none.
	Token string
	// UserAgent is sent with each request. Default "kvatlas-client".
	UserAgent string
}

func (c *Config) validate() (*url.URL, error) {
	text := c.URL
	if text != "" && !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("client: Config.URL: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("client: Config.URL %q is no URL such as http://127.0.0.1:8080", c.URL)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("client: Config.URL %q must end before ? and #", c.URL)
	}
	c.Timeout, c.MaxResponseBytes = cmp.Or(c.Timeout, 30*time.Second), cmp.Or(c.MaxResponseBytes, 64<<20)
	c.UserAgent = cmp.Or(c.UserAgent, "kvatlas-client")
	if c.MaxResponseBytes < 0 {
		return nil, fmt.Errorf("client: Config.MaxResponseBytes is %d, it must be positive", c.MaxResponseBytes)
	}
	return u, nil
}

// Client calls one server. It is safe for concurrent use.
type Client struct {
	cfg  Config
	base string
	http *http.Client
}

// New returns a Client. It does not connect.
func New(cfg Config) (*Client, error) {
	u, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, base: strings.TrimSuffix(u.String(), "/"), http: cfg.HTTP}
	if c.http == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConns, t.MaxIdleConnsPerHost = 64, 64
		c.http = &http.Client{
			Transport: t,
			// The API never redirects; a server that does is not the API.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return c, nil
}

// sign adds the caller's token.
func (c *Client) sign(req *http.Request) {
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	if c.cfg.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.Token)
	}
}

// Close closes idle connections. The Client can still be used.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Call sends in as JSON (no body when nil) to path, and decodes the answer into
// out (ignored when nil). The path begins with a slash and has its names
// percent-encoded. An out of type *json.RawMessage receives the answer as it
// is. The other methods are this one with types; it is there for what they
// lack.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	a, err := c.send(ctx, method, path, "application/json", in)
	if err != nil || out == nil || len(a.text) == 0 && a.status == http.StatusNoContent {
		return err
	}
	if t, _, _ := mime.ParseMediaType(a.kind); t != "application/json" {
		return fmt.Errorf("%w: %s %s answers with content type %q", ErrBadResponse, method, path, a.kind)
	}
	if err := json.Unmarshal(a.text, out); err != nil {
		return fmt.Errorf("%w: %s %s: %w", ErrBadResponse, method, path, err)
	}
	return nil
}

// Metrics returns the server's own metrics, in Prometheus' text format. With an admin listener
// they are there alone.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	a, err := c.send(ctx, http.MethodGet, "/metrics", "text/plain", nil)
	return a.text, err
}

// answer is what a server has answered, and its content type.
type answer struct {
	status int
	kind   string
	text   []byte
}

// send sends in as JSON, and returns the answer if it is no error.
func (c *Client) send(ctx context.Context, method, path, accept string, in any) (a answer, err error) {
	if c.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.cfg.Timeout, fmt.Errorf("client: no answer within %v: %w", c.cfg.Timeout, context.DeadlineExceeded))
		defer cancel()
	}
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return a, fmt.Errorf("client: %s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return a, fmt.Errorf("client: %w", err)
	}
	req.Header.Set("Accept", accept)
	c.sign(req)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return a, fmt.Errorf("client: %w", withCause(ctx, err))
	}
	defer resp.Body.Close()
	if a.text, err = c.read(resp); err != nil {
		return a, fmt.Errorf("client: %s %s: %w", method, path, withCause(ctx, err))
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return answer{}, errorOf(resp, a.text)
	}
	a.status, a.kind = resp.StatusCode, resp.Header.Get("Content-Type")
	return a, nil
}

// ask is Call for an answer of type T.
func ask[T any](ctx context.Context, c *Client, method, path string, in any) (*T, error) {
	out := new(T)
	if err := c.Call(ctx, method, path, in, out); err != nil {
		return nil, err
	}
	return out, nil
}

// withQuery is a path with a query, if there is any.
func withQuery(path string, q url.Values) string {
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// read reads the whole body or fails. What is left of a body over the limit is
// not read: the connection is dropped instead.
func (c *Client) read(resp *http.Response) ([]byte, error) {
	if resp.ContentLength > c.cfg.MaxResponseBytes {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrResponseTooLarge, resp.ContentLength, c.cfg.MaxResponseBytes)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, c.cfg.MaxResponseBytes+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > c.cfg.MaxResponseBytes {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrResponseTooLarge, c.cfg.MaxResponseBytes)
	}
	return b, nil
}

// withCause replaces the bare end of a context by its reason.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.DeadlineExceeded) {
		return cause
	}
	return err
}
