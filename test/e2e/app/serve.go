package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// serve answers on port 8080 until it is told to stop: with the name of the pod,
// with endless events, as a WebSocket that sends back what it gets, and as a gRPC
// server of health.
func serve(ctx context.Context) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	rpc := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(rpc, health.NewServer())
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			rpc.ServeHTTP(w, r)
			return
		}
		_, _ = fmt.Fprintln(w, name)
	})
	mux.HandleFunc("/events", sendEvents)
	mux.HandleFunc("/websocket", echo)
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 10 * time.Second, Handler: mux, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() {
		<-ctx.Done()
		deadline, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = server.Shutdown(deadline)
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// sendEvents never ends: a client that reads events does not have them out of a
// buffer that was full, or closed.
func sendEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for n := 1; r.Context().Err() == nil; n++ {
		_, _ = fmt.Fprintf(w, "data: %d\n\n", n)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// echo speaks no WebSocket: the bytes after the upgrade are the client's and ours.
func echo(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", "websocket")
	w.WriteHeader(http.StatusSwitchingProtocols)
	connection, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer connection.Close()
	_, _ = io.Copy(connection, buffered)
}
