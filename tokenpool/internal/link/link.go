// Package link tells the linker where the tokenizer library lies.
//
// github.com/daulet/tokenizers asks for -ltokenizers and leaves it to the user to say
// where that is. A program imports this package for its effect alone. It then links with the library that
// `make tokenizers` has put into lib/ at the top of the module, with no CGO_LDFLAGS to set. A linker that
// "cannot find -ltokenizers" has found no library there: run `make tokenizers`. CGO_LDFLAGS=-L/elsewhere
// still works beside it.
//
// The go command does not look inside static libraries: it would neither relink
// a program nor run a cached test again because lib/libtokenizers.a has changed. So
// the build writes zz_stamp.go, not in version control, with the library's sum as
// a constant into this package. Everything builds without it as well.
package link

// #cgo LDFLAGS: -L${SRCDIR}/../../../lib
import "C"
