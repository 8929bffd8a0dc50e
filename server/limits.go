package server

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/internal/defaults"
	"github.com/kvatlas/kvatlas/server/request"
)

// Limits bound what one request, and all requests together, may cost. A zero
// field takes its default.
type Limits struct {
	// MaxBodyBytes is the longest request body in bytes. Default 16 MiB,
	// limit 1 GiB.
	MaxBodyBytes int64
	// MaxTokens is the most tokens that one request may carry. Default
	// 1,048,576, limit 2^28.
	MaxTokens int
	// MaxBlockKeys is the most block keys that one request may carry. Default
	// 131,072, limit 2^26.
	MaxBlockKeys int
	// MaxPrompts is the most prompts of one request. Default 64, limit 4,096.
	MaxPrompts int
	// MaxPods is the most pods that one request may name. Default 1,024, limit
	// 65,536.
	MaxPods int
	// MaxObjects is the most images, audio and video of one request. Default 1,024,
	// limit 65,536.
	MaxObjects int
	// MaxInFlight is how many requests to /v1 are worked on at once; more are
	// refused with 503 and code overloaded. One whose body is still coming does not
	// count; of these there may be eight times as many. Default 1,024, limit
	// 1,000,000.
	MaxInFlight int
	// MaxInFlightBytes bounds the memory that all requests take at once. A request counts four bytes for each of its body beyond 16 KiB, for what is
	// made of it. Each JSON value of a chat counts 160 more, and answers count too. What would go beyond is refused like MaxInFlight. A request whose
	// body takes more than all is let in alone, and a chat whose values do is refused. Default 256 MiB or twice MaxBodyBytes, whichever is more; not
	// less than MaxBodyBytes.
	MaxInFlightBytes int64
	// RequestTimeout is how long a request to /v1 may take, reading its body
	// included. Default 10 s, limit 10 minutes.
	RequestTimeout time.Duration
	// MaxStreams is how many dumps, restores and resets are worked on at once;
	// more are refused with 503 and code overloaded. Default 2, limit 1,024.
	MaxStreams int
	// MaxRelayBytes is how long an answer of the relay becomes before it is cut, in
	// bytes. Default 4 MiB, limit 1 GiB.
	MaxRelayBytes int64
	// StreamStall is how long a dump waits for its client to take a page, and a
	// restore for its client to send more. Default 30 s, limit 10 minutes.
	StreamStall time.Duration
}

// validate fills in the defaults and checks every limit.
func (l *Limits) validate() error {
	body := defaults.Within("MaxBodyBytes", &l.MaxBodyBytes, 16<<20, 1, 1<<30) // before what follows from it
	err := errors.Join(
		body,
		defaults.Within("MaxTokens", &l.MaxTokens, 1<<20, 1, 1<<28),
		defaults.Within("MaxBlockKeys", &l.MaxBlockKeys, 1<<17, 1, 1<<26),
		defaults.Within("MaxPrompts", &l.MaxPrompts, 64, 1, 4096),
		defaults.Within("MaxPods", &l.MaxPods, 1024, 1, 1<<16),
		defaults.Within("MaxObjects", &l.MaxObjects, 1024, 1, 1<<16),
		defaults.Within("MaxInFlight", &l.MaxInFlight, 1024, 1, 1_000_000),
		defaults.Within("MaxInFlightBytes", &l.MaxInFlightBytes, max(256<<20, 2*l.MaxBodyBytes), l.MaxBodyBytes, 1<<40),
		defaults.Within("RequestTimeout", &l.RequestTimeout, 10*time.Second, time.Millisecond, 10*time.Minute),
		defaults.Within("MaxStreams", &l.MaxStreams, 2, 1, 1024),
		defaults.Within("MaxRelayBytes", &l.MaxRelayBytes, 4<<20, 1, 1<<30),
		defaults.Within("StreamStall", &l.StreamStall, 30*time.Second, time.Millisecond, 10*time.Minute),
	)
	if err != nil {
		return fmt.Errorf("server: Limits: %w", err)
	}
	return nil
}

// requests are the limits of what one request carries.
func (l *Limits) requests() request.Limits {
	return request.Limits{
		MaxTokens: l.MaxTokens, MaxBlockKeys: l.MaxBlockKeys, MaxPrompts: l.MaxPrompts, MaxPods: l.MaxPods, MaxObjects: l.MaxObjects,
		MaxWait: l.RequestTimeout,
	}
}
