package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/internal/httploop"
	"github.com/kvatlas/kvatlas/server"
)

// dialable is an address to reach a listener at: one that listens on all
// addresses is reached at the loopback.
func dialable(a net.Addr) string {
	t, ok := a.(*net.TCPAddr)
	if !ok || !t.IP.IsUnspecified() {
		return a.String()
	}
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(t.Port))
}

// listener is an address with what is served there.
type listener struct {
	net.Listener
	server httpServer
}

// listeners are the API's and, perhaps, the admin's and the gateway's.
type listeners struct{ api, admin, gateway *listener }

// all are those that there are.
func (l *listeners) all() []*listener {
	return slices.DeleteFunc([]*listener{l.api, l.admin, l.gateway}, func(one *listener) bool { return one == nil })
}

func (s *service) listen(ctx context.Context) (l *listeners, err error) {
	l = &listeners{}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	api := s.api.Handler()
	if s.cfg.AdminListen != "" {
		api = withoutAdmin(api)
	}
	if l.api, err = listenAt(ctx, "listen", s.cfg.Listen, s.apiServer(api)); err != nil {
		return l, err
	}
	s.tellAnonymous("listen", l.api.Addr())
	if s.gateway != nil {
		if l.gateway, err = listenAt(ctx, "gateway-listen", s.cfg.GatewayListen, s.gatewayServer()); err != nil {
			return l, err
		}
		s.tellOpenGateway(l.gateway.Addr())
	}
	if s.cfg.AdminListen != "" {
		if l.admin, err = listenAt(ctx, "admin-listen", s.cfg.AdminListen, withTLS(s.httpServer(adminHandler(s.api.Handler())))); err != nil {
			return l, err
		}
		s.tellAnonymous("admin-listen", l.admin.Addr())
	}
	return l, nil
}

// listenAt listens on the address of a setting.
func listenAt(ctx context.Context, setting, address string, server httpServer) (*listener, error) {
	on, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, listenError(setting, address, err)
	}
	return &listener{on, server}, nil
}

// listenError says what to do about an address that cannot be listened on.
func listenError(setting, address string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("something else listens on %s already: stop it, or choose another address with --%s, such as 127.0.0.1:8081 (port 0 takes a free one)", address, setting)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("listening on %s is not permitted: ports below 1024 are for root; choose another with --%s", address, setting)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("this machine has no address %s: choose another with --%s", address, setting)
	}
	return fmt.Errorf("--%s: %w", setting, err)
}

// apiServer serves the API: with TLS by net/http, without by a loop for what comes often.
func (s *service) apiServer(h http.Handler) httpServer {
	srv := s.httpServer(h)
	if srv.TLSConfig != nil {
		return withTLS(srv)
	}
	return httploop.New(srv, server.IsShort)
}

// httpServer bounds what a client can hold without sending a request.
func (s *service) httpServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: config.ReadHeaderTimeout,
		ReadTimeout:       config.ReadHeaderTimeout + s.cfg.RequestTimeout,
		WriteTimeout:      s.cfg.WriteTimeout(),
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    int(config.MaxHeaderBytes),
		ErrorLog:          httpLog(s.log),
		TLSConfig:         s.tlsConfig(),
		BaseContext: func(l net.Listener) context.Context {
			return access.WithAnonymous(context.Background(), s.cfg.AnonymousRole(l.Addr()))
		},
	}
}

// adminPaths are what the admin listener has for itself, beside all that is below
// adminFolder.
var adminPaths = []string{"/metrics", "/v1/dump", "/v1/restore", "/v1/reset", "/v1/lmcache/sync"}

// adminFolder has the tokens of prompts.
const adminFolder = "/v1/ingest/"

func isAdmin(path string) bool {
	return slices.Contains(adminPaths, path) || strings.HasPrefix(path, adminFolder)
}

// withoutAdmin leaves to the admin listener what is its own. (A http.ServeMux
// would do so too, and redirect pod names that hold two slashes on the way.)
func withoutAdmin(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isAdmin(r.URL.Path) {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":{"code":"not_found","message":"metrics, dump, restore, reset, syncs of LMCache and the events of ranks are on the admin listener","param":null}}`+"\n")
	})
}

// adminHandler passes on what the admin listener serves.
func adminHandler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path := r.URL.Path; path != "/healthz" && path != "/readyz" && !isAdmin(path) {
			http.NotFound(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// address is where it listens, "" for none.
func (l *listener) address() string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

// close gives up listeners that nothing was served on.
func (l *listeners) close() (err error) {
	for _, one := range l.all() {
		err = errors.Join(err, one.Close())
	}
	return err
}

// serve begins to serve. One that breaks reports to failed.
func (l *listener) serve(failed chan<- error) {
	go func() {
		if err := l.server.Serve(l.Listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
}

// errCutOff says that the drain timeout ended requests.
var errCutOff = errors.New("requests were still running after drain-timeout and have been cut off")

// drain ends the listeners in an orderly way.
func (l *listeners) drain(s *service) error {
	start := time.Now()
	s.api.Drain()
	if s.gateway != nil {
		s.gateway.Drain()
	}
	s.log.Info().Dur("delay", s.cfg.DrainDelay).Dur("timeout", s.cfg.DrainTimeout).Msg("draining")
	time.Sleep(s.cfg.DrainDelay)

	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout)
	defer cancel()
	// The API answers until the gateway's requests have ended, streams among them, so that what
	// runs can be seen. No request is lost with the admin's.
	err := errors.Join(l.gateway.drain(ctx), l.api.drain(ctx))
	if l.admin != nil {
		err = errors.Join(err, l.admin.server.Close())
	}
	s.log.Info().Dur("took", time.Since(start)).Msg("drained")
	return err
}

// drain waits until the requests have ended, or cuts them off with ctx.
func (l *listener) drain(ctx context.Context) error {
	if l == nil {
		return nil
	}
	err := l.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.Join(errCutOff, l.server.Close())
	}
	return err
}
