package upstream

import (
	"bufio"
	"errors"
	"math"
	"net"
	"net/http"
	"syscall"
	"time"
)

// MaxResponseHead bounds the bytes of a response before its body, and of each
// informational response before that.
const MaxResponseHead = 1 << 20

var errHeadTooLarge = errors.New("the head of the app's response is larger than 1 MiB")

// conn is a connection to the app. It serves one request at a time.
type conn struct {
	net.Conn
	raw    syscall.RawConn // nil if there is none, as of a net.Pipe
	reader *bufio.Reader
	writer *bufio.Writer
	// close is Close as a value, made once.
	close     func()
	readLimit int64 // bytes that may be read
	reused    bool
	idleSince time.Time
}

func newConn(c net.Conn) *conn {
	n := &conn{Conn: c}
	if s, ok := c.(syscall.Conn); ok {
		n.raw, _ = s.SyscallConn()
	}
	n.reader, n.writer = bufio.NewReader(n), bufio.NewWriter(c)
	n.close = func() { _ = c.Close() }
	return n
}

// Read implements io.Reader within the limit.
func (c *conn) Read(p []byte) (int, error) {
	if c.readLimit <= 0 {
		return 0, errHeadTooLarge
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.readLimit)])
	c.readLimit -= int64(n)
	return n, err
}

// isQuiet says whether an idle connection is open and has nothing to be read. What an
// app sends without having been asked would be taken for the answer to the next request.
func (c *conn) isQuiet() bool {
	if c.raw == nil {
		return true
	}
	quiet := false
	err := c.raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, err := syscall.Read(int(fd), one[:]) // which does not wait
		quiet = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return err == nil && quiet
}

// send writes a request and waits until its response begins. Without a response, the
// app may have closed the connection just before it got the request.
func (c *conn) send(r *http.Request) error {
	c.readLimit = MaxResponseHead
	if err := writeRequest(c.writer, r); err != nil {
		return err
	}
	_, err := c.reader.Peek(1)
	return err
}

// receive reads the final response up to its body, and tells inform of the
// informational ones before it.
func (c *conn) receive(r *http.Request, inform func(*http.Response)) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(c.reader, r)
		switch {
		case err != nil && c.readLimit <= 0:
			return nil, errHeadTooLarge
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the app switches protocols, which the request did not ask for")
		case resp.StatusCode < 100 || resp.StatusCode > 199:
			c.readLimit = math.MaxInt64
			return resp, nil
		}
		inform(resp)
		c.readLimit = MaxResponseHead
	}
}
