package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/test/proc"
)

// server is the redis-server that all contestants use.
type server struct {
	addr   string
	pid    int
	client *redis.Client
	stop   func()
	// peers are the processes of a contestant that this one does not run.
	peers []int
}

// startServer runs the redis-server in PATH, or the one that the environment
// variable REDIS_SERVER names, without persistence on a free port of 127.0.0.1.
// It ends with stop, or with this process, however that ends.
func startServer(ctx context.Context) (*server, error) {
	binary, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"))
	if err != nil {
		return nil, fmt.Errorf("find redis-server (install it, or set REDIS_SERVER to the path of one): %w", err)
	}
	addr, err := proc.FreeAddress()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-redis-")
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(binary, "--bind", host, "--port", port, "--dir", dir, "--save", "", "--appendonly", "no")
	exited, err := proc.Start(cmd)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	s := &server{addr: addr, pid: cmd.Process.Pid, client: redis.NewClient(&redis.Options{Addr: addr})}
	s.stop = func() {
		_ = s.client.Close()
		_ = cmd.Process.Kill()
		<-exited
		_ = os.RemoveAll(dir)
	}
	if err := s.await(ctx, exited); err != nil {
		s.stop()
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	return s, nil
}

func (s *server) await(ctx context.Context, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if conn, err := net.Dial("tcp", s.addr); err == nil {
			_ = conn.Close()
			return s.client.Ping(ctx).Err()
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-exited:
			return errors.New("it exited")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// empty removes all keys, and frees their memory before it returns. Scripts stay.
func (s *server) empty(ctx context.Context) error {
	return s.client.Do(ctx, "FLUSHALL", "SYNC").Err()
}

// calls is how often the commands were called since the start. A command that
// stands twice counts twice.
func (s *server) calls(ctx context.Context, commands []string) (n int64, err error) {
	info, err := s.client.InfoMap(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	for _, command := range commands {
		n += callsIn(info["Commandstats"]["cmdstat_"+command])
	}
	return n, nil
}

// callsIn reads the calls of a line of INFO commandstats: "calls=7,usec=12,…".
func callsIn(stat string) int64 {
	first, _, _ := strings.Cut(stat, ",")
	n, _ := strconv.ParseInt(strings.TrimPrefix(first, "calls="), 10, 64)
	return n
}

// usedMemory is the bytes that Redis uses, without what its clients' buffers take.
func (s *server) usedMemory(ctx context.Context) (int64, error) {
	info, err := s.client.InfoMap(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	used, err := strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	if err != nil {
		return 0, err
	}
	buffers, err := strconv.ParseInt(info["Memory"]["mem_clients_normal"], 10, 64)
	return used - buffers, err
}

func (s *server) version(ctx context.Context) (string, error) {
	info, err := s.client.InfoMap(ctx, "server").Result()
	return info["Server"]["redis_version"], err
}
