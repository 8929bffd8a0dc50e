// Package traffic is what programs that measure servers share: a connection that costs them little,
// tokens as bodies have them, and quantiles.
package traffic

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"
)

// Conn is a connection on which one request follows the other. It is for one goroutine.
type Conn struct {
	nc net.Conn
	r  *bufio.Reader
}

// Dial connects to host:port.
func Dial(ctx context.Context, address string) (*Conn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &Conn{nc: nc, r: bufio.NewReaderSize(nc, 64<<10)}, nil
}

// Ask sends a request, which comes as its bytes, and reads the answer to its end. An answer
// other than 2xx is an error.
func (c *Conn) Ask(parts ...[]byte) ([]byte, error) {
	if err := c.nc.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return nil, err
	}
	text := net.Buffers(parts)
	if _, err := text.WriteTo(c.nc); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // all of it was read
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %.300s", resp.Status, body)
	}
	return body, err
}

// Close closes the connection: all answers have been read, so nothing is lost.
func (c *Conn) Close() { _ = c.nc.Close() }

// List returns tokens as JSON has them, without the brackets.
func List(tokens []uint32) []byte {
	b, _ := json.Marshal(tokens) // numbers cannot fail
	return b[1 : len(b)-1]
}

// Words returns tokens as little-endian words of 32 bits.
func Words(tokens []uint32) (out []byte) {
	for _, t := range tokens {
		out = binary.LittleEndian.AppendUint32(out, t)
	}
	return out
}

// Packed returns the text of tokens_b64.
func Packed(tokens []uint32) string { return base64.StdEncoding.EncodeToString(Words(tokens)) }

// Quantile returns the time below which the part q of all are, 0 of none. It sorts them.
func Quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(int(q*float64(len(all))), len(all)-1)]
}
