package testredis

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// masterName is what the Sentinels call the master.
const masterName = "tests"

// failoverTimeout bounds the wait for a failover. It takes some two seconds; a
// Sentinel that is starved of CPU stands still for 30.
const failoverTimeout = time.Minute

// Sentinel is a master with two replicas, and three Sentinels that agree by two
// to promote one of them.
type Sentinel struct {
	// Servers are the master, at the start the first, and its replicas.
	Servers   []*Server
	Sentinels []*Server
}

// StartSentinel runs them until the test ends, and returns when all of them know
// each other and the replicas are in sync. args are of the servers and, as far
// as they are about TLS, of the Sentinels.
func StartSentinel(t testing.TB, args ...string) *Sentinel {
	t.Helper()
	s := &Sentinel{}
	master := Start(t, replicated(args)...)
	s.Servers = append(s.Servers, master)
	host, port := splitAddr(t, master.Addr)
	for range 2 {
		s.Servers = append(s.Servers, Start(t, append(replicated(args), "--replicaof", host+" "+port)...))
	}
	for _, replica := range s.Servers[1:] {
		awaitReplica(t, replica)
	}
	for range 3 {
		s.Sentinels = append(s.Sentinels, startSentinel(t, master, args))
	}
	for _, sentinel := range s.Sentinels {
		s.awaitQuorum(t, sentinel)
	}
	return s
}

// replicated are arguments of servers that are or will have replicas.
func replicated(args []string) []string {
	return append([]string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}, args...)
}

func startSentinel(t testing.TB, master *Server, args []string) *Server {
	t.Helper()
	host, port := splitAddr(t, master.Addr)
	config := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 2\n"+
		"sentinel down-after-milliseconds %[1]s 500\n"+
		"sentinel failover-timeout %[1]s 4000\n", masterName, host, port)
	if password := master.arg("--requirepass"); password != "" {
		config += fmt.Sprintf("sentinel auth-pass %s %s\n", masterName, password)
	}
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var own []string
	for i := 0; i+1 < len(args); i += 2 {
		if strings.HasPrefix(args[i], "--tls-") {
			own = append(own, args[i], args[i+1])
		}
	}
	return startServer(t, command{first: []string{file, "--sentinel"}, args: own})
}

func awaitReplica(t testing.TB, replica *Server) {
	t.Helper()
	client := replica.Client(t)
	await(t, "a replica is in sync", startTimeout, func(ctx context.Context) bool {
		return client.InfoMap(ctx, "replication").Item("Replication", "master_link_status") == "up"
	})
}

func (s *Sentinel) awaitQuorum(t testing.TB, sentinel *Server) {
	t.Helper()
	client := s.client(t, sentinel)
	await(t, "the Sentinels know all", startTimeout, func(ctx context.Context) bool {
		state := client.Master(ctx, masterName).Val()
		return state["num-slaves"] == "2" && state["num-other-sentinels"] == "2" && state["flags"] == "master"
	})
}

func (s *Sentinel) client(t testing.TB, sentinel *Server) *redis.SentinelClient {
	t.Helper()
	client := redis.NewSentinelClient(sentinel.options(t))
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// URL is the Sentinels' address in the form that redis.ParseFailoverURL takes.
// The servers' password, if any, is in it.
func (s *Sentinel) URL() string {
	u := url.URL{Scheme: s.Servers[0].scheme(), Host: s.Sentinels[0].Addr}
	query := url.Values{"master_name": {masterName}}
	for _, sentinel := range s.Sentinels[1:] {
		query.Add("addr", sentinel.Addr)
	}
	if password := s.Servers[0].arg("--requirepass"); password != "" {
		query.Set("password", password)
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// AwaitReplicas waits until the other servers are in sync with the first, as
// after a restart, and the Sentinels know it.
func (s *Sentinel) AwaitReplicas(t testing.TB) {
	t.Helper()
	for _, replica := range s.Servers[1:] {
		awaitReplica(t, replica)
	}
	for _, sentinel := range s.Sentinels {
		client := s.client(t, sentinel)
		await(t, "the Sentinels see both replicas", failoverTimeout, func(ctx context.Context) bool {
			healthy := 0
			for _, replica := range client.Replicas(ctx, masterName).Val() {
				if replica["flags"] == "slave" && replica["master-link-status"] == "ok" {
					healthy++
				}
			}
			return healthy == 2
		})
	}
}

// Master returns the server that the Sentinels take for the master.
func (s *Sentinel) Master(t testing.TB) *Server {
	t.Helper()
	addr, err := s.client(t, s.Sentinels[0]).GetMasterAddrByName(t.Context(), masterName).Result()
	if err != nil {
		t.Fatalf("ask a Sentinel for the master: %v", err)
	}
	return byAddr(t, s.Servers, net.JoinHostPort(addr[0], addr[1]))
}

// Failover makes the Sentinels promote a replica of a healthy master, and
// returns the new master. The old one becomes its replica.
func (s *Sentinel) Failover(t testing.TB) *Server {
	t.Helper()
	old := s.Master(t)
	client := s.client(t, s.Sentinels[0])
	// It has no good replica to choose for a moment after another failover.
	await(t, "a Sentinel begins a failover", failoverTimeout, func(ctx context.Context) bool {
		return client.Failover(ctx, masterName).Err() == nil
	})
	master := s.AwaitFailover(t, old)
	// It goes on to take writes, which will be lost, until it has been told.
	AwaitRole(t, old, "slave")
	return master
}

// AwaitFailover waits until the Sentinels agree that another server than old is
// the master, and it takes writes.
func (s *Sentinel) AwaitFailover(t testing.TB, old *Server) *Server {
	t.Helper()
	var addr string
	for _, sentinel := range s.Sentinels {
		client := s.client(t, sentinel)
		await(t, "the Sentinels have a new master", failoverTimeout, func(ctx context.Context) bool {
			answer := client.GetMasterAddrByName(ctx, masterName).Val()
			if len(answer) == 2 {
				addr = net.JoinHostPort(answer[0], answer[1])
			}
			return addr != "" && addr != old.Addr
		})
	}
	master := byAddr(t, s.Servers, addr)
	AwaitRole(t, master, "master")
	return master
}

// AwaitRole waits until a server has the role "master" or "slave".
func AwaitRole(t testing.TB, server *Server, role string) {
	t.Helper()
	client := server.Client(t)
	await(t, server.Addr+" is a "+role, failoverTimeout, func(ctx context.Context) bool {
		return client.InfoMap(ctx, "replication").Item("Replication", "role") == role
	})
}

// await waits for a condition that processes bring about.
func await(t testing.TB, what string, timeout time.Duration, holds func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds(ctx) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited %v in vain until %s", timeout, what)
		}
	}
}

func byAddr(t testing.TB, servers []*Server, addr string) *Server {
	t.Helper()
	for _, server := range servers {
		if server.Addr == addr {
			return server
		}
	}
	t.Fatalf("no server listens on %s", addr)
	return nil
}
