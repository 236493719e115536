package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// streams open what is more than a request and its answer, and return what came of
// it.
var streams = map[string]func(ctx context.Context, target string) (string, error){
	"websocket": openWebSocket,
	"events":    readEvents,
	"unary": func(ctx context.Context, target string) (string, error) {
		return call(target, func(c grpc_health_v1.HealthClient) (*grpc_health_v1.HealthCheckResponse, error) {
			return c.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		})
	},
	"stream": func(ctx context.Context, target string) (string, error) {
		return call(target, func(c grpc_health_v1.HealthClient) (*grpc_health_v1.HealthCheckResponse, error) {
			stream, err := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
			if err != nil {
				return nil, err
			}
			return stream.Recv() // of a stream that goes on
		})
	},
}

func tell(ctx context.Context, open func(context.Context, string) (string, error), target string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	outcome, err := open(ctx, target)
	if err == nil {
		fmt.Println(outcome)
	}
	return err
}

// openWebSocket sends twice, and each time waits for it to come back.
func openWebSocket(ctx context.Context, target string) (string, error) {
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", target)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	deadline, _ := ctx.Deadline()
	_ = connection.SetDeadline(deadline)
	fmt.Fprintf(connection, "GET /websocket HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", target)
	in := bufio.NewReader(connection)
	response, err := http.ReadResponse(in, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		return statusOf(response), err
	}
	outcome := []string{statusOf(response)}
	for _, word := range []string{"to", "fro"} {
		fmt.Fprint(connection, word)
		back := make([]byte, len(word))
		if _, err := io.ReadFull(in, back); err != nil {
			return "", err
		}
		outcome = append(outcome, string(back))
	}
	return strings.Join(outcome, " "), nil
}

// readEvents reads two events of an endless stream.
func readEvents(ctx context.Context, target string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target+"/events", nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	outcome := statusOf(response)
	if response.StatusCode != http.StatusOK {
		return outcome, nil
	}
	lines := bufio.NewScanner(response.Body)
	for events := 0; events < 2 && lines.Scan(); {
		if data, found := strings.CutPrefix(lines.Text(), "data:"); found {
			outcome += data
			events++
		}
	}
	return outcome, lines.Err()
}

func statusOf(r *http.Response) string {
	if r == nil {
		return ""
	}
	return fmt.Sprint(r.StatusCode)
}

// call makes a gRPC call, and says of one that is refused whether it is told when it
// can be made again.
func call(target string, do func(grpc_health_v1.HealthClient) (*grpc_health_v1.HealthCheckResponse, error)) (string, error) {
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	answer, err := do(grpc_health_v1.NewHealthClient(connection))
	if err == nil {
		return answer.GetStatus().String(), nil
	}
	refusal := status.Convert(err)
	for _, detail := range refusal.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok && retry.GetRetryDelay().AsDuration() > 0 {
			return refusal.Code().String() + " with RetryInfo", nil
		}
	}
	return refusal.Code().String(), nil
}
