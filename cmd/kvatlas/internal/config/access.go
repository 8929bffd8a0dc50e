package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/kvatlas/kvatlas/access"
)

// accessSettings say which callers may use the server, and which addresses it connects to.
type accessSettings struct {
	// Credentials is the file of known tokens and client certificates. Each has a line of role,
	// sha256:DIGEST or cert:NAME, a name, and for a tenant salt=SALT; kvatlas token makes such
	// lines. The file may change while the server runs.
	Credentials string `name:"credentials" section:"Access"`
	// Anonymous is the role of callers without credentials. With auto it is none where there is
	// a file of credentials, else admin on a listener that only this machine reaches (loopback),
	// and read on others.
	Anonymous string `name:"anonymous" default:"auto" oneof:"auto,none,read,write,admin"`
	// TLSCert is the PEM file of the certificate that HTTP is served with. It may change while the
	// server runs, as the two below.
	TLSCert string `name:"tls-cert"`
	// TLSKey is the PEM file of its key.
	TLSKey string `name:"tls-key"`
	// TLSClientCA is the PEM file of authorities whose client certificates name callers.
	TLSClientCA string `name:"tls-client-ca"`
	// RateLimit is how many requests a second each caller may send, by its credentials' name or
	// else its address; 0 is any number.
	RateLimit int `name:"rate-limit" default:"0" min:"0" max:"10000000"`
	// EngineNetworks are the networks of engines and LMCache's workers, such as 10.0.0.0/8, loopback,
	// private or any. The server connects to no others, and takes no connections from others.
	// Link-local addresses and those of clouds' metadata are always refused.
	EngineNetworks Names `name:"engine-networks" default:"loopback,private"`
}

// AnonymousRole is the role of callers without credentials on a listener at the address.
func (c *Config) AnonymousRole(at net.Addr) access.Role {
	if c.Anonymous != "auto" {
		role, _ := access.ParseRole(c.Anonymous) // it has been checked
		return role
	}
	switch {
	case c.Credentials != "":
		return access.None
	case IsLoopback(at):
		return access.Admin
	}
	return access.Read
}

// IsLoopback reports whether only this machine reaches the address.
func IsLoopback(at net.Addr) bool {
	p, err := netip.ParseAddrPort(at.String())
	return at.Network() == "unix" || err == nil && p.Addr().Unmap().IsLoopback()
}

// Networks are EngineNetworks.
func (c *Config) Networks() (*access.Networks, error) {
	n, err := access.ParseNetworks(c.EngineNetworks)
	if err != nil {
		return nil, fmt.Errorf("engine-networks: %w", err)
	}
	return n, nil
}

// CertificateFiles are what TLS is served with; ok is false where it is not.
func (c *Config) CertificateFiles() (f access.CertificateFiles, ok bool) {
	return access.CertificateFiles{Cert: c.TLSCert, Key: c.TLSKey, ClientCA: c.TLSClientCA}, c.TLSCert != ""
}

// validateAccess checks the rules of access.
func (c *Config) validateAccess() error {
	var errs []error
	if (c.TLSCert == "") != (c.TLSKey == "") {
		errs = append(errs, errors.New("tls-cert, tls-key: TLS takes both, or neither"))
	}
	if c.TLSClientCA != "" && c.TLSCert == "" {
		errs = append(errs, errors.New("tls-client-ca: client certificates come with TLS: set tls-cert and tls-key"))
	}
	if c.TLSClientCA != "" && c.Credentials == "" {
		errs = append(errs, errors.New("tls-client-ca: certificates get their roles from the file of credentials, as lines ROLE cert:NAME NAME; set credentials"))
	}
	_, err := c.Networks()
	return errors.Join(append(errs, err)...)
}
