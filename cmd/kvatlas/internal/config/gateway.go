package config

import (
	"fmt"
	"time"
)

// gatewaySettings are how the role gateway passes requests on.
type gatewaySettings struct {
	// GatewayListen is the address at which the role gateway takes the requests of clients,
	// host:port.
	GatewayListen string `name:"gateway-listen" default:"127.0.0.1:8090" section:"Gateway"`
	// GatewayConnectTimeout is how long a connection to an engine may take to come up.
	GatewayConnectTimeout time.Duration `name:"gateway-connect-timeout" default:"2s" min:"10ms" max:"5m"`
	// GatewayHeaderTimeout is how long an engine may take until its answer begins. An answer
	// that is no stream begins when all of it has been computed.
	GatewayHeaderTimeout time.Duration `name:"gateway-header-timeout" default:"10m" min:"10ms" max:"24h"`
	// GatewayFirstTokenTimeout is how long it may take from the header of an answer to its
	// first token.
	GatewayFirstTokenTimeout time.Duration `name:"gateway-first-token-timeout" default:"10m" min:"10ms" max:"24h"`
	// GatewayIdleTimeout is how long an answer that has begun may pause.
	GatewayIdleTimeout time.Duration `name:"gateway-idle-timeout" default:"2m" min:"10ms" max:"24h"`
	// GatewayMaxRequests is the number of requests that are passed on at a time, streams
	// among them; more are refused with 503.
	GatewayMaxRequests int `name:"gateway-max-requests" default:"4096" min:"1" max:"1000000"`
	// GatewayMaxBodyBytes is the longest body of a request, images included.
	GatewayMaxBodyBytes Bytes `name:"gateway-max-body-bytes" default:"64MiB" min:"1KiB" max:"4GiB"`
	// GatewayMaxBufferBytes is the memory for the bodies of requests that no engine has begun
	// to answer.
	GatewayMaxBufferBytes Bytes `name:"gateway-max-buffer-bytes" default:"512MiB" min:"1KiB" max:"1TiB"`
	// GatewayAskUsage has engines asked for the usage of streams whose clients did not ask for
	// it: it says how many tokens were cached. Clients do not see it.
	GatewayAskUsage bool `name:"gateway-ask-usage" default:"true"`
}

// validateGateway checks the rules of the role gateway.
func (c *Config) validateGateway() error {
	if !c.Roles.Has(RoleGateway) {
		return nil
	}
	if err := checkAddress("gateway-listen", c.GatewayListen); err != nil {
		return err
	}
	if c.GatewayMaxBufferBytes < c.GatewayMaxBodyBytes {
		return fmt.Errorf("gateway-max-buffer-bytes: %v is less than gateway-max-body-bytes (%v): such a body could never be read", c.GatewayMaxBufferBytes, c.GatewayMaxBodyBytes)
	}
	return nil
}
