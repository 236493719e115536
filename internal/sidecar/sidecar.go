package sidecar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tallyman-dev/tallyman/internal/sidecar/envoy"
	"github.com/tallyman-dev/tallyman/internal/sidecar/tracing"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// leaveTimeout bounds the last words to the store, and those to a collector of traces.
const leaveTimeout = 2 * time.Second

// Run serves until the context ends, lets the requests that are under way end,
// and withdraws from the store. That is no error.
func Run(ctx context.Context, c Config, log *slog.Logger) error {
	tracer, err := tracing.FromEnv(ctx, c.Limiter.Namespace, c.Limiter.Pod, log, tracingFailed(log))
	if err != nil {
		// As OpenTelemetry has it, and as requests want it: they are served.
		log.Warn("Tracing is off", "error", err)
	}
	defer leave(ctx, "the collector of traces", tracer.Shutdown, log)
	m := newMetrics()
	c.Limiter.Logger, c.Limiter.Observer = log, m.observer(tracer)
	limiter, err := tallyman.New(ctx, c.Limiter)
	if err != nil {
		return err
	}
	defer leave(ctx, "the store", limiter.Close, log)
	m.watch(limiter, c.Limiter.PolicyFile == "")
	doors := newDoors(limiter, m, tracer, log)

	proxy, closeIdle := newProxy(c.Upstream, log)
	defer closeIdle()
	var grpcServer server
	if c.GRPCListen != "" { // it has goroutines from the start
		grpcServer = envoy.NewServer(ctx, doors.rateLimit, doors.extAuthz, tracer.GRPC()...)
	}
	checkAPI := tracer.HTTP(newCheckAPI(doors, c.Limiter.TrustedHops, log))
	services, err := listen([]service{
		{name: "proxy", address: c.Listen, handler: doors.proxy.before(proxy)},
		{name: "check API", address: c.CheckListen, handler: checkAPI, readTimeout: readTimeout},
		{name: "Envoy gRPC", address: c.GRPCListen, server: grpcServer},
		{name: "operator API", address: c.OperatorListen, handler: newOperatorAPI(limiter, log), readTimeout: readTimeout},
		// Who watches us watches to the end: it is drained last.
		{name: "admin", address: c.AdminListen, handler: newAdmin(ctx, limiter, m.registry), readTimeout: readTimeout},
	}, log)
	if err != nil {
		return err
	}
	return serve(ctx, services, c.DrainTimeout, log)
}

// tracingFailed logs what OpenTelemetry cannot do, now and then.
func tracingFailed(log *slog.Logger) func(error) {
	var complaint occasion
	return func(err error) {
		if complaint.due(time.Now()) {
			log.Warn("Tracing does not work as it should; some spans are lost", "error", err)
		}
	}
}

// leave takes leave of somebody. The context has ended; they still have to hear of it.
func leave(ctx context.Context, of string, say func(context.Context) error, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := say(ctx); err != nil {
		log.Warn("Did not take leave of "+of, "error", err)
	}
}

// readTimeout is ample for requests that have a small body, or none.
const readTimeout = 10 * time.Second

// service is something to be served: a handler, or a server of its own.
type service struct {
	name, address string
	handler       http.Handler
	readTimeout   time.Duration // of a whole request; none where bodies are streams
	server        server
	listener      net.Listener
}

// server is what an http.Server does for us.
type server interface {
	// Serve serves until one of the others is called, and returns nil or
	// http.ErrServerClosed then.
	Serve(net.Listener) error
	// Shutdown lets requests that are under way end, unless ctx does before.
	Shutdown(ctx context.Context) error
	Close() error
}

// listen opens all listeners before anything is served. Services without an
// address are left out.
func listen(wanted []service, log *slog.Logger) (services []service, err error) {
	for _, s := range wanted {
		if s.address == "" {
			continue
		}
		if s.listener, err = net.Listen("tcp", s.address); err != nil {
			for _, s := range services {
				_ = s.listener.Close()
			}
			return nil, fmt.Errorf("listen for the %s: %w", s.name, err)
		}
		if s.handler != nil {
			server := newServer(s.handler, log)
			server.ReadTimeout = s.readTimeout
			s.server = server
		}
		log.Info("Listening", "service", s.name, "address", s.listener.Addr().String())
		services = append(services, s)
	}
	return services, nil
}

// newServer has limits on what clients may take their time with, bodies
// excepted.
func newServer(handler http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           handler,
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		// Longer than the load balancers in front keep theirs, of which ten
		// minutes is the longest by default: who closes first must be the one
		// that sends requests, or some of them are lost.
		IdleTimeout:    11 * time.Minute,
		MaxHeaderBytes: 128 << 10,
		ErrorLog:       stdlog.New(serverLog{log}, "", 0),
	}
}

// serverLog takes the lines of a server: what clients did wrong is for who looks for
// it, a panic of ours for everybody.
type serverLog struct{ log *slog.Logger }

// Write implements io.Writer.
func (l serverLog) Write(line []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.HasPrefix(line, []byte("http: panic serving")) {
		level = slog.LevelError
	}
	l.log.Log(context.Background(), level, string(bytes.TrimSpace(line)))
	return len(line), nil
}

// serve runs the services until the context ends or one of them fails, and then
// drains them in their order.
func serve(ctx context.Context, services []service, timeout time.Duration, log *slog.Logger) (err error) {
	failed := make(chan error, len(services))
	var running sync.WaitGroup
	defer running.Wait()
	for _, s := range services {
		running.Go(func() {
			if err := s.server.Serve(s.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serve the %s: %w", s.name, err)
			}
		})
	}
	select {
	case <-ctx.Done():
		log.Info("Draining", "timeout", timeout.String())
	case err = <-failed:
	}
	deadline := time.Now().Add(timeout)
	for _, s := range services {
		s.drain(context.WithoutCancel(ctx), max(time.Until(deadline), moment), log)
	}
	return err
}

// moment is the time that a service has to end when those before it have taken all
// of it, as the streams of a proxy do: enough for a decision that is under way.
const moment = 100 * time.Millisecond

// drain lets requests end for so long. Connections that were upgraded, such as
// WebSockets, are not waited for: they end with the process.
func (s *service) drain(ctx context.Context, timeout time.Duration, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		log.Warn("Cut off requests that had not ended in time", "service", s.name)
		_ = s.server.Close()
	}
}
