package testredis

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy stands between clients and a server, and does to their connections what
// a test tells it to. Faults hold for connections that are open too. It is safe
// for concurrent use.
type Proxy struct {
	// Addr is where the proxy listens.
	Addr string

	upstream string
	listener net.Listener
	done     sync.WaitGroup

	mu       sync.Mutex
	conns    map[net.Conn]struct{} // of clients
	accepted int
	latency  time.Duration
	resumed  chan struct{} // closed when bytes are forwarded
	replies  []replyFault  // what becomes of the next ones
	closed   bool
}

// replyFault is what becomes of one reply, as far as one read of the connection
// is one: a small reply to a client that waits for it.
type replyFault int

const (
	dropReply replyFault = iota // the server's answer is lost, the connection stays
	cutReply                    // the connection ends after the first byte
)

// StartProxy forwards to the server until the test ends.
func StartProxy(t testing.TB, server *Server) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start a proxy: %v", err)
	}
	p := &Proxy{
		Addr: listener.Addr().String(), upstream: server.Addr, listener: listener,
		conns: map[net.Conn]struct{}{}, resumed: make(chan struct{}),
	}
	close(p.resumed)
	p.done.Go(p.serve)
	t.Cleanup(p.close)
	return p
}

// Delay holds every reply back for that long, from now on; 0 ends it.
func (p *Proxy) Delay(latency time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = latency
}

// Hold stops forwarding, in both directions, until Release.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resumed = make(chan struct{})
}

// Release forwards what was held back, and all that comes. It follows a Hold.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.resumed)
}

// DropReply loses the next reply, whoever it is for. The server has carried out
// the command.
func (p *Proxy) DropReply() { p.plan(dropReply) }

// CutReply ends the connection of the next reply in the middle of it. The server
// has carried out the command.
func (p *Proxy) CutReply() { p.plan(cutReply) }

func (p *Proxy) plan(f replyFault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replies = append(p.replies, f)
}

// Pending is the number of faults that have met no reply yet.
func (p *Proxy) Pending() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.replies)
}

// CutAll ends all connections that are open.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}

// Open is the number of connections that are open.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Accepted is the number of connections that were made to the proxy so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	select {
	case <-p.resumed:
	default:
		close(p.resumed)
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.CutAll()
	p.done.Wait()
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			_ = client.Close() // as a server would that ends at once
			continue
		}
		if !p.admit(client) {
			_, _ = client.Close(), server.Close()
			return
		}
		p.done.Go(func() { p.join(client, server) })
	}
}

func (p *Proxy) admit(client net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.accepted++
		p.conns[client] = struct{}{}
	}
	return !p.closed
}

// join forwards until one side is closed, and then closes the other.
func (p *Proxy) join(client, server net.Conn) {
	var both sync.WaitGroup
	both.Go(func() {
		defer server.Close()
		p.forward(client, server, func([]byte) error { return nil })
	})
	both.Go(func() {
		defer client.Close()
		p.forward(server, client, func(reply []byte) error { return p.spoil(client, reply) })
	})
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, client)
}

var errDropped = errors.New("dropped")

// forward copies until an error. before can drop what was read, or end it all.
func (p *Proxy) forward(from, to net.Conn, before func([]byte) error) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.pass()
		switch err := before(buffer[:n]); {
		case errors.Is(err, errDropped):
			continue
		case err != nil:
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// pass waits while the proxy holds.
func (p *Proxy) pass() {
	p.mu.Lock()
	resumed := p.resumed
	p.mu.Unlock()
	<-resumed
}

// spoil does to a reply what is planned.
func (p *Proxy) spoil(client net.Conn, reply []byte) error {
	p.mu.Lock()
	latency := p.latency
	var planned []replyFault
	if len(p.replies) > 0 {
		planned, p.replies = p.replies[:1], p.replies[1:]
	}
	p.mu.Unlock()
	if latency > 0 {
		time.Sleep(latency)
	}
	switch {
	case planned == nil:
		return nil
	case planned[0] == dropReply:
		return errDropped
	default:
		_, _ = client.Write(reply[:1])
		return io.ErrUnexpectedEOF
	}
}
