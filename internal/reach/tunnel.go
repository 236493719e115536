package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// Forwarder makes clients for ports of pods. Unlike kubectl port-forward it does not
// listen on a port of this machine, which its other users could talk to.
type Forwarder struct {
	config *rest.Config
	core   *rest.RESTClient
}

// NewForwarder goes by way of the API server of the configuration, as its user, who
// needs the right to create pods/portforward.
func NewForwarder(config *rest.Config) (*Forwarder, error) {
	core := rest.CopyConfig(config)
	core.APIPath, core.GroupVersion = "/api", &corev1.SchemeGroupVersion
	core.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c, err := rest.RESTClientFor(core)
	if err != nil {
		return nil, err
	}
	return &Forwarder{config: config, core: c}, nil
}

// Client asks at a port of a pod. Nothing is connected before the first question.
func (f *Forwarder) Client(namespace, pod string, port int32) (*Client, error) {
	u := f.core.Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	dialer, err := newDialer(f.config, u)
	if err != nil {
		return nil, err
	}
	t := &tunnel{dialer: dialer, port: strconv.Itoa(int(port))}
	return &Client{
		base:   "http://127.0.0.1:" + t.port,
		http:   &http.Client{Transport: &http.Transport{DialContext: t.dialContext}},
		tunnel: t,
	}, nil
}

// newDialer goes by WebSocket, and where a server or a proxy does not know that, by
// SPDY, as kubectl does.
func newDialer(config *rest.Config, u *url.URL) (httpstream.Dialer, error) {
	byWebSocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, config)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	bySPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	return portforward.NewFallbackDialerForStreaming(byWebSocket, bySPDY, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// tunnel is the way to one port of a pod.
type tunnel struct {
	dialer httpstream.Dialer
	port   string

	mu         sync.Mutex            // held while a connection is made, however long that takes
	connection httpstream.Connection // nil before the first question
	requests   int                   // so far: pairs of streams need a number

	// failure is what the pod's side told last.
	failure atomic.Pointer[string]
}

// dialContext opens a pair of streams, of which one is the way to the port.
func (t *tunnel) dialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	opened := make(chan struct{})
	var c *podConn
	var err error
	go func() { // Dial knows no context
		defer close(opened)
		c, err = t.open()
	}()
	select {
	case <-opened:
		if err != nil {
			return nil, &Unreached{err}
		}
		return c, nil
	case <-ctx.Done():
		go func() {
			if <-opened; err == nil {
				_ = c.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

func (t *tunnel) open() (*podConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.connection == nil || isClosed(t.connection) {
		connection, _, err := t.dialer.Dial(portforward.PortForwardProtocolV1Name)
		if err != nil {
			return nil, err
		}
		t.connection = connection
	}
	t.failure.Store(nil)
	t.requests++
	headers := http.Header{}
	headers.Set(corev1.PortHeader, t.port)
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(t.requests))
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	errs, err := t.connection.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("open a stream for errors: %w", err)
	}
	_ = errs.Close() // nothing is written to it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := t.connection.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	c := &podConn{Stream: data, errs: errs, tunnel: t, told: make(chan struct{}), connection: t.connection}
	go c.listen()
	return c, nil
}

func isClosed(c httpstream.Connection) bool {
	select {
	case <-c.CloseChan():
		return true
	default:
		return false
	}
}

// failed is why the pod's side could not pass on what was sent last, if it could not.
func (t *tunnel) failed() error {
	if text := t.failure.Load(); text != nil {
		return errors.New(*text)
	}
	return nil
}

// close does not wait for a connection that is being made.
func (t *tunnel) close() {
	if t.mu.TryLock() {
		t.end()
	} else {
		go func() {
			t.mu.Lock()
			t.end()
		}()
	}
}

// end closes the connection, and unlocks.
func (t *tunnel) end() {
	defer t.mu.Unlock()
	if t.connection != nil {
		_ = t.connection.Close()
		t.connection = nil
	}
}

// podConn is a connection to a pod's port. It knows no deadlines: HTTP closes it when
// a question's time is over.
type podConn struct {
	httpstream.Stream
	errs       httpstream.Stream
	tunnel     *tunnel
	told       chan struct{} // closed when the pod's side has said all about errors
	connection httpstream.Connection
}

// listen takes the one message, if any, that the pod's side sends when it fails.
func (c *podConn) listen() {
	defer close(c.told)
	message, _ := io.ReadAll(io.LimitReader(c.errs, maxDetail))
	if text := strings.TrimSpace(string(message)); text != "" {
		c.tunnel.failure.Store(&text)
	}
}

// Read implements net.Conn. An end waits a moment for the reason, which comes beside it.
func (c *podConn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	if err != nil {
		select {
		case <-c.told:
		case <-time.After(time.Second):
		}
	}
	return n, err
}

// Close implements net.Conn.
func (c *podConn) Close() error {
	err := c.Reset()
	c.connection.RemoveStreams(c.Stream, c.errs)
	return err
}

// LocalAddr implements net.Conn.
func (c *podConn) LocalAddr() net.Addr { return podAddr{} }

// RemoteAddr implements net.Conn.
func (c *podConn) RemoteAddr() net.Addr { return podAddr{} }

// SetDeadline implements net.Conn.
func (c *podConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (c *podConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (c *podConn) SetWriteDeadline(time.Time) error { return nil }

type podAddr struct{}

// Network implements net.Addr.
func (podAddr) Network() string { return "pod" }

// String implements net.Addr.
func (podAddr) String() string { return "pod" }
