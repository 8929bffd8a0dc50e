package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
)

// Authority is a certificate authority of a test, in PEM files.
type Authority struct {
	// CA is the path of its own certificate.
	CA string

	tb   testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority whose files are gone when the test ends.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, dir: tb.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = newKey(tb)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	must.OK(tb, err)
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		tb.Fatal(err)
	}
	a.CA = a.write("ca.crt", "CERTIFICATE", der)
	return a
}

// Issue makes a certificate that is good for servers and clients under these
// names, which may be IP addresses. It returns the paths of the certificate and
// its key.
func (a *Authority) Issue(file string, names ...string) (cert, key string) {
	a.tb.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: file},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	k := newKey(a.tb)
	der := must.Get(x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key))(a.tb)
	secret := must.Get(x509.MarshalECPrivateKey(k))(a.tb)
	return a.write(file+".crt", "CERTIFICATE", der), a.write(file+".key", "EC PRIVATE KEY", secret)
}

// Args make a server speak TLS only, on the port of its Addr, with a certificate
// for these names. Replication and cluster bus then speak TLS too. clients says
// what is asked of clients: "yes" for a certificate of this authority, or "no".
func (a *Authority) Args(clients string, names ...string) []string {
	a.tb.Helper()
	if Version(a.tb) < 7 {
		a.tb.Skip("redistest: the programs of Redis 6 that are to be had speak no TLS")
	}
	cert, key := a.Issue("server", names...)
	return []string{
		"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", a.CA,
		"--tls-auth-clients", clients, "--tls-replication", "yes", "--tls-cluster", "yes",
	}
}

func (a *Authority) write(name, kind string, der []byte) string {
	a.tb.Helper()
	path := filepath.Join(a.dir, name)
	must.OK(a.tb, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	k := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(tb)
	return k
}
