package testredis

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"
)

// process is a running redis-server and the watchdog that ends it when the test
// process dies without its cleanups, as after a panic or a timeout.
//
// Neither costs a goroutine: packages that check for leaked ones can use Shared.
type process struct {
	cmd      *exec.Cmd
	watchdog *exec.Cmd
	leash    *os.File // the watchdog acts when this is closed, by us or by our end
}

// spawn starts the binary with more variables in its environment, and returns
// when ready says so about its pid.
func spawn(binary string, args, env []string, ready func(pid int) bool) (*process, error) {
	log, err := os.CreateTemp("", "redis-*.log")
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	// The open file is all we need; without a name nothing is left behind.
	_ = os.Remove(log.Name())

	// The server inherits alive's other end, so that a read meets the end of
	// the file when the server exits: what cmd.Wait would tell, but with a deadline.
	alive, held, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = alive.Close() }()

	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{held}
	cmd.Env = append(os.Environ(), env...)
	err = cmd.Start()
	_ = held.Close()
	if err != nil {
		return nil, err
	}

	p := &process{cmd: cmd}
	if err := p.watch(); err != nil {
		p.kill()
		return nil, err
	}
	if err := p.await(alive, ready); err != nil {
		p.kill()
		return nil, fmt.Errorf("%w; its log:\n%s", err, contents(log))
	}
	return p, nil
}

func (p *process) watch() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	watchdog := exec.Command("sh", "-c", `read -r _; kill -9 "$0"`, strconv.Itoa(p.cmd.Process.Pid))
	watchdog.Stdin = r
	if err := watchdog.Start(); err != nil {
		_ = w.Close()
		return err
	}
	p.watchdog, p.leash = watchdog, w
	return nil
}

func (p *process) await(alive *os.File, ready func(pid int) bool) error {
	deadline := time.Now().Add(startTimeout)
	for time.Now().Before(deadline) {
		if ready(p.cmd.Process.Pid) {
			return nil
		}
		_ = alive.SetReadDeadline(time.Now().Add(2 * time.Millisecond))
		if _, err := alive.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.New("the server exited")
		}
	}
	return fmt.Errorf("no answer within %v", startTimeout)
}

func (p *process) kill() {
	// The watchdog goes first: the server's pid is free for others as soon as
	// the server has been waited for.
	if p.watchdog != nil {
		_ = p.watchdog.Process.Kill()
		_ = p.watchdog.Wait()
		_ = p.leash.Close()
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func contents(f *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<16))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func binary(t testing.TB) string {
	t.Helper()
	name := os.Getenv("REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("this test needs a redis-server, and %v: install it "+
			"(Debian, Ubuntu: apt-get install redis-server; macOS: brew install redis) "+
			"or set REDIS_SERVER to its path", err)
	}
	return path
}

// given are the addresses that FreeAddress has returned.
var given sync.Map

// FreeAddress returns a local address that nobody listens on, none of those that it has
// returned before: whoever asked for that may not listen yet.
//
// Ports that the kernel hands out by itself (on Linux those from 32768) are
// avoided. While a server is down, an outgoing connection could be given its
// port, and a client that dials the dead server could even connect to itself.
func FreeAddress() (string, error) {
	const first, last = 12000, 32000
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(last-first)))
		if listener, err := net.Listen("tcp", addr); err == nil {
			_ = listener.Close()
			if _, taken := given.LoadOrStore(addr, true); !taken {
				return addr, nil
			}
		}
	}
	return "", fmt.Errorf("found no free port between %d and %d", first, last)
}

// FreeAddr is FreeAddress for a test, which fails without one.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, err := FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func splitAddr(t testing.TB, addr string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatalf("split the server's address: %v", err)
	}
	return host, port
}
