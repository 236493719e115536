package proc

import "syscall"

var endWithUs = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
