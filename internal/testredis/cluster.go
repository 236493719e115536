package testredis

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// Cluster is a Redis Cluster of masters without replicas.
type Cluster struct {
	// Servers are the masters. Each can be killed; what it held is then gone,
	// and its slots are down until it is restarted.
	Servers []*Server
	// Addrs are the masters' addresses, in the order of their slots.
	Addrs []string
}

// StartCluster runs a cluster that ends with the test and returns when every
// node takes writes. It takes some two seconds: a new master waits so long
// before it believes that the cluster is whole.
func StartCluster(t testing.TB, masters int) *Cluster {
	t.Helper()
	c := &Cluster{}
	var buses []string
	for range masters {
		// Its own choice of a second port, 10000 above the first, may be taken.
		_, bus := splitAddr(t, freeAddr(t))
		server := Start(t,
			"--cluster-enabled", "yes", "--cluster-port", bus,
			// One dead master must not take the others' slots with it.
			"--cluster-require-full-coverage", "no",
			"--cluster-node-timeout", "5000",
		)
		c.Servers = append(c.Servers, server)
		c.Addrs = append(c.Addrs, server.Addr)
		buses = append(buses, bus)
	}
	for i, server := range c.Servers {
		client := server.Client(t)
		from, to := slots*i/masters, slots*(i+1)/masters-1
		do(t, client, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		do(t, client, "CLUSTER", "ADDSLOTSRANGE", from, to)
		host, port := splitAddr(t, c.Addrs[0])
		if i > 0 {
			do(t, client, "CLUSTER", "MEET", host, port, buses[0])
		}
	}
	for _, server := range c.Servers {
		awaitCluster(t, server.Client(t), masters)
	}
	return c
}

func do(t testing.TB, client *redis.Client, args ...any) {
	t.Helper()
	if err := client.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

func awaitCluster(t testing.TB, client *redis.Client, masters int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := client.ClusterInfo(ctx).Result()
		// With the slots of nodes that it has not met yet uncovered, a node can
		// call the cluster ok; so the number of masters with slots counts too.
		if err == nil && strings.Contains(info, "cluster_state:ok\r\n") &&
			strings.Contains(info, "cluster_size:"+strconv.Itoa(masters)+"\r\n") &&
			strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(slots)+"\r\n") {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the cluster is not whole after %v: %v\n%s", startTimeout, err, info)
		}
	}
}

// URL is the cluster's address in the form that redis.ParseClusterURL takes.
func (c *Cluster) URL() string {
	u := url.URL{Scheme: "redis", Host: c.Addrs[0]}
	u.RawQuery = url.Values{"addr": c.Addrs[1:]}.Encode()
	return u.String()
}

// Client returns a client of the whole cluster that is closed with the test.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs})
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
	for _, server := range c.Servers {
		if server.Addr == node.Options().Addr {
			return server
		}
	}
	t.Fatalf("no server of the cluster listens on %s", node.Options().Addr)
	return nil
}
