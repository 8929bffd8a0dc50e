package tokenpool

/*
#include <stddef.h>
#include <stdlib.h>
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
#include <malloc.h>
// All arenas, and what is mapped beside them.
static size_t kvatlas_allocated(void) {
	struct mallinfo2 m = mallinfo2();
	return m.uordblks + m.hblkhd;
}
#else
static size_t kvatlas_allocated(void) { return 0; }
#endif
#cgo noescape kvatlas_allocated
#cgo nocallback kvatlas_allocated
*/
import "C"

// allocatedBytes returns how many bytes are allocated outside of Go's heap and not
// given back. It is 0 where the system does not tell.
func allocatedBytes() int64 { return int64(C.kvatlas_allocated()) }
