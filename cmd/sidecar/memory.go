package main

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// gcPercent lets the heap grow to four times of what is in use before garbage is
// collected, where Go's default is twice. A sidecar uses few megabytes: so it collects
// half as often or less, and still needs no more than some 50 MiB under load.
const gcPercent = 300

// cgroupLimit has the memory limit of the container, in bytes, or the word max.
const cgroupLimit = "/sys/fs/cgroup/memory.max"

// tuneMemory sets what GOGC and GOMEMLIMIT, which users can set, leave open.
func tuneMemory(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if getenv("GOMEMLIMIT") == "" {
		text, _ := os.ReadFile(cgroupLimit) // not there without cgroup v2
		if limit := memoryLimit(string(text)); limit > 0 {
			debug.SetMemoryLimit(limit)
		}
	}
}

// memoryLimit is nine tenths of a container's limit, as in injected pods: the rest is
// for what Go does not count, such as the program itself. It is 0 where there is none.
func memoryLimit(cgroup string) int64 {
	limit, err := strconv.ParseInt(strings.TrimSpace(cgroup), 10, 64)
	if err != nil {
		return 0
	}
	return limit / 10 * 9
}
