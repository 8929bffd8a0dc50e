// Package server is the HTTP API of kvatlas: routes, limits, errors, the
// OpenAPI document and the request log. It has no logic of its own: package scorer
// ranks, package store keeps, package tokenpool tokenizes, package telemetry counts.
//
// It guarantees:
//
//   - Every request is answered, and every refusal says what is wrong and
//     where, in one shape: {"error":{"code","message","param"}}. A status of
//     4xx is the client's fault, 5xx is ours. A panic is a 500 and a log line.
//   - Bodies are read strictly: unknown or repeated fields, trailing data,
//     wrong types, null and invalid UTF-8 are refused, never guessed at.
//   - What one request and all requests together may cost is bounded by
//     Limits. Beyond MaxInFlight and MaxInFlightBytes a request is refused at
//     once, never queued.
//   - Prompts, tokens, salts and query strings are in no log line and in no
//     metric. Metric labels have a fixed set of values.
//   - The same request gives the same bytes whatever index answers it; only
//     explain's times differ.
//
// The http.Server around it bounds what this package cannot see: it should
// have ReadHeaderTimeout, IdleTimeout, MaxHeaderBytes, and a WriteTimeout
// above Limits.RequestTimeout.
//
//	metrics := telemetry.NewMetrics()
//	scorer, err := scorer.New(scorer.Config{Index: index, Observer: metrics.Scorer()})
//	srv, err := server.New(server.Config{Scorer: scorer, Index: index, Metrics: metrics})
//	srv.SetReady(nil)
//	http.ListenAndServe("127.0.0.1:8080", srv.Handler())
//
// Everything exported is safe for concurrent use.
package server
