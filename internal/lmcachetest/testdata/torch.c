/* Stands in for libc10, which LMCache's native modules are linked with and need nothing of. What they do need is
 * of libstdc++ 13, where Debian 12 has that of 12: std::string::_M_replace_cold(char*, size_t, const char*, size_t, size_t). */
#include <stddef.h>
#include <string.h>

void _ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE15_M_replace_coldEPcmPKcmm(void *self, char *at, size_t old, const char *from, size_t n, size_t tail) {
  (void)self;
  if (n && n <= old) memmove(at, from, n);
  if (tail && old != n) memmove(at + n, at + old, tail);
  if (n <= old) return;
  if (from + n <= at + old) {
    memmove(at, from, n);
  } else if (from >= at + old) { /* it has been moved with the tail */
    memcpy(at, at + (size_t)(from - at) + (n - old), n);
  } else {
    size_t left = (size_t)(at + old - from);
    memmove(at, from, left);
    memcpy(at + left, at + n, n - left);
  }
}
