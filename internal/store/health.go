package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// healthTimeout bounds how long a node is asked.
const healthTimeout = 2 * time.Second

// NodeHealth is how one node answers.
type NodeHealth struct {
	// Address of the node, or what it is, where only Sentinel knows the address.
	Address string
	// Err is why it did not answer. The rest is not known then.
	Err error
	// Latency is the time of a PING.
	Latency time.Duration
	// Missing are the names of the scripts that it does not know.
	Missing []string
}

// Health asks the server, or each master of a Redis Cluster, how it is, and which of
// the scripts, by name, it knows. The nodes are in the order of their addresses. It
// fails when they are not known, since none of a Cluster answers.
func (s *Store) Health(ctx context.Context, scripts map[string]*redis.Script) ([]NodeHealth, error) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	switch client := s.client.(type) {
	case *redis.Client:
		return []NodeHealth{healthOf(ctx, client, scripts)}, nil
	case *redis.ClusterClient:
		return healthOfMasters(ctx, client, scripts)
	default:
		return nil, fmt.Errorf("a client of type %T is not known", client)
	}
}

func healthOfMasters(ctx context.Context, client *redis.ClusterClient, scripts map[string]*redis.Script) ([]NodeHealth, error) {
	var mu sync.Mutex
	var nodes []NodeHealth
	err := client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		health := healthOf(ctx, node, scripts)
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, health)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the masters of the Redis Cluster: %w", err)
	}
	slices.SortFunc(nodes, func(a, b NodeHealth) int { return cmp.Compare(a.Address, b.Address) })
	return nodes, nil
}

// failoverAddr is what go-redis has for the address of a master by Sentinel.
const failoverAddr = "FailoverClient"

// healthOf measures a PING last, when there is a connection.
func healthOf(ctx context.Context, node *redis.Client, scripts map[string]*redis.Script) NodeHealth {
	h := NodeHealth{Address: node.Options().Addr}
	if h.Address == failoverAddr {
		h.Address = "the master by Sentinel"
	}
	if h.Missing, h.Err = missingScripts(ctx, node, scripts); h.Err != nil {
		return h
	}
	began := time.Now()
	h.Err = node.Ping(ctx).Err()
	h.Latency = time.Since(began)
	return h
}
