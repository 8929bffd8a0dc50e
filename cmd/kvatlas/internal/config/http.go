package config

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// httpSettings are how requests are listened for.
type httpSettings struct {
	// Listen is the address that the API is served on, host:port. Port 0 takes
	// a free one; an empty host takes all addresses of the machine.
	Listen string `name:"listen" default:"127.0.0.1:8080" section:"HTTP"`
	// AdminListen is the address of a listener of its own for /metrics, /v1/dump,
	// /v1/restore, /v1/reset, /v1/lmcache/sync and /v1/ingest, which the API's listener then
	// has not. It has the probes too. Empty serves all on the API's listener.
	AdminListen string `name:"admin-listen"`
	// Roles is the list of parts that this process plays: score answers requests,
	// ingest reads the events of engines, gateway passes clients' requests on to engines.
	Roles Roles `name:"roles" default:"score,ingest"`
	// StrictReady makes /readyz answer 503 while Redis cannot be reached.
	// Without it the process stays ready, and gives degraded answers.
	StrictReady bool `name:"strict-ready" default:"false"`
	// IdleTimeout is how long an idle connection is kept. Let it be longer
	// than that of a load balancer in front.
	IdleTimeout time.Duration `name:"idle-timeout" default:"2m" min:"10ms" max:"24h"`
}

// limitSettings bound what a request may have, and all of them together.
type limitSettings struct {
	// RequestTimeout is how long one request may take, reading its body
	// included; then the answer is 504.
	RequestTimeout time.Duration `name:"request-timeout" default:"10s" min:"1ms" max:"10m" section:"Limits of requests"`
	// MaxBodyBytes is the longest body of a request.
	MaxBodyBytes Bytes `name:"max-body-bytes" default:"16MiB" min:"1KiB" max:"1GiB"`
	// MaxTokens is the number of tokens that one request may carry.
	MaxTokens int `name:"max-tokens" default:"1048576" min:"1" max:"268435456"`
	// MaxInFlight is the number of requests worked on at a time; more are
	// refused with 503.
	MaxInFlight int `name:"max-in-flight" default:"1024" min:"1" max:"1000000"`
	// MaxInFlightBytes is the memory that requests take at a time, four bytes for each
	// of a body, and answers; what would go beyond is refused with 503.
	MaxInFlightBytes Bytes `name:"max-in-flight-bytes" default:"256MiB" min:"1KiB" max:"1TiB"`
}

// shutdownSettings are how the process ends.
type shutdownSettings struct {
	// DrainDelay is how long the process goes on accepting requests after
	// SIGTERM, while /readyz answers 503. Let it be longer than the period of
	// load balancers' probes.
	DrainDelay time.Duration `name:"drain-delay" default:"1s" min:"0s" max:"10m" section:"Shutdown"`
	// DrainTimeout is how long the requests that are under way may take to
	// finish after that. Those still running then are cut off, and the process
	// exits with 1.
	DrainTimeout time.Duration `name:"drain-timeout" default:"30s" min:"0s" max:"1h"`
}

// validateHTTP checks the rules of listeners, and of what a request may have and take.
func (c *Config) validateHTTP() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	errs = append(errs, checkAddress("listen", c.Listen))
	if c.AdminListen != "" {
		errs = append(errs, checkAddress("admin-listen", c.AdminListen))
		if c.AdminListen == c.Listen && !strings.HasSuffix(c.Listen, ":0") {
			bad("admin-listen: it is the same address as listen (%s); leave it out to serve both on one", c.Listen)
		}
	}
	if c.StrictReady && c.Redis == "" {
		bad("strict-ready: it is about Redis, and redis is not set")
	}
	if c.ScoreBudget+c.TokenizerBudget >= c.RequestTimeout {
		bad("request-timeout: %v leaves no time for tokenizer-budget (%v) and score-budget (%v)", c.RequestTimeout, c.TokenizerBudget, c.ScoreBudget)
	}
	if c.MaxInFlightBytes < c.MaxBodyBytes {
		bad("max-in-flight-bytes: %v is less than max-body-bytes (%v): such a body could never be read", c.MaxInFlightBytes, c.MaxBodyBytes)
	}
	if c.MaxPromptBytes > c.MaxBodyBytes {
		bad("max-prompt-bytes: %v is more than max-body-bytes (%v): such a prompt could never be sent", c.MaxPromptBytes, c.MaxBodyBytes)
	}
	return errors.Join(errs...)
}

func checkAddress(setting, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s: %q is no address host:port, such as 127.0.0.1:8080 or :8080", setting, address)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%s: port %q of %q is no number within 0 and 65535", setting, port, address)
	}
	return nil
}
