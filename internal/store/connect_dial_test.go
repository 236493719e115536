package store

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// line is a server that can be down, and counts who dials it.
type line struct {
	down  error
	dials int
}

func (l *line) dial(context.Context, string, string) (net.Conn, error) {
	l.dials++
	if l.down != nil {
		return nil, l.down
	}
	ours, theirs := net.Pipe()
	_ = theirs.Close()
	return ours, nil
}

// reached dials through the redialer, and tells whether there is a connection.
func reached(t *testing.T, dial func(context.Context, string, string) (net.Conn, error)) bool {
	t.Helper()
	conn, err := dial(t.Context(), "tcp", "redis:6379")
	if err != nil {
		t.Fatalf("go-redis was told of a failure to dial, and counts it: %v", err)
	}
	defer conn.Close()
	_, failed := conn.(failedConn)
	return !failed
}

func TestAServerThatIsDownIsDialedAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		r := &redialer{failed: func(context.Context) { told++ }}
		server := &line{down: errors.New("connection refused")}
		dial := r.DialHook(server.dial)

		for range 1000 { // a minute
			for range 10 {
				if reached(t, dial) {
					t.Fatal("the server is down")
				}
			}
			time.Sleep(60 * time.Millisecond)
		}
		if server.dials < 100 || server.dials > 150 || told != server.dials {
			t.Errorf("%d attempts in a minute, of which %d were told; want one each 500 ms", server.dials, told)
		}

		server.down = nil
		time.Sleep(maxRedialPause * 11 / 10)
		for range 20 {
			if !reached(t, dial) {
				t.Fatal("the server is up")
			}
		}
	})
}

func TestAShortOutageIsOverSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &redialer{failed: func(context.Context) {}}
		server := &line{down: errors.New("connection refused")}
		dial := r.DialHook(server.dial)
		for range 20 { // the failures of a pool, all at once
			reached(t, dial)
		}
		server.down = nil
		time.Sleep(minRedialPause * 11 / 10)
		if !reached(t, dial) {
			t.Error("the server is still taken to be down")
		}
	})
}

func TestADialThatNobodyWaitsForSaysNothingOfTheServer(t *testing.T) {
	r := &redialer{failed: func(context.Context) { t.Error("told of a failure") }}
	server := &line{down: context.Canceled}
	dial := r.DialHook(server.dial)
	reached(t, dial)
	server.down = nil
	if !reached(t, dial) {
		t.Error("the server is taken to be down")
	}
}

// Without the redialer, the pool tells its last failure for up to a second.
func TestARestartedServerIsUsedAgainSoon(t *testing.T) {
	server := testredis.Start(t)
	client, err := Connect(ConnectOptions{URL: server.URL() + "?pool_size=3"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server.Kill()
	for range 50 {
		var refused *net.OpError
		if err := client.Ping(t.Context()).Err(); !errors.As(err, &refused) {
			t.Fatalf("the error does not say what failed: %v", err)
		}
	}

	server.Restart(t)
	began := time.Now()
	for client.Ping(t.Context()).Err() != nil {
		if time.Since(began) > 700*time.Millisecond {
			t.Fatalf("no answer %v after the restart", time.Since(began))
		}
		time.Sleep(time.Millisecond)
	}
	for range 50 {
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Fatalf("a failure from before the restart came up again: %v", err)
		}
	}
}
