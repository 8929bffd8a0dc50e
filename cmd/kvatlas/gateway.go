package main

import (
	"context"
	"flag"
	"io"
	"net/http"

	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/gateway"
	"github.com/kvatlas/kvatlas/route"
)

// gatewayDefaults are the settings that kvatlas gateway has otherwise than kvatlas serve.
var gatewayDefaults = []struct{ name, text string }{
	{"roles", "score,ingest,gateway"}, {"pods-ask", "true"}, {"pods-approximate", "true"}, {"tokenizer-budget", "1s"}, {"drain-timeout", "10m"},
}

// gateway is the command: serve with all roles, for engines that nothing but their addresses
// is known of.
func (p *program) gateway(ctx context.Context, args []string) int {
	return p.serveAs(ctx, args, "gateway", writeGatewayUsage, func(l *config.Loader) {
		for _, d := range gatewayDefaults {
			l.SetDefault(d.name, d.text)
		}
	})
}

func writeGatewayUsage(w io.Writer, _ *flag.FlagSet, _ *config.Loader) {
	_, _ = io.WriteString(w, `kvatlas gateway takes the requests of OpenAI's clients, and sends each to the engine
that holds the longest part of its prompt and has the least to do.

  kvatlas gateway --pods 10.0.0.1:8000,10.0.0.2:8000
  kvatlas gateway --pods-kubernetes app=vllm --redis redis://localhost:6379

It is kvatlas serve with other defaults:

`)
	for _, d := range gatewayDefaults {
		_, _ = io.WriteString(w, "  --"+d.name+" "+d.text+"\n")
	}
	_, _ = io.WriteString(w, "\nClients are served at --gateway-listen, and the API of kvatlas at --listen.\nkvatlas serve --help lists all flags; docs/gateway.md says what is done to a request.\n")
}

// makeGateway makes the role gateway.
func (s *service) makeGateway(router *route.Router) (err error) {
	c := s.cfg
	if !c.Roles.Has(config.RoleGateway) {
		return nil
	}
	count := s.metrics.Gateway()
	s.gateway, err = gateway.New(gateway.Config{
		Router: router, Index: s.index, Control: s.networks.Control, Connect: c.GatewayConnectTimeout, Header: c.GatewayHeaderTimeout, FirstToken: c.GatewayFirstTokenTimeout,
		Idle: c.GatewayIdleTimeout, MaxBody: int64(c.GatewayMaxBodyBytes), MaxBuffered: int64(c.GatewayMaxBufferBytes), MaxRequests: c.GatewayMaxRequests,
		LeaveUsage: !c.GatewayAskUsage,
		Salt:       func(ctx context.Context, asked string) string { return access.CallerOf(ctx).CacheSalt(asked) },
		Scoped:     func(ctx context.Context, name string) string { return access.CallerOf(ctx).Scoped(name) },
		Observer: gateway.Observer{
			Served: func(r *gateway.Served) { count.Served(r); s.logServed(r) },
			Retried: func(pod string, why error) {
				count.Retried()
				s.log.Info().Str("pod", pod).Err(why).Msg("the engine has not answered, the request goes to another")
			},
			Ejected: func(pod string, why error) {
				count.Ejected()
				s.log.Warn().Str("pod", pod).Err(why).Msg("the engine gets no requests until it is healthy again")
			},
			Admitted:   func(pod string) { s.log.Info().Str("pod", pod).Msg("the engine is healthy and gets requests again") },
			Unreported: func(err error) { count.Unreported(); s.log.Debug().Err(err).Msg("a report on a request has failed") },
		},
	})
	if err != nil {
		return err
	}
	s.closers = append(s.closers, s.gateway.Close)
	return count.Watch(s.gateway.Stats)
}

// tellNoPods says of a gateway that looks for no pods where it is to have them from.
func (s *service) tellNoPods() {
	if s.gateway == nil || s.ingest != nil && s.ingest.registrar != nil || len(s.index.Cached().Pods) > 0 {
		return
	}
	level, others := zerolog.WarnLevel, ""
	if s.redis != nil {
		level, others = zerolog.InfoLevel, " here or at another server of this Redis"
	}
	s.log.WithLevel(level).Msg("no engines are named: the gateway has those that register with POST /v1/pods" + others + "; --pods, --pods-dns and --pods-kubernetes find them")
}

// logServed writes the line of a request.
func (s *service) logServed(r *gateway.Served) {
	level := zerolog.InfoLevel
	if r.Status >= http.StatusInternalServerError || r.Cut {
		level = zerolog.WarnLevel
	}
	if level < s.log.GetLevel() {
		return
	}
	e := s.log.WithLevel(level)
	if r.RequestID != "" {
		e.Str("request_id", r.RequestID)
	}
	e.Str("method", r.Method).Str("path", r.Path).Int("status", r.Status).Dur("took", r.Took)
	if r.Model != "" {
		e.Str("model", r.Model)
	}
	if r.Pod != "" {
		e.Str("pod", r.Pod).Str("why", r.Why).Int("attempts", r.Attempts).Dur("routed", r.Routed).Dur("first", r.First)
	}
	if r.Prompt >= 0 {
		e.Int("prompt_tokens", r.Prompt).Int("predicted_tokens", r.Predicted).Int("delivered_tokens", r.Delivered)
	}
	if r.Cut {
		e.Bool("cut", true)
	}
	e.Msg("passed on")
}

// gatewayServer serves clients. Bodies and answers have clocks of their own, so the server has
// none for them.
func (s *service) gatewayServer() httpServer {
	return withTLS(&http.Server{
		Handler: s.admitClients(s.gateway), TLSConfig: s.tlsConfig(), ReadHeaderTimeout: config.ReadHeaderTimeout, IdleTimeout: s.cfg.IdleTimeout,
		MaxHeaderBytes: int(config.MaxHeaderBytes), ErrorLog: httpLog(s.log),
	})
}
