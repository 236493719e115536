package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// redisServer is the Redis of the demo.
type redisServer struct {
	address string
	client  *redis.Client
}

// url is what the manager and the sidecars are given.
func (r redisServer) url() string { return "redis://" + r.address }

// startRedis starts redis-server from PATH, or else one in this process.
func (d *demo) startRedis(ctx context.Context) error {
	address, err := d.startRedisProcess()
	if err != nil {
		return err
	}
	d.redis = redisServer{address: address, client: redis.NewClient(&redis.Options{Addr: address, Protocol: 2})}
	d.cleanup(d.redis.client.Close)
	return waitFor(ctx, "Redis to answer PING", 10*time.Second, func(ctx context.Context) bool {
		return d.redis.client.Ping(ctx).Err() == nil
	})
}

func (d *demo) startRedisProcess() (string, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		say("    There is no redis-server in PATH: taking one inside of this process (miniredis)")
		server, err := miniredis.Run()
		if err != nil {
			return "", fmt.Errorf("start miniredis: %w", err)
		}
		d.cleanup(func() error { server.Close(); return nil })
		return server.Addr(), nil
	}
	address, err := testredis.FreeAddress()
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	say("    %s on %s, without persistence", program, address)
	_, err = d.start("redis", program, "--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", d.dir)
	return address, err
}
