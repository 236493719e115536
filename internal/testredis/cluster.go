package testredis

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// Cluster is a Redis Cluster.
type Cluster struct {
	// Servers are the masters that the cluster was started with. Each can be
	// killed; what it held is then gone, and its slots are down until it is
	// restarted or, where it has a replica, that takes over.
	Servers []*Server
	// Replicas are those of the Servers, by place; none if it was started
	// without.
	Replicas []*Server
	// Addrs are the masters' addresses, in the order of their slots.
	Addrs []string
}

// StartCluster runs a cluster without replicas that ends with the test and
// returns when every node takes writes. It takes some two seconds: a new master
// waits so long before it believes that the cluster is whole. args are of all
// servers.
func StartCluster(t testing.TB, masters int, args ...string) *Cluster {
	t.Helper()
	c, buses := startMasters(t, masters, args)
	host, port := splitAddr(t, c.Addrs[0])
	for _, server := range c.Servers[1:] {
		do(t, server.Client(t), "CLUSTER", "MEET", host, port, buses[0])
	}
	for _, server := range c.Servers {
		awaitCluster(t, server.Client(t), masters)
	}
	return c
}

// StartReplicatedCluster is StartCluster with a replica of each master, which
// takes over some three seconds after the master is gone.
func StartReplicatedCluster(t testing.TB, masters int, args ...string) *Cluster {
	t.Helper()
	args = append(replicated(args), "--cluster-node-timeout", "1500", "--cluster-replica-validity-factor", "0")
	c := StartCluster(t, masters, args...)
	host, port := splitAddr(t, c.Addrs[0])
	bus := c.Servers[0].arg("--cluster-port")
	for range c.Servers {
		replica, _ := startNode(t, args)
		c.Replicas = append(c.Replicas, replica)
		do(t, replica.Client(t), "CLUSTER", "MEET", host, port, bus)
	}
	for i, replica := range c.Replicas {
		client := replica.Client(t)
		awaitCluster(t, client, masters)
		do(t, client, "CLUSTER", "REPLICATE", nodeID(t, c.Servers[i]))
	}
	for _, replica := range c.Replicas {
		awaitReplica(t, replica)
		c.awaitKnown(t, replica)
	}
	return c
}

func startMasters(t testing.TB, masters int, args []string) (c *Cluster, buses []string) {
	t.Helper()
	c = &Cluster{}
	for i := range masters {
		server, bus := startNode(t, args)
		c.Servers = append(c.Servers, server)
		c.Addrs = append(c.Addrs, server.Addr)
		buses = append(buses, bus)
		client := server.Client(t)
		from, to := slots*i/masters, slots*(i+1)/masters-1
		do(t, client, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		do(t, client, "CLUSTER", "ADDSLOTSRANGE", from, to)
	}
	return c, buses
}

func startNode(t testing.TB, args []string) (server *Server, bus string) {
	t.Helper()
	// Its own choice of a second port, 10000 above the first, may be taken.
	_, bus = splitAddr(t, FreeAddr(t))
	return Start(t, append([]string{
		"--cluster-enabled", "yes", "--cluster-port", bus,
		// One dead master must not take the others' slots with it.
		"--cluster-require-full-coverage", "no",
		"--cluster-node-timeout", "5000",
	}, args...)...), bus
}

func nodeID(t testing.TB, server *Server) string {
	t.Helper()
	id, err := server.Client(t).ClusterMyID(t.Context()).Result()
	if err != nil {
		t.Fatalf("ask a node for its ID: %v", err)
	}
	return id
}

// awaitKnown waits until every node tells clients of a replica of its master.
// That takes a first byte that was replicated, which nodes then gossip about.
func (c *Cluster) awaitKnown(t testing.TB, replica *Server) {
	t.Helper()
	for _, server := range c.nodes() {
		client := server.Client(t)
		await(t, "all nodes know the replicas", startTimeout, func(ctx context.Context) bool {
			for _, slots := range clusterView(ctx, client) {
				for _, node := range slots.Nodes[1:] {
					if node.Addr == replica.Addr {
						return true
					}
				}
			}
			return false
		})
	}
}

// clusterView is what a node tells clients, by the command that go-redis's own
// client of a cluster uses.
func clusterView(ctx context.Context, node *redis.Client) []redis.ClusterSlot {
	return node.ClusterSlots(ctx).Val() //nolint:staticcheck // deprecated, but what clients see
}

func (c *Cluster) nodes() []*Server { return slices.Concat(c.Servers, c.Replicas) }

// AwaitFailover waits until another node than a master that is gone takes its
// slots, in the view of all nodes that live, and returns it.
func (c *Cluster) AwaitFailover(t testing.TB, lost *Server) *Server {
	t.Helper()
	successor := c.Replicas[slices.Index(c.Servers, lost)]
	AwaitRole(t, successor, "master")
	for _, server := range c.nodes() {
		if server == lost {
			continue
		}
		client := server.Client(t)
		await(t, "all nodes know the new master", failoverTimeout, func(ctx context.Context) bool {
			for _, slots := range clusterView(ctx, client) {
				if slots.Nodes[0].Addr == lost.Addr {
					return false
				}
			}
			return strings.Contains(client.ClusterInfo(ctx).Val(), "cluster_state:ok\r\n")
		})
	}
	return successor
}

// Move moves the slot of a key, with all of its keys, to another master, the way
// redis-cli reshards: clients can go on.
func (c *Cluster) Move(t testing.TB, key string, to *Server) {
	t.Helper()
	from := c.Owner(t, key)
	source, target := from.Client(t), to.Client(t)
	slot := source.ClusterKeySlot(t.Context(), key).Val()
	fromID, toID := nodeID(t, from), nodeID(t, to)
	do(t, target, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	do(t, source, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	host, port := splitAddr(t, to.Addr)
	for {
		keys, err := source.ClusterGetKeysInSlot(t.Context(), int(slot), 100).Result()
		if err != nil {
			t.Fatalf("list the keys of slot %d: %v", slot, err)
		}
		if len(keys) == 0 {
			break
		}
		args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
		for _, key := range keys {
			args = append(args, key)
		}
		do(t, source, args...)
	}
	// The target first: while neither owns the slot, a client could be sent in circles.
	for _, node := range []*redis.Client{target, source} {
		do(t, node, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	}
}

func do(t testing.TB, client *redis.Client, args ...any) {
	t.Helper()
	if err := client.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

func awaitCluster(t testing.TB, client *redis.Client, masters int) {
	t.Helper()
	await(t, "the cluster is whole", startTimeout, func(ctx context.Context) bool {
		// With the slots of nodes that it has not met yet uncovered, a node can
		// call the cluster ok; so the number of masters with slots counts too.
		info := client.ClusterInfo(ctx).Val()
		return strings.Contains(info, "cluster_state:ok\r\n") &&
			strings.Contains(info, "cluster_size:"+strconv.Itoa(masters)+"\r\n") &&
			strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(slots)+"\r\n")
	})
}

// URL is the cluster's address in the form that redis.ParseClusterURL takes.
func (c *Cluster) URL() string {
	u := url.URL{Scheme: c.Servers[0].scheme(), Host: c.Addrs[0]}
	u.RawQuery = url.Values{"addr": c.Addrs[1:]}.Encode()
	return u.String()
}

// Client returns a client of the whole cluster that is closed with the test.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs, TLSConfig: c.Servers[0].options(t).TLSConfig})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Owner returns the server that holds a key's slot.
func (c *Cluster) Owner(t testing.TB, key string) *Server {
	t.Helper()
	node, err := c.Client(t).MasterForKey(t.Context(), key)
	if err != nil {
		t.Fatalf("find the master of %q: %v", key, err)
	}
	return byAddr(t, c.nodes(), node.Options().Addr)
}
