package zmq

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
)

// certificateText is a file as pyzmq 26 does.
func certificateText(public, secret [32]byte, withSecret bool) string {
	text := "#   ****  Generated on 2026-11-28 06:00:00.000000 by pyzmq  ****\n#   ZeroMQ CURVE Certificate\n\nmetadata\n    public-key = \"no key\"\ncurve\n    public-key = \"" + z85(public) + "\"\n"
	if withSecret {
		text += "    secret-key = \"" + z85(secret) + "\"\n"
	}
	return text
}

func TestReadCurve(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	public, secret := curveKeys(t)
	server, serverSecret := curveKeys(t)
	own := write("own", certificateText(public, secret, true))
	engine := write("engine", certificateText(server, serverSecret, false))
	for _, path := range []string{own, write("secret alone", "curve\n\tsecret-key = "+z85(secret)), write("crlf", strings.ReplaceAll(certificateText(public, secret, true), "\n", "\r\n"))} {
		if c, err := ReadCurve(path, engine); err != nil || *c != (Curve{Server: server, Public: public, Secret: secret}) {
			t.Errorf("%s: %v", path, err)
		}
	}
	twice := certificateText(public, secret, true) + "    secret-key = \"" + z85(secret) + "\"\n"
	for name, c := range map[string]struct{ own, server, want string }{
		"no file":           {filepath.Join(dir, "none"), engine, "no such file"},
		"no secret":         {engine, engine, "has no secret-key"},
		"no server":         {own, write("empty", "metadata\n"), "has no public-key"},
		"no server file":    {own, filepath.Join(dir, "none"), "no such file"},
		"another's public":  {write("mixed", certificateText(server, secret, true)), engine, "not that of the secret-key"},
		"twice":             {write("twice", twice), engine, "line 9: secret-key is there twice"},
		"short":             {write("short", "curve\n    secret-key = \"abc\"\n"), engine, "line 2: the secret-key has 3 characters"},
		"no digit":          {write("space", "curve\n    secret-key = \""+strings.Repeat(" ", 40)+"\"\n"), engine, "a character that Z85 has not"},
		"beyond 32 bits":    {write("high", "curve\n    secret-key = \""+strings.Repeat("#", 40)+"\"\n"), engine, "is no number of Z85"},
		"long":              {write("long", strings.Repeat("#\n", maxCertificate)), engine, "more than 65536 bytes"},
		"not of the curve":  {write("section", strings.ReplaceAll(certificateText(public, secret, true), "\ncurve\n", "\nother\n")), engine, "has no secret-key"},
		"without an indent": {write("flat", "curve\nsecret-key\n"), engine, "has no secret-key"},
	} {
		_, err := ReadCurve(c.own, c.server)
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrConfig) && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), z85(secret)) {
			t.Errorf("%s: the error has the key", name)
		}
	}
}

func TestDecodeZ85(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := [32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "key"))
		if got, err := decodeZ85(z85(key)); err != nil || *got != key {
			t.Fatalf("%x: got %x, %v", key, got, err)
		}
	})
}
