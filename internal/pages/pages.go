// Package pages makes large slices whose memory the kernel hands out at a fair price.
package pages

import "unsafe"

// size is the least size of a page of memory, in bytes.
const size = 4096

// Make returns n zero values in a slice, each page of which has been written.
//
// Memory that is new to the process has no pages yet. Where a page is read before it is
// written, the kernel maps a shared page of zeros at first. A hash table does so that looks
// for a free slot. The write replaces that, and all other processors must be told to forget
// it. For tables that grow, that was a quarter of all that an ingest costs.
func Make[T any](n int) []T {
	s := make([]T, n)
	var zero T
	step := max(1, size/max(1, int(unsafe.Sizeof(zero))))
	for i := 0; i < n; i += step {
		s[i] = zero
	}
	return s
}
