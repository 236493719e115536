package testredis

import (
	"context"
	"net"
	"net/url"
	"os"
	"slices"
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

	command

	mu   sync.Mutex
	proc *process // nil while the server is down
}

// command is how a server is started.
type command struct {
	dir   string
	first []string // arguments that must come before all others
	args  []string
	env   []string // variables besides those of the test
}

// Start runs a server that ends with the test. args are added to the command
// line, where later settings win: Start(t, "--maxmemory", "10mb").
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return startServer(t, command{args: args})
}

func startServer(t testing.TB, c command) *Server {
	t.Helper()
	c.dir = t.TempDir()
	s := start(t, c)
	t.Cleanup(s.stop)
	return s
}

// start finds a free port by trying. A port that looked free can be taken by
// the time that the server binds it; the server then exits and the next is tried.
func start(t testing.TB, c command) *Server {
	t.Helper()
	var err error
	for range 5 {
		s := &Server{Addr: FreeAddr(t), command: c}
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
	args := append(slices.Clone(s.first), "--bind", host, "--dir", s.dir, "--save", "", "--appendonly", "no")
	if s.arg("--tls-cert-file") == "" {
		args = append(args, "--port", port)
	} else {
		args = append(args, "--port", "0", "--tls-port", port)
	}
	args = append(args, s.args...)

	client := redis.NewClient(s.options(t))
	defer func() { _ = client.Close() }()

	proc, err := spawn(binary(t), args, s.env, func(pid int) bool { return answers(client, pid) })
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
	u := url.URL{Scheme: s.scheme(), Host: s.Addr, Path: "/0"}
	if password := s.arg("--requirepass"); password != "" {
		u.User = url.UserPassword("", password)
	}
	return u.String()
}

func (s *Server) scheme() string {
	if s.arg("--tls-cert-file") != "" {
		return "rediss"
	}
	return "redis"
}

// arg is the value of an argument that the server was started with, empty when
// it was not.
func (s *Server) arg(name string) string {
	if i := slices.Index(s.args, name); i >= 0 && i+1 < len(s.args) {
		return s.args[i+1]
	}
	return ""
}

func (s *Server) options(t testing.TB) *redis.Options {
	t.Helper()
	options, err := redis.ParseURL(s.URL())
	if err != nil {
		t.Fatalf("parse the server's URL: %v", err)
	}
	if options.TLSConfig != nil {
		options.TLSConfig = s.tlsConfig(t)
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
	shared.once.Do(func() { shared.server = start(t, command{dir: os.TempDir()}) })
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
