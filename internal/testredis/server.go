package testredis

import (
	"context"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// startTimeout bounds the wait for a server's first answer. A start takes some
// 20 ms; the rest is for machines that run a whole build beside the tests.
const startTimeout = 20 * time.Second

// Server is one redis-server process without persistence.
type Server struct {
	// Addr is where the server listens: 127.0.0.1 and a port that it keeps
	// over a Restart.
	Addr string

	args []string
	dir  string

	mu   sync.Mutex
	proc *process // nil while the server is down
}

// Start runs a server that ends with the test. args are added to the command
// line, where later settings win: Start(t, "--maxmemory", "10mb").
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := start(t, t.TempDir(), args)
	t.Cleanup(s.stop)
	return s
}

// start finds a free port by trying. A port that looked free can be taken by
// the time that the server binds it; the server then exits and the next is tried.
func start(t testing.TB, dir string, args []string) *Server {
	t.Helper()
	var err error
	for range 5 {
		s := &Server{Addr: freeAddr(t), dir: dir, args: args}
		if err = s.run(t); err == nil {
			return s
		}
	}
	t.Fatalf("start redis-server: %v", err)
	return nil
}

func (s *Server) run(t testing.TB) error {
	t.Helper()
	host, port := splitAddr(t, s.Addr)
	args := append([]string{
		"--bind", host, "--port", port, "--dir", s.dir,
		"--save", "", "--appendonly", "no",
	}, s.args...)

	client := redis.NewClient(s.options(t))
	defer func() { _ = client.Close() }()

	proc, err := spawn(binary(t), args, func(pid int) bool { return answers(client, pid) })
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc = proc
	return nil
}

// answers tells whether the process pid serves the client's address. A server
// that refuses us (its default user may be off) serves too, but what a
// different process answers says nothing.
func answers(client *redis.Client, pid int) bool {
	// A bare dial asks first: the client would retry, log, and after some
	// failures not even try for a second.
	conn, err := net.Dial("tcp", client.Options().Addr)
	if err != nil {
		return false
	}
	_ = conn.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info := client.InfoMap(ctx, "server")
	if redis.IsAuthError(info.Err()) || redis.IsPermissionError(info.Err()) {
		return true
	}
	return info.Err() == nil && info.Item("Server", "process_id") == strconv.Itoa(pid)
}

// URL is the server's address in the form that redis.ParseURL takes, with the
// password if the server was started with --requirepass.
func (s *Server) URL() string {
	u := url.URL{Scheme: "redis", Host: s.Addr, Path: "/0"}
	for i, arg := range s.args {
		if arg == "--requirepass" && i+1 < len(s.args) {
			u.User = url.UserPassword("", s.args[i+1])
		}
	}
	return u.String()
}

func (s *Server) options(t testing.TB) *redis.Options {
	t.Helper()
	options, err := redis.ParseURL(s.URL())
	if err != nil {
		t.Fatalf("parse the server's URL: %v", err)
	}
	return options
}

// Client returns a client that is closed with the test.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	client := redis.NewClient(s.options(t))
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Kill ends the server at once, as a crash would. Its data is lost.
func (s *Server) Kill() { s.stop() }

// Restart starts the server again on its port, without data. A server that
// still runs is killed first.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.stop()
	if err := s.run(t); err != nil {
		t.Fatalf("restart redis-server: %v", err)
	}
}

// Pause stops the server from answering while its connections stay open: the
// failure that only a timeout notices.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		_ = s.proc.cmd.Process.Signal(sig)
	}
}

func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.kill()
		s.proc = nil
	}
}

var shared struct {
	once   sync.Once
	server *Server
}

// Shared returns one server for all tests of the process, which ends with the
// process. Do not kill it, flush it or configure it: tests that run at the same
// time are kept apart by nothing but their Prefix.
func Shared(t testing.TB) *Server {
	t.Helper()
	// Not t's directory, which goes away before the server does. Without
	// persistence nothing is written there.
	shared.once.Do(func() { shared.server = start(t, os.TempDir(), nil) })
	if shared.server == nil {
		t.Fatal("the shared redis-server did not start, see the first test that asked for it")
	}
	return shared.server
}

var prefixes atomic.Int64

// Prefix returns a key prefix that no other caller in this process has.
func Prefix(t testing.TB) string {
	t.Helper()
	return "test" + strconv.FormatInt(prefixes.Add(1), 10)
}
