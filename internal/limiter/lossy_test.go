package limiter

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"
)

// lossyDialer makes connections that can lose a reply: the command reaches the
// server, and the connection breaks before the answer does.
type lossyDialer struct{ countdown atomic.Int64 }

func (d *lossyDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &lossyConn{Conn: conn, dialer: d}, err
}

// loseNext loses the reply of the next script call.
func (d *lossyDialer) loseNext() { d.loseAfter(0) }

// loseAfter loses the reply of the call that comes after n others.
func (d *lossyDialer) loseAfter(n int64) { d.countdown.Store(n + 1) }

type lossyConn struct {
	net.Conn
	dialer *lossyDialer
	lose   atomic.Bool
}

func (c *lossyConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("evalsha")) && c.dialer.countdown.Add(-1) == 0 {
		c.lose.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.lose.Load() && n > 0 {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}
