package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tallyman-dev/tallyman/test/proc"
)

// process is a program that this one has started.
type process struct {
	cmd    *exec.Cmd
	exited <-chan struct{}
}

// start runs a program with its output in a file. The kernel kills it when we end.
func start(log string, program string, args ...string) (*process, error) {
	output, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = output.Close() }()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = output, output
	exited, err := proc.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}
	return &process{cmd, exited}, nil
}

// stop asks the process to end, and kills it after ten seconds.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// await polls until a process is ready.
func (p *process) await(ctx context.Context, ready func(context.Context) bool) error {
	ended := false
	err := poll(ctx, 5*time.Millisecond, func() bool {
		select {
		case <-p.exited:
			ended = true
			return true
		default:
			return ready(ctx)
		}
	})
	if ended {
		return errors.New("it ended")
	}
	return err
}

// poll asks until the answer is yes, or the context ends.
func poll(ctx context.Context, interval time.Duration, ready func() bool) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !ready() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// cpu is the time that the process has run.
func (p *process) cpu() (time.Duration, error) { return proc.CPU(p.cmd.Process.Pid) }

// resident is the memory of the process in MiB: now, and the most that it was.
func (p *process) resident() (now, most float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	return kilobytes(string(text), "VmRSS") / 1024, kilobytes(string(text), "VmHWM") / 1024, nil
}

// kilobytes is the number of a line such as "VmRSS:   1234 kB"; 0 without the line.
func kilobytes(status, name string) float64 {
	for line := range strings.Lines(status) {
		if value, found := strings.CutPrefix(line, name+":"); found {
			n, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return n
		}
	}
	return 0
}
