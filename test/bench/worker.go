package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// workerCommand is the argument with which this program is one of several
// processes: it reads a job from its standard input and writes a report.
const workerCommand = "worker"

// job is what one process is to do: its callers ask for the first key from Start
// until End. The second key is to warm up with.
type job struct {
	Contestant string
	Task       task
	Callers    int
	PerSecond  float64 // of all callers together; 0 is as fast as they can
	Start, End time.Time
}

type report struct {
	Decisions, Admitted, Errors int64
	Last                        time.Time // when the last decision was there
}

// work does the job.
func work(ctx context.Context, in io.Reader, out io.Writer) error {
	var j job
	if err := json.NewDecoder(in).Decode(&j); err != nil {
		return err
	}
	c, err := contestantNamed(j.Contestant)
	if err != nil {
		return err
	}
	i, err := c.open(j.Task)
	if err != nil {
		return err
	}
	defer i.close()

	var mu sync.Mutex
	var all tally
	var last time.Time
	var callers sync.WaitGroup
	for range j.Callers {
		callers.Go(func() {
			got, ended := j.call(ctx, i.newCaller())
			mu.Lock()
			defer mu.Unlock()
			all.add(got)
			if ended.After(last) {
				last = ended
			}
		})
	}
	callers.Wait()
	return json.NewEncoder(out).Encode(report{all.decisions, all.admitted, all.errors, last})
}

// call asks until the end, and says when it had the last decision.
func (j *job) call(ctx context.Context, decide caller) (t tally, last time.Time) {
	for range 20 {
		_, _ = decide(ctx, 1)
	}
	pause := j.pause()
	last = j.Start
	for next := j.Start; last.Before(j.End) && next.Before(j.End); next = next.Add(pause) {
		time.Sleep(time.Until(next))
		t.count(decide(ctx, 0))
		last = time.Now()
	}
	return t, last
}

// pause is the time from one decision to the next of a caller that keeps its rate.
func (j *job) pause() time.Duration {
	if j.PerSecond == 0 {
		return 0
	}
	return time.Duration(float64(j.Callers) / j.PerSecond * float64(time.Second))
}

// worker is a process that does a job.
type worker struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

func startWorker(ctx context.Context, j job) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.CommandContext(ctx, self, workerCommand)}
	w.cmd.Stdin = bytes.NewReader(text)
	w.cmd.Stdout = &w.out
	w.cmd.Stderr = os.Stderr
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process of our own: %w", err)
	}
	return w, nil
}

// report waits for the process to end.
func (w *worker) report() (r report, err error) {
	if err := w.cmd.Wait(); err != nil {
		return r, err
	}
	return r, json.Unmarshal(w.out.Bytes(), &r)
}

// kill ends the process if it still runs.
func (w *worker) kill() {
	if w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	}
}
