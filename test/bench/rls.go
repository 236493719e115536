package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/sidecar/envoy"
	public "github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/test/proc"
)

// The names of the contestants that are asked by Envoy's rate limit service. The
// empty one answers and does nothing else, and the peer is at the address that the
// environment variable BENCH_RLS_PEER has.
const (
	rlsTallyman       = "rls/tallyman"
	rlsTallymanLeased = "rls/tallyman/Leased"
	rlsEmpty          = "rls/empty"
	rlsPeer           = "rls/peer"
)

var rateLimitServices = []contestant{
	{rlsTallyman, policy.TokenBucket, script, openRLS(policy.Exact)},
	{rlsTallymanLeased, policy.TokenBucket, script, openRLS(policy.Leased)},
	{rlsEmpty, policy.TokenBucket, nil, openEmptyRLS},
	{rlsPeer, policy.FixedWindow, nil, openRLSPeer},
}

func openRLS(mode policy.DistributionMode) func(t task) (*instance, error) {
	return func(t task) (*instance, error) {
		file, err := policyFile(mode, t.Limit)
		if err != nil {
			return nil, err
		}
		defer func() { _ = os.RemoveAll(filepath.Dir(file)) }()
		ctx := context.Background()
		l, err := public.New(ctx, public.Options{Store: "redis://" + t.Addr, PolicyFile: file})
		if err != nil {
			return nil, err
		}
		return serveRLS(t, envoy.NewServer(ctx, l, l), func() { _ = l.Close(ctx) })
	}
}

// policyFile writes a policy with a limit by key. Clients are told nothing, as by
// other rate limit services that are not configured to. Whoever calls removes the
// directory that it is in.
func policyFile(mode policy.DistributionMode, l limit) (string, error) {
	dir, err := os.MkdirTemp("", "bench-policy-")
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf(`
apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: bench}
spec:
  selector: {}
  response: {headers: None}
  limits:
  - name: per-key
    algorithm: TokenBucket
    requests: %d
    burst: %d
    window: %v
    distribution: {mode: %s}
    key: [{header: {name: key}}]
`, l.Requests, l.Burst, l.Window, mode)
	file := filepath.Join(dir, "policy.yaml")
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// emptyRLS is the floor: what gRPC itself takes.
type emptyRLS struct {
	rlspb.UnimplementedRateLimitServiceServer
	answer *rlspb.RateLimitResponse
}

func (e *emptyRLS) ShouldRateLimit(context.Context, *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	return e.answer, nil
}

// emptyServer is a grpc.Server that closes as the others do.
type emptyServer struct{ *grpc.Server }

func (s emptyServer) Close() error {
	s.Stop()
	return nil
}

func openEmptyRLS(t task) (*instance, error) {
	s := grpc.NewServer()
	rlspb.RegisterRateLimitServiceServer(s, &emptyRLS{answer: &rlspb.RateLimitResponse{OverallCode: rlspb.RateLimitResponse_OK}})
	return serveRLS(t, emptyServer{s}, func() {})
}

// serveRLS has a server on 127.0.0.1 be asked.
func serveRLS(t task, s interface {
	Serve(net.Listener) error
	Close() error
}, after func()) (*instance, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() { _ = s.Serve(listener) }() // until it is closed
	return askRLS(t, listener.Addr().String(), func() {
		_ = s.Close()
		after()
	})
}

func openRLSPeer(t task) (*instance, error) {
	addr := os.Getenv("BENCH_RLS_PEER")
	if addr == "" {
		return nil, errors.New("BENCH_RLS_PEER is not set: give the address of a rate limit service")
	}
	return askRLS(t, addr, func() {})
}

// rlsPeerProcesses are those whose CPU is the peer's: the service, and the Redis that
// it counts in. The environment variable BENCH_RLS_PEER_PIDS has them, with commas
// between.
func rlsPeerProcesses() (pids []int, err error) {
	for _, text := range list(os.Getenv("BENCH_RLS_PEER_PIDS")) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("BENCH_RLS_PEER_PIDS: %q is not the number of a process", text)
		}
		if cpu, err := proc.CPU(pid); err != nil || cpu == 0 {
			return nil, fmt.Errorf("BENCH_RLS_PEER_PIDS: there is no process %d", pid)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// askRLS asks as an Envoy does, over a connection for each of its threads, of which
// it has one for each core.
func askRLS(t task, addr string, after func()) (*instance, error) {
	clients := make([]rlspb.RateLimitServiceClient, runtime.NumCPU())
	var conns []*grpc.ClientConn
	closeAll := func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
		after()
	}
	for i := range clients {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			closeAll()
			return nil, err
		}
		conns, clients[i] = append(conns, conn), rlspb.NewRateLimitServiceClient(conn)
	}
	requests := make([]*rlspb.RateLimitRequest, len(t.Keys))
	for i, key := range t.Keys {
		requests[i] = &rlspb.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimitpb.RateLimitDescriptor{
			{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "key", Value: key}}},
		}}
	}
	var callers atomic.Int64
	return &instance{
		newCaller: func() caller {
			client := clients[int(callers.Add(1))%len(clients)]
			return func(ctx context.Context, key int) (bool, error) {
				out, err := client.ShouldRateLimit(ctx, requests[key])
				return err == nil && out.GetOverallCode() == rlspb.RateLimitResponse_OK, err
			}
		},
		close: closeAll,
	}, nil
}
