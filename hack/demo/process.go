package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a program that the demo started, with its output in a file.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
}

// start runs a program in the background and stops it by its pid at the end.
func (d *demo) start(name, program string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(d.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own, so that Ctrl-C reaches the demo only, which then
	// stops its programs in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // how it ended is in its log
	}()
	d.cleanup(p.stop)
	return p, nil
}

// stop asks the process to end and insists after ten seconds.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not stop within 10 s of SIGTERM and was killed", p.name)
	}
}

// ended says whether the process is gone.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// run executes a command and returns its standard output, also if it fails.
func run(ctx context.Context, stdin string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w", filepath.Base(program), strings.Join(args, " "), err)
	}
	return strings.TrimRight(string(out), "\n"), err
}

// waitFor polls until ready is true, and fails with what it waited for.
func waitFor(ctx context.Context, what string, timeout time.Duration, ready func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ready(ctx) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s", timeout, what)
		case <-tick.C:
		}
	}
	return nil
}
