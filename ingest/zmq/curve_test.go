package zmq

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"testing"

	"golang.org/x/crypto/nacl/box"

	"github.com/kvatlas/kvatlas/internal/must"
)

// curveKeys makes a key pair.
func curveKeys(t testing.TB) (public, secret [32]byte) {
	t.Helper()
	p, s, err := box.GenerateKey(rand.Reader)
	must.OK(t, err)
	return *p, *s
}

// z85 writes a key as libzmq takes it (RFC 32).
func z85(key [32]byte) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
	var out []byte
	for i := 0; i < len(key); i += 4 {
		v := binary.BigEndian.Uint32(key[i:])
		for d := uint32(85 * 85 * 85 * 85); d > 0; d /= 85 {
			out = append(out, digits[v/d%85])
		}
	}
	return string(out)
}

func TestZ85(t *testing.T) {
	// The test vector of RFC 32 is 8 bytes; the rest are zeros.
	key := [32]byte{0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B}
	if got := z85(key); got[:10] != "HelloWorld" {
		t.Errorf("%q", got)
	}
}

// TestCurveRefuses plays boxes again, and changes them.
func TestCurveRefuses(t *testing.T) {
	_, secret := curveKeys(t)
	public, _ := curveKeys(t)
	server := &curveClient{}
	client := &curveClient{}
	box.Precompute(&server.shared, &public, &secret)
	client.shared = server.shared
	seal := func(n uint64, inner []byte) []byte {
		nonce, tail := short("CurveZMQMESSAGES", n)
		return newCommand("MESSAGE", tail, box.SealAfterPrecomputation(nil, inner, &nonce, &server.shared))
	}
	first, second := seal(1, []byte("\x01one")), seal(2, []byte("\x02two"))
	if flags, body, err := client.unseal(first); err != nil || flags != flagMore || !bytes.Equal(body, []byte("one")) {
		t.Fatalf("%d %q %v", flags, body, err)
	}
	if _, _, err := client.unseal(first); err == nil {
		t.Error("a box was taken twice")
	}
	changed := bytes.Clone(second)
	changed[len(changed)-1]++
	if _, _, err := client.unseal(changed); err == nil {
		t.Error("a changed box was taken")
	}
	if flags, _, err := client.unseal(second); err != nil || flags != flagCommand {
		t.Errorf("%d %v", flags, err)
	}
	if _, _, err := client.unseal([]byte("\x07MESSAGE12345678")); err == nil {
		t.Error("a box without content was taken")
	}
}
