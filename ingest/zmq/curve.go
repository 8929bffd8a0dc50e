package zmq

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"golang.org/x/crypto/nacl/box"
)

// curveClient is the client's side of CURVE (RFC 26). It has four commands that
// agree on keys of this connection, after which each frame travels in a box.
//
//	C, c   our key pair          S    the server's public key
//	C', c' ours, this connection S'   the server's, this connection
type curveClient struct {
	keys      *Curve
	transient [32]byte // C'
	secret    [32]byte // c'
	shared    [32]byte // of S' and c'
	sent      uint64   // the last nonce that we have used
	heard     uint64   // the last that the server has
}

// Sizes of CURVE's commands without their names.
const (
	curveWelcome = 16 + 144
	curveCookie  = 96
	// curveMinMessage is a short nonce, and a box with the flags alone.
	curveMinMessage = 8 + box.Overhead + 1
)

func newCurveClient(keys *Curve) (*curveClient, error) {
	public, secret, err := box.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("zmq: keys for CURVE: %w", err)
	}
	return &curveClient{keys: keys, transient: *public, secret: *secret}, nil
}

// short makes the nonce of a counter: a prefix of 16 bytes and the counter.
func short(prefix string, n uint64) (full [24]byte, tail []byte) {
	copy(full[:], prefix)
	binary.BigEndian.PutUint64(full[16:], n)
	return full, full[16:]
}

// long makes a nonce of a prefix of 8 bytes and 16 others.
func long(prefix string, tail []byte) (full [24]byte) {
	copy(full[:], prefix)
	copy(full[8:], tail)
	return full
}

// hello is the first command's body.
func (c *curveClient) hello() []byte {
	c.sent++
	nonce, tail := short("CurveZMQHELLO---", c.sent)
	// Version 1.0 and padding, so that the server's answer is never longer than this.
	return newCommand("HELLO", []byte{1, 0}, make([]byte, 72), c.transient[:], tail,
		box.Seal(nil, make([]byte, 64), &nonce, &c.keys.Server, &c.secret))
}

// initiate reads WELCOME and makes INITIATE.
func (c *curveClient) initiate(welcome []byte, socket string) ([]byte, error) {
	if len(welcome) != curveWelcome {
		return nil, fmt.Errorf("%w: CURVE's WELCOME has %d bytes of data, not %d", ErrProtocol, len(welcome), curveWelcome)
	}
	nonce := long("WELCOME-", welcome[:16])
	plain, ok := box.Open(nil, welcome[16:], &nonce, &c.keys.Server, &c.secret)
	if !ok {
		return nil, fmt.Errorf("%w: CURVE's WELCOME was not made for us: the server has another key than the one set", ErrProtocol)
	}
	server := [32]byte(plain[:32])
	cookie := plain[32:]
	box.Precompute(&c.shared, &server, &c.secret)

	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, fmt.Errorf("zmq: a nonce for CURVE: %w", err)
	}
	vouchNonce := long("VOUCH---", random[:])
	inner := make([]byte, 0, 32+16+80+64)
	inner = append(inner, c.keys.Public[:]...)
	inner = append(inner, random[:]...)
	inner = box.Seal(inner, append(c.transient[:len(c.transient):len(c.transient)], c.keys.Server[:]...), &vouchNonce, &server, &c.keys.Secret)
	inner = appendMetadata(inner, socket)

	c.sent++
	full, tail := short("CurveZMQINITIATE", c.sent)
	return newCommand("INITIATE", cookie[:curveCookie], tail, box.SealAfterPrecomputation(nil, inner, &full, &c.shared)), nil
}

// ready reads READY.
func (c *curveClient) ready(data []byte) (metadata, error) {
	if len(data) < 8+box.Overhead {
		return nil, fmt.Errorf("%w: CURVE's READY has %d bytes of data", ErrProtocol, len(data))
	}
	plain, err := c.open(data, "CurveZMQREADY---")
	if err != nil {
		return nil, err
	}
	return parseMetadata(plain)
}

// open opens a box behind its short nonce, which must be higher than the last.
func (c *curveClient) open(data []byte, prefix string) ([]byte, error) {
	n := binary.BigEndian.Uint64(data)
	if n <= c.heard {
		return nil, fmt.Errorf("%w: CURVE's nonce went from %d to %d", ErrProtocol, c.heard, n)
	}
	nonce, _ := short(prefix, n)
	plain, ok := box.OpenAfterPrecomputation(nil, data[8:], &nonce, &c.shared)
	if !ok {
		return nil, fmt.Errorf("%w: a CURVE box that its key does not open", ErrProtocol)
	}
	c.heard = n
	return plain, nil
}

// Flags within a CURVE message.
const (
	curveMore    = 0x01
	curveCommand = 0x02
)

// seal puts a frame into a MESSAGE, which travels as a frame without flags.
func (c *curveClient) seal(flags byte, body []byte) []byte {
	inner := make([]byte, 1, 1+len(body))
	if flags&flagMore != 0 {
		inner[0] |= curveMore
	}
	if flags&flagCommand != 0 {
		inner[0] |= curveCommand
	}
	inner = append(inner, body...)
	c.sent++
	full, tail := short("CurveZMQMESSAGEC", c.sent)
	return newCommand("MESSAGE", tail, box.SealAfterPrecomputation(nil, inner, &full, &c.shared))
}

// unseal takes a frame out of a MESSAGE.
func (c *curveClient) unseal(body []byte) (flags byte, plain []byte, err error) {
	name, data, err := command(body)
	if err != nil {
		return 0, nil, err
	}
	if name != "MESSAGE" || len(data) < curveMinMessage {
		return 0, nil, fmt.Errorf("%w: %d bytes in the clear on a CURVE connection", ErrProtocol, len(body))
	}
	plain, err = c.open(data, "CurveZMQMESSAGES")
	if err != nil {
		return 0, nil, err
	}
	if plain[0]&curveMore != 0 {
		flags |= flagMore
	}
	if plain[0]&curveCommand != 0 {
		flags |= flagCommand
	}
	return flags, plain[1:], nil
}
