package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tallyman-dev/tallyman/test/proc"
)

// reading is what had been used up at a moment.
type reading struct {
	at          time.Time
	client      time.Duration // CPU of this process and of peers
	redis       time.Duration // CPU of redis-server
	machine     time.Duration // CPU of all, ours too
	allocations uint64
	calls       int64
}

// read takes a reading; commands are those to count.
func (s *server) read(ctx context.Context, commands []string) (r reading, err error) {
	if r.calls, err = s.calls(ctx, commands); err != nil {
		return r, err
	}
	if r.redis, err = proc.CPU(s.pid); err != nil {
		return r, err
	}
	if r.machine, err = cpuOfMachine(); err != nil {
		return r, err
	}
	if r.client, err = cpuOfSelf(); err != nil {
		return r, err
	}
	for _, pid := range s.peers {
		peer, err := proc.CPU(pid)
		if err != nil {
			return r, err
		}
		r.client += peer
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	r.allocations = memory.Mallocs
	r.at = time.Now()
	return r, nil
}

// others is how many cores others than we and redis-server used between two readings.
func others(from, to reading) float64 {
	rest := (to.machine - from.machine) - (to.client - from.client) - (to.redis - from.redis)
	return max(0, rest.Seconds()/to.at.Sub(from.at).Seconds())
}

func cpuOfSelf() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, err
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}

func cpuOfMachine() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return busyIn(string(text))
}

// tick is the unit of /proc/stat, the same on all Linux that Go runs on.
const tick = 10 * time.Millisecond

// busyIn reads the time that all cores were busy from the text of /proc/stat. Time
// that a hypervisor took away counts as busy: we did not have it.
func busyIn(stat string) (busy time.Duration, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("read /proc/stat: %q", line)
	}
	const idle, iowait, steal = 4, 5, 8
	for i := 1; i <= steal; i++ {
		if i == idle || i == iowait {
			continue
		}
		ticks, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		busy += time.Duration(ticks) * tick
	}
	return busy, nil
}
