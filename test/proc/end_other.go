//go:build !linux

package proc

import "syscall"

var endWithUs *syscall.SysProcAttr // there is no such thing
