package ingest

import (
	"fmt"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/store"
)

// Source is the event stream of one rank.
type Source struct {
	// Pod and Rank are whose events they are. The pod must be registered.
	Pod  string
	Rank int
	// Model is the name of the model whose blocks they are.
	Model string
	// Engine is the engine's kind as in store.Pod, for what differs between them.
	Engine string
	// Events is the ZMQ endpoint of this very rank: port offsets are the caller's
	// business. With Bind we listen there and the engine connects.
	Events string
	Bind   bool
	// Replay is the endpoint of this rank's replay socket; "" if it has none, and
	// then each loss and each reconnection begins a new generation.
	Replay string
	// Topic is the prefix of the topics to read; "" is all.
	Topic string
	// Curve are the keys of a publisher behind CURVE, nil for none.
	Curve *zmq.Curve
}

// Validate says what of the source cannot be right: store.ErrInvalid for the
// names, zmq.ErrEndpoint for the endpoints.
func (s *Source) Validate() error {
	if err := store.CheckPodName(s.Pod); err != nil {
		return err
	}
	if err := store.CheckRank(s.Rank); err != nil {
		return err
	}
	if s.Model == "" {
		return fmt.Errorf("%w: the source %s/%d has no model", store.ErrInvalid, s.Pod, s.Rank)
	}
	if err := (zmq.Config{Endpoint: s.Events, Bind: s.Bind, Topic: s.Topic, Curve: s.Curve}).Validate(); err != nil {
		return fmt.Errorf("events of %s/%d: %w", s.Pod, s.Rank, err)
	}
	if s.Replay != "" {
		if err := (zmq.ReplayConfig{Endpoint: s.Replay, Curve: s.Curve}).Validate(); err != nil {
			return fmt.Errorf("replay of %s/%d: %w", s.Pod, s.Rank, err)
		}
	}
	return nil
}
