package sidecar

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// lasting is a server whose requests last for a while after Shutdown.
type lasting struct {
	time.Duration
	closed chan struct{}
}

func newLasting(d time.Duration) *lasting { return &lasting{d, make(chan struct{})} }

func (l *lasting) Serve(net.Listener) error {
	<-l.closed
	return nil
}

func (l *lasting) Shutdown(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(l.Duration):
		return l.Close()
	}
}

func (l *lasting) Close() error {
	close(l.closed)
	return nil
}

// A stream of the proxy must not cost a call of the next service its answer.
func TestAServiceHasAMomentToEndWhenOthersHaveTakenTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		var log lines
		begin := time.Now()
		err := serve(ctx, []service{
			{name: "stuck", server: newLasting(time.Hour)}, {name: "quick", server: newLasting(10 * time.Millisecond)},
		}, 5*time.Second, slog.New(slog.NewTextHandler(&log, nil)))
		if took := time.Since(begin); err != nil || took > 5*time.Second+200*time.Millisecond {
			t.Errorf("served until %v: %v", took, err)
		}
		if log.count("service=stuck") != 1 || log.count("service=quick") != 0 {
			t.Errorf("the log says:\n%s", log.text.String())
		}
	})
}

func TestAPanicIsNoSecret(t *testing.T) {
	var log bytes.Buffer
	s := newServer(nil, slog.New(slog.NewTextHandler(&log, nil)))
	s.ErrorLog.Printf("http: TLS handshake error from %v", "192.0.2.1")
	if log.Len() > 0 {
		t.Errorf("what a client did wrong is told: %s", log.String())
	}
	s.ErrorLog.Printf("http: panic serving %v: %v", "192.0.2.1", "index out of range")
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "index out of range") {
		t.Errorf("a panic is not told: %q", log.String())
	}
}
