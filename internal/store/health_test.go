package store_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// health is of nodes that are known.
func health(t *testing.T, s *store.Store) []store.NodeHealth {
	t.Helper()
	nodes, err := s.Health(t.Context(), store.Scripts())
	if err != nil {
		t.Fatal(err)
	}
	return nodes
}

func TestAServerTellsHowItIsAndWhichScriptsItLacks(t *testing.T) {
	server := testredis.Start(t)
	s := open(t, store.ConnectOptions{URL: server.URL()})
	all := []string{"beat.lua", "enforcers.lua", "load.lua", "publish.lua"}
	for _, missing := range [][]string{all, nil} {
		nodes := health(t, s)
		if len(nodes) != 1 || nodes[0].Address != server.Addr || nodes[0].Err != nil || !slices.Equal(nodes[0].Missing, missing) {
			t.Errorf("got %+v, want %q to be missing", nodes, missing)
		}
		if nodes[0].Latency <= 0 || nodes[0].Latency > 2*time.Second {
			t.Errorf("a PING took %v", nodes[0].Latency)
		}
		if err := s.LoadScripts(t.Context(), store.Scripts()); err != nil {
			t.Fatal(err)
		}
	}
	server.Kill()
	if nodes := health(t, s); len(nodes) != 1 || nodes[0].Err == nil {
		t.Errorf("without a server: %+v", nodes)
	}
}

func TestEachMasterOfAClusterTellsHowItIs(t *testing.T) {
	cluster := testredis.StartCluster(t, 3)
	s := open(t, store.ConnectOptions{URL: strings.Replace(cluster.URL(), "redis:", "redis+cluster:", 1)})
	if err := s.LoadScripts(t.Context(), store.Scripts()); err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, node := range health(t, s) {
		if addresses = append(addresses, node.Address); node.Err != nil || node.Missing != nil {
			t.Errorf("got %+v", node)
		}
	}
	if want := slices.Sorted(slices.Values(cluster.Addrs)); !slices.Equal(addresses, want) {
		t.Errorf("the masters are %q, want %q", addresses, want)
	}
	cluster.Servers[1].Kill()
	for _, node := range health(t, s) {
		if dead := node.Address == cluster.Addrs[1]; dead != (node.Err != nil) {
			t.Errorf("with a dead master: %+v", node)
		}
	}
	for _, server := range cluster.Servers {
		server.Kill()
	}
	lost := open(t, store.ConnectOptions{URL: strings.Replace(cluster.URL(), "redis:", "redis+cluster:", 1)})
	if nodes, err := lost.Health(t.Context(), store.Scripts()); err == nil || !strings.Contains(err.Error(), "masters") {
		t.Errorf("without masters: %+v, %v", nodes, err)
	}
}

func TestHealthHoldsNoCredentials(t *testing.T) {
	server := testredis.Start(t, "--requirepass", "sesame")
	s := open(t, store.ConnectOptions{URL: server.URL(), Username: "default", Password: "hunter2"})
	nodes := health(t, s)
	if !redis.IsAuthError(nodes[0].Err) || strings.Contains(nodes[0].Err.Error(), "hunter2") {
		t.Errorf("got %+v", nodes)
	}
}
