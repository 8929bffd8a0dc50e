package tokenpool

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// bytesPerByte is what the library takes while it tokenizes, for each byte of a text
// that it has in one piece: up to 340 were seen, of digits.
const bytesPerByte = 350

// unweighed is the longest text that is tokenized whatever others take, in bytes.
const unweighed = 16 << 10

// weighed is an encoder that waits until there is memory for a text.
type weighed struct {
	encoder
	memory *semaphore.Weighted // Config.WorkBytes
	most   int64
}

// encode implements encoder. A text that takes more than there is runs alone.
func (w weighed) encode(text string, special bool) ([]uint32, []int) {
	if n := min(bytesPerByte*int64(len(text)), w.most); len(text) > unweighed && w.memory.Acquire(context.Background(), n) == nil {
		defer w.memory.Release(n)
	}
	return w.encoder.encode(text, special)
}
