package zmq

import (
	"bytes"
	"crypto/ecdh"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxCertificate is the longest file of keys that is read.
const maxCertificate = 64 << 10

// ReadCurve reads the keys for CURVE from two files in the form (ZPL, RFC 4) that libzmq's
// tools write. Among them are pyzmq's zmq.auth.create_certificates and czmq's zcert. File
// own has our public and secret key, server the engines' public key. Errors name the file
// and never what is in it.
func ReadCurve(own, server string) (*Curve, error) {
	c := &Curve{}
	keys, err := readCertificate(own)
	if err != nil {
		return nil, err
	}
	if keys.secret == nil {
		return nil, fmt.Errorf("%w: %s has no secret-key", ErrConfig, own)
	}
	c.Secret = *keys.secret
	private, err := ecdh.X25519().NewPrivateKey(c.Secret[:])
	if err != nil {
		return nil, fmt.Errorf("%w: %s: the secret-key is none", ErrConfig, own)
	}
	c.Public = [32]byte(private.PublicKey().Bytes())
	if keys.public != nil && *keys.public != c.Public {
		return nil, fmt.Errorf("%w: %s: the public-key is not that of the secret-key", ErrConfig, own)
	}
	if keys, err = readCertificate(server); err != nil {
		return nil, err
	}
	if keys.public == nil {
		return nil, fmt.Errorf("%w: %s has no public-key", ErrConfig, server)
	}
	c.Server = *keys.public
	return c, nil
}

// certificate is what a file has.
type certificate struct{ public, secret *[32]byte }

func readCertificate(path string) (certificate, error) {
	f, err := os.Open(path)
	if err != nil {
		return certificate{}, fmt.Errorf("zmq: keys for CURVE: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCertificate+1))
	if err != nil {
		return certificate{}, fmt.Errorf("zmq: keys for CURVE: %w", err)
	}
	c, err := parseCertificate(text)
	if err != nil {
		return certificate{}, fmt.Errorf("%w: %s: %w", ErrConfig, path, err)
	}
	return c, nil
}

// parseCertificate reads the lines name = "value" of the section curve; all else has no
// meaning for us.
func parseCertificate(text []byte) (c certificate, err error) {
	if len(text) > maxCertificate {
		return c, fmt.Errorf("it has more than %d bytes", maxCertificate)
	}
	section, line := "", 0
	for raw := range bytes.Lines(text) {
		line++
		entry := strings.TrimRight(string(raw), " \t\r\n")
		name, value, assigned := strings.Cut(entry, "=")
		trimmed := strings.TrimSpace(name)
		switch {
		case strings.HasPrefix(strings.TrimSpace(entry), "#") || trimmed == "":
			continue
		case !assigned && trimmed == entry: // no indent
			section = trimmed
			continue
		case section != "curve":
			continue
		}
		var key **[32]byte
		switch trimmed {
		case "public-key":
			key = &c.public
		case "secret-key":
			key = &c.secret
		default:
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		if *key != nil {
			return certificate{}, fmt.Errorf("line %d: %s is there twice", line, trimmed)
		}
		if *key, err = decodeZ85(value); err != nil {
			return certificate{}, fmt.Errorf("line %d: the %s %w", line, trimmed, err)
		}
	}
	return c, nil
}

// z85Digits are those of Z85 (RFC 32), in order.
const z85Digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

// decodeZ85 reads a key of 40 digits.
func decodeZ85(s string) (*[32]byte, error) {
	if len(s) != 40 {
		return nil, fmt.Errorf("has %d characters, a key has 40", len(s))
	}
	var key [32]byte
	for i := 0; i < 40; i += 5 {
		var v uint64
		for _, d := range []byte(s[i : i+5]) {
			n := strings.IndexByte(z85Digits, d)
			if n < 0 {
				return nil, errors.New("has a character that Z85 has not")
			}
			v = v*85 + uint64(n)
		}
		if v > 1<<32-1 {
			return nil, errors.New("is no number of Z85")
		}
		binary.BigEndian.PutUint32(key[i/5*4:], uint32(v))
	}
	return &key, nil
}
