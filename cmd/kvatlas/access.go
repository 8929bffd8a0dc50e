package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/gateway"
	"github.com/kvatlas/kvatlas/server/refusal"
)

// makeAccess makes the rules for callers of the server, and for the addresses that it connects to.
func (s *service) makeAccess() (err error) {
	c := s.cfg
	if s.networks, err = c.Networks(); err != nil {
		return err
	}
	s.guard = &access.Guard{}
	if c.RateLimit > 0 {
		s.guard.Limiter = access.NewLimiter(c.RateLimit)
	}
	if c.Credentials != "" {
		s.guard.Credentials, err = access.Open(c.Credentials, func(err error) {
			s.log.Error().Err(err).Msg("the changed file of credentials cannot be read: the one before stays in force")
		})
		if err != nil {
			return fmt.Errorf("credentials: %w", err)
		}
	}
	if files, ok := c.CertificateFiles(); ok {
		s.tls, err = access.OpenCertificates(files, func(err error) {
			s.log.Error().Err(err).Msg("the changed certificate cannot be read: the one before stays in force")
		})
		if err != nil {
			return fmt.Errorf("tls-cert, tls-key, tls-client-ca: %w", err)
		}
	}
	return nil
}

// tellAnonymous warns of a listener that others reach and that knows no callers.
func (s *service) tellAnonymous(setting string, at net.Addr) {
	if config.IsLoopback(at) {
		return
	}
	switch role := s.cfg.AnonymousRole(at); {
	case role > access.Read:
		s.log.Warn().Str("listener", setting).Stringer("address", at).Stringer("anonymous", role).Msg("everyone who reaches this listener may change the index")
	case role == access.Read && s.cfg.Credentials == "":
		s.log.Warn().Str("listener", setting).Stringer("address", at).Msg("others reach this listener and there are no credentials: it answers, and refuses what would change the index (set credentials, or anonymous)")
	}
}

// scheme begins the URL of the API.
func (s *service) scheme() string {
	if s.tls != nil {
		return "https://"
	}
	return "http://"
}

func (s *service) tlsConfig() *tls.Config {
	if s.tls == nil {
		return nil
	}
	return s.tls.Config()
}

// httpServer is what a listener is served by.
type httpServer interface {
	Serve(on net.Listener) error
	Shutdown(ctx context.Context) error
	Close() error
}

// withTLS is a server that uses its certificates, if it has any.
func withTLS(srv *http.Server) httpServer {
	if srv.TLSConfig != nil {
		return tlsServer{srv}
	}
	return srv
}

type tlsServer struct{ *http.Server }

// Serve implements httpServer.
func (s tlsServer) Serve(on net.Listener) error { return s.ServeTLS(on, "", "") }

// admitClients checks callers of the gateway: with a file of credentials or a rate, it admits those of role
// read. A token that is the server's own business goes no further; without credentials Authorization is the
// engines', and passes.
func (s *service) admitClients(h http.Handler) http.Handler {
	if s.guard.Credentials == nil && s.guard.Limiter == nil {
		return h
	}
	g := access.Guard{Credentials: s.guard.Credentials, Limiter: s.guard.Limiter, Anonymous: access.Read}
	if none := s.cfg.Anonymous == "none"; none || s.cfg.Anonymous == "auto" && g.Credentials != nil {
		g.Anonymous = access.None
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := g.Admit(r, access.Read)
		if err != nil {
			e := refusal.Of(err)
			// The server reads what is left of the body, and has no bound for that.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(gateway.RestWait))
			w.Header().Set("Content-Type", "application/json")
			e.SetHeader(w.Header())
			w.WriteHeader(e.Status)
			_, _ = w.Write(e.AppendJSON(nil))
			return
		}
		if caller.Name != "" {
			r.Header.Del("Authorization")
		}
		if caller.Salt != "" {
			r = r.WithContext(access.WithCaller(r.Context(), caller))
		}
		h.ServeHTTP(w, r)
	})
}

// tellOpenGateway warns of a gateway that others reach without credentials.
func (s *service) tellOpenGateway(at net.Addr) {
	if !config.IsLoopback(at) && s.guard.Credentials == nil {
		s.log.Warn().Str("listener", "gateway-listen").Stringer("address", at).Msg("everyone who reaches the gateway may use the engines behind it")
	}
}
