package bench

import "syscall"

// childAttr keeps a terminal's Ctrl-C from the child, which is ended when what
// has been written is gone. It makes the kernel end the child with this
// process. (It does so when the thread ends that started the child. Go ends
// threads only for goroutines that die with theirs locked, which none does
// here.)
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
