package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// clientsCommand is the argument with which this program is the clients of a proxy:
// it reads visits from its standard input and writes what they got.
const clientsCommand = "clients"

// visits are requests over HTTP/1.1, one after the other on each connection.
type visits struct {
	Addr        string
	Connections int
	// PerSecond of all connections together, at times that do not depend on the
	// answers; 0 is as fast as they come.
	PerSecond        float64
	WarmUp, Duration time.Duration
}

// visited is what came of the visits. Only All has those of the warm-up.
type visited struct {
	All, Requests, Errors int64
	Seconds               float64
	P50, P99              float64 // ns, from when a request was due
}

// visit makes the visits.
func visit(in io.Reader, out io.Writer) error {
	var v visits
	if err := json.NewDecoder(in).Decode(&v); err != nil {
		return err
	}
	hs := make(histograms, v.Connections)
	all := make([]visited, v.Connections)
	due := make([]chan time.Time, v.Connections)
	start := time.Now()
	var running sync.WaitGroup
	if v.PerSecond > 0 {
		for i := range due {
			due[i] = make(chan time.Time, 1+int(v.PerSecond*v.length().Seconds())/len(due)) // all of them
		}
		running.Go(func() { v.pace(start, due) })
	}
	for i := range due {
		running.Go(func() { all[i] = v.onOne(start, due[i], hs.shard(i)) })
	}
	running.Wait()
	total := visited{Seconds: v.Duration.Seconds(), P50: hs.percentile(0.50), P99: hs.percentile(0.99)}
	for _, one := range all {
		total.All += one.All
		total.Requests += one.Requests
		total.Errors += one.Errors
	}
	return json.NewEncoder(out).Encode(total)
}

func (v *visits) length() time.Duration { return v.WarmUp + v.Duration }

// paceTick is how often requests are told that they are due. More often would take CPU
// from what is measured.
const paceTick = 250 * time.Microsecond

// pace tells the connections, in turn, when their visits are due. It sleeps in a thread
// of its own, and so wakes up in time to some 60 µs; goroutines can be late by 1 ms, and
// then all at once.
func (v *visits) pace(start time.Time, due []chan time.Time) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	between := time.Duration(float64(time.Second) / v.PerSecond)
	for n := 0; time.Duration(n)*between < v.length(); {
		pause := syscall.NsecToTimespec(paceTick.Nanoseconds())
		_ = syscall.Nanosleep(&pause, nil) // a signal can cut it short: then there is less to tell
		for now := time.Since(start); time.Duration(n)*between <= now; n++ {
			due[n%len(due)] <- start.Add(time.Duration(n) * between)
		}
	}
	for _, c := range due {
		close(c)
	}
}

// onOne makes the visits of one connection, when they are due or, with nil, one after
// the other. It stops at the first error.
func (v *visits) onOne(start time.Time, due <-chan time.Time, h *histogram) (got visited) {
	conn, err := net.Dial("tcp", v.Addr)
	if err != nil {
		return visited{Errors: 1}
	}
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)
	counting, end := start.Add(v.WarmUp), start.Add(v.length())
	for at := range times(due, end) {
		if err := exchange(conn, reader); err != nil {
			got.Errors++
			return got
		}
		got.All++
		if !at.Before(counting) {
			got.Requests++
			h.record(time.Since(at).Nanoseconds())
		}
	}
	return got
}

// times are those from which visits count as waiting.
func times(due <-chan time.Time, end time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		if due == nil {
			for now := time.Now(); now.Before(end) && yield(now); now = time.Now() {
			}
			return
		}
		for at := range due {
			if !yield(at) {
				return
			}
		}
	}
}

var request = []byte("GET /v1/orders HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")

var errAnswer = errors.New("the answer is not 200 with a length")

// exchange sends a request and reads the answer.
func exchange(conn net.Conn, reader *bufio.Reader) error {
	if _, err := conn.Write(request); err != nil {
		return err
	}
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		return errAnswer
	}
	length := -1
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		name, value, isHeader := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		switch {
		case !isHeader && length < 0:
			return errAnswer
		case !isHeader:
			_, err := reader.Discard(length)
			return err
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return errAnswer
			}
		}
	}
}

// send has a process of its own make the visits, and returns its CPU time as well.
func send(ctx context.Context, v visits) (got visited, cpu time.Duration, err error) {
	self, err := os.Executable()
	if err != nil {
		return got, 0, err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return got, 0, err
	}
	cmd := exec.CommandContext(ctx, self, clientsCommand)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(text), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return got, 0, fmt.Errorf("run the clients: %w", err)
	}
	cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return got, cpu, json.Unmarshal(out, &got)
}

// appCommand is the argument with which this program is the app behind the proxies:
// it answers each request that it gets at an address with 64 bytes, and does no more
// than it must.
const appCommand = "app"

var answer = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 64\r\n\r\n" + strings.Repeat("x", 64))

func serveApp(addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go answerAll(conn)
	}
}

// answerAll answers requests without a body that come one after the other.
func answerAll(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	buffer := make([]byte, 8<<10)
	for n := 0; n < len(buffer); {
		read, err := conn.Read(buffer[n:])
		if err != nil {
			return
		}
		if n += read; bytes.HasSuffix(buffer[:n], []byte("\r\n\r\n")) {
			if _, err := conn.Write(answer); err != nil {
				return
			}
			n = 0
		}
	}
}
