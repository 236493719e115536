package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// The pause between attempts to reach a server that is down, which is what a
// client adds to the time until it is used again. It is a quarter of the time
// that the server has been down, within these.
const (
	minRedialPause = 100 * time.Millisecond
	maxRedialPause = 500 * time.Millisecond
)

// redialer decides for one server when to dial it. After a failure one attempt
// follows after each pause; who needs a connection before that is told of the
// failure at once. So a server that is down is not met by a storm of attempts.
//
// It takes the place of what go-redis does: after as many failures as the pool
// has connections, its pool reports the last one for up to a second after the
// server is back. Hence it never sees a failure to dial. What is dialed instead
// is a failedConn.
type redialer struct {
	// failed is told of each attempt that failed. It is quick.
	failed func(context.Context)

	mu    sync.Mutex
	err   error     // of the last attempt; nil after a success
	since time.Time // of the first failure after a success
	next  time.Time // of the next attempt, when the last one failed
}

var _ redis.Hook = (*redialer)(nil)

// DialHook implements redis.Hook.
func (r *redialer) DialHook(dial redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := r.wait(time.Now()); err != nil {
			return failedConn{err}, nil
		}
		conn, err := dial(ctx, network, addr)
		if !errors.Is(err, context.Canceled) { // which says nothing about the server
			r.note(ctx, err, time.Now())
		}
		if err != nil {
			return failedConn{err}, nil
		}
		return conn, nil
	}
}

// wait returns the last failure when it is not yet time for the next attempt.
func (r *redialer) wait(now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil && now.Before(r.next) {
		return r.err
	}
	r.next = now.Add(r.pause(now)) // the others wait for this attempt
	return nil
}

func (r *redialer) note(ctx context.Context, err error, now time.Time) {
	r.mu.Lock()
	if r.err == nil {
		r.since = now
	}
	r.err = err
	r.next = now.Add(r.pause(now))
	r.mu.Unlock()
	if err != nil {
		r.failed(ctx)
	}
}

func (r *redialer) pause(now time.Time) time.Duration {
	return jitter(min(max(now.Sub(r.since)/4, minRedialPause), maxRedialPause))
}

// ProcessHook implements redis.Hook.
func (*redialer) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (*redialer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// failedConn is a connection that could not be made. Its first use says why.
type failedConn struct{ err error }

var (
	_ net.Conn     = failedConn{}
	_ syscall.Conn = failedConn{}
)

// go-redis takes a layer off the errors of connecting.
func (c failedConn) Read([]byte) (int, error)  { return 0, fmt.Errorf("connect: %w", c.err) }
func (c failedConn) Write([]byte) (int, error) { return 0, fmt.Errorf("connect: %w", c.err) }

// SyscallConn makes the pool find the connection broken before it reuses it, as
// can happen when the one who wanted it has gone away.
func (c failedConn) SyscallConn() (syscall.RawConn, error) { return nil, c.err }

func (failedConn) Close() error                     { return nil }
func (failedConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (failedConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (failedConn) SetDeadline(time.Time) error      { return nil }
func (failedConn) SetReadDeadline(time.Time) error  { return nil }
func (failedConn) SetWriteDeadline(time.Time) error { return nil }
