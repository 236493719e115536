package upstream

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// maxIdle is more connections than a sidecar needs at once.
	maxIdle = 1024
	// idleTimeout is that of http.DefaultTransport.
	idleTimeout = 90 * time.Second
)

// Pool keeps the connections to an app for the next requests. It is safe for
// concurrent use, and has no goroutines.
type Pool struct {
	dial func(context.Context) (net.Conn, error)

	mu    sync.Mutex
	idle  []*conn     // the one used last is the last: it is used next
	sweep *time.Timer // set while there are idle ones
}

// NewPool returns a pool of connections that dial makes.
func NewPool(dial func(context.Context) (net.Conn, error)) *Pool { return &Pool{dial: dial} }

// exchange sends a request and returns the final response, whose body has not been
// read, and the connection that it comes from. stop is to be called when the response
// has been read, and says whether the connection is still open: when the client goes,
// it is closed.
//
// Where an app closes an idle connection just as a request goes there, nothing of a
// response comes: then the request is sent again by another one.
func (p *Pool) exchange(r *http.Request, inform func(*http.Response)) (resp *http.Response, c *conn, stop func() bool, err error) {
	for {
		if c, err = p.take(r.Context()); err != nil {
			return nil, nil, nil, err
		}
		stop = context.AfterFunc(r.Context(), c.close)
		err = c.send(r)
		again := err != nil && c.reused && r.Context().Err() == nil
		if err == nil {
			if resp, err = c.receive(r, inform); err == nil {
				return resp, c, stop, nil
			}
		}
		stop()
		c.close()
		if !again {
			return nil, nil, nil, err
		}
	}
}

// take returns an idle connection that is fit for use, or a new one.
func (p *Pool) take(ctx context.Context) (*conn, error) {
	for c := p.pop(); c != nil; c = p.pop() {
		if c.isQuiet() {
			c.reused = true
			return c, nil
		}
		c.close()
	}
	c, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	return newConn(c), nil
}

func (p *Pool) pop() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 {
		return nil
	}
	c := p.idle[last]
	p.idle[last] = nil
	p.idle = p.idle[:last]
	return c
}

// put keeps a connection whose last response has been read to its end.
func (p *Pool) put(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) >= maxIdle || c.reader.Buffered() > 0 {
		c.close()
		return
	}
	c.idleSince = time.Now()
	p.idle = append(p.idle, c)
	if p.sweep == nil {
		p.sweep = time.AfterFunc(idleTimeout, p.closeOld)
	}
}

// closeOld closes the connections that have been idle for too long, and looks again
// when the next one may be.
func (p *Pool) closeOld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := 0
	for old < len(p.idle) && time.Since(p.idle[old].idleSince) >= idleTimeout {
		p.idle[old].close()
		old++
	}
	p.idle = slices.Delete(p.idle, 0, old)
	if p.sweep = nil; len(p.idle) > 0 {
		p.sweep = time.AfterFunc(idleTimeout-time.Since(p.idle[0].idleSince), p.closeOld)
	}
}

// CloseIdle closes the connections that serve no request.
func (p *Pool) CloseIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle {
		c.close()
	}
	p.idle = nil
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
}
