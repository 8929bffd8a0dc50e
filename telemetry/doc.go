// Package telemetry turns what the packages of kvatlas report into Prometheus series. It
// is the only one that knows the metrics library.
//
// A [Metrics] has a method for each part that reports. It returns the observer that the
// part's Config takes, or takes the func that reads its figures at each scrape.
//
//	metrics := telemetry.NewMetrics()
//	scorer, err := scorer.New(scorer.Config{Index: index, Observer: metrics.Scorer()})
//	srv, err := server.New(server.Config{Scorer: scorer, Index: index, Metrics: metrics})
//
// No label takes a value that a client chooses; pods and ranks have at most as many
// series as [Metrics.Ingest] says. All methods may be called concurrently, and none
// blocks for longer than what it reads.
package telemetry
