package access

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync/atomic"
	"time"
)

// CertificateFiles are the PEM files that a listener serves TLS with.
type CertificateFiles struct {
	// Cert and Key are the server's certificate, with what is between it and its root, and its
	// key. Both are required.
	Cert, Key string
	// ClientCA has the authorities whose client certificates count; empty asks for none. A
	// caller need not have one: without, it is known by its token or not at all.
	ClientCA string
}

// Certificates are TLS settings that follow their files. They are safe for concurrent use.
type Certificates struct {
	watch  watched
	config atomic.Pointer[tls.Config]
}

// OpenCertificates reads the files. They are looked at again as Open does, at handshakes.
func OpenCertificates(f CertificateFiles, failed func(error)) (*Certificates, error) {
	c := &Certificates{watch: watched{paths: []string{f.Cert, f.Key}, failed: failed}}
	if f.ClientCA != "" {
		c.watch.paths = append(c.watch.paths, f.ClientCA)
	}
	c.watch.load = func() error {
		config, err := f.read()
		if err == nil {
			c.config.Store(config)
		}
		return err
	}
	if err := c.watch.first(); err != nil {
		return nil, err
	}
	return c, nil
}

// read makes the settings of one handshake. Session tickets end with them, so that a client
// whose authority was withdrawn cannot resume.
func (f CertificateFiles) read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", f.Cert, f.Key, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if f.ClientCA == "" {
		return config, nil
	}
	text, err := readBounded(f.ClientCA)
	if err != nil {
		return nil, err
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate in it", f.ClientCA)
	}
	config.ClientAuth = tls.VerifyClientCertIfGiven
	return config, nil
}

// Config is what a listener's http.Server takes.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c.watch.look(time.Now())
			return c.config.Load(), nil
		},
	}
}
