package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
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
	start := time.Now()
	var connections sync.WaitGroup
	for i := range v.Connections {
		connections.Go(func() { all[i] = v.onOne(i, start, hs.shard(i)) })
	}
	connections.Wait()
	total := visited{Seconds: v.Duration.Seconds(), P50: hs.percentile(0.50), P99: hs.percentile(0.99)}
	for _, one := range all {
		total.All += one.All
		total.Requests += one.Requests
		total.Errors += one.Errors
	}
	return json.NewEncoder(out).Encode(total)
}

// onOne makes the visits of one connection, and stops at the first error.
func (v *visits) onOne(number int, start time.Time, h *histogram) (got visited) {
	conn, err := net.Dial("tcp", v.Addr)
	if err != nil {
		return visited{Errors: 1}
	}
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)
	counting := start.Add(v.WarmUp)
	end := counting.Add(v.Duration)
	var pause time.Duration
	if v.PerSecond > 0 {
		pause = time.Duration(float64(v.Connections) / v.PerSecond * float64(time.Second))
	}
	due := start.Add(pause / time.Duration(v.Connections) * time.Duration(number))
	for due.Before(end) {
		time.Sleep(time.Until(due))
		if err := exchange(conn, reader); err != nil {
			got.Errors++
			return got
		}
		now := time.Now()
		got.All++
		if !due.Before(counting) {
			got.Requests++
			h.record(now.Sub(due).Nanoseconds())
		}
		if due = due.Add(pause); pause == 0 {
			due = now
		}
	}
	return got
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
