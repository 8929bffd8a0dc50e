package redistest

import "syscall"

// dieWithParent makes the kernel kill the child when the test process ends,
// however it ends.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
