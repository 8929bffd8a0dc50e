package tokenpool

import (
	"context"
	"fmt"

	"golang.org/x/sync/semaphore"
)

// bytesPerByte is what the library takes while it tokenizes, for each byte of a text
// that it has in one piece. Up to 340 were seen, of digits.
const bytesPerByte = 350

// unweighed is the longest text that is tokenized whatever others take, in bytes.
const unweighed = 16 << 10

// weighed is an encoder that waits until there is memory for a text.
type weighed struct {
	encoder
	memory *semaphore.Weighted // Config.WorkBytes
	most   int64
}

// check implements encoder.
func (w weighed) check(text string) error {
	if n := bytesPerByte * int64(len(text)); len(text) > unweighed && n > w.most {
		return fmt.Errorf("%w: %d bytes of it cannot be cut and can take %d bytes of memory for each, more than the %d that all texts together may take", ErrTooLong, len(text), bytesPerByte, w.most)
	}
	return nil
}

// encode implements encoder, for a text that check lets pass.
func (w weighed) encode(text string, special bool) ([]uint32, []int) {
	if n := min(bytesPerByte*int64(len(text)), w.most); len(text) > unweighed && w.memory.Acquire(context.Background(), n) == nil {
		defer w.memory.Release(n)
	}
	return w.encoder.encode(text, special)
}
