//go:build !linux

package bench

import "syscall"

// childAttr does nothing: a Ctrl-C may end the child together with the program,
// and a killed program leaves it.
func childAttr() *syscall.SysProcAttr { return nil }
