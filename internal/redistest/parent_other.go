//go:build !linux

package redistest

import "syscall"

// dieWithParent does nothing: only Linux ties a child to its parent. Servers
// are stopped by the test's cleanup here.
func dieWithParent() *syscall.SysProcAttr { return nil }
