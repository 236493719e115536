package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/test/proc"
)

// redisServer is the store of all.
type redisServer struct {
	*process
	address string
	client  *redis.Client
}

// url is what the manager and the watchers are given.
func (r *redisServer) url() string { return "redis://" + r.address }

// startRedis runs the redis-server in PATH, or the one that the environment
// variable REDIS_SERVER names, without persistence.
func startRedis(ctx context.Context, dir string) (*redisServer, error) {
	program, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"))
	if err != nil {
		return nil, fmt.Errorf("find redis-server (install it, or set REDIS_SERVER to the path of one): %w", err)
	}
	address, err := proc.FreeAddress()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	p, err := start(filepath.Join(dir, "redis.log"), program,
		"--bind", host, "--port", port, "--dir", dir, "--save", "", "--appendonly", "no")
	if err != nil {
		return nil, err
	}
	r := &redisServer{p, address, redis.NewClient(&redis.Options{Addr: address})}
	if err := p.await(ctx, func(ctx context.Context) bool { return r.client.Ping(ctx).Err() == nil }); err != nil {
		r.stop()
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return r, nil
}

func (r *redisServer) stop() {
	_ = r.client.Close()
	r.process.stop()
}

// redisReading is what Redis has done up to a moment.
type redisReading struct {
	at       time.Time
	cpu      time.Duration
	commands map[string]int64 // calls, those from inside scripts too
	memory   float64          // MiB in use
	buffers  float64          // MiB of that for connections
	clients  float64
}

func (r *redisServer) read(ctx context.Context) (redisReading, error) {
	info, err := r.client.InfoMap(ctx, "commandstats", "memory", "clients").Result()
	if err != nil {
		return redisReading{}, fmt.Errorf("ask Redis what it has done: %w", err)
	}
	number := func(section, name string) float64 {
		v, _ := strconv.ParseFloat(info[section][name], 64)
		return v
	}
	reading := redisReading{
		at: time.Now(), commands: map[string]int64{},
		memory:  number("Memory", "used_memory") / mebi,
		buffers: (number("Memory", "mem_clients_normal") + number("Memory", "mem_clients_slaves")) / mebi,
		clients: number("Clients", "connected_clients"),
	}
	for name, stat := range info["Commandstats"] {
		reading.commands[strings.TrimPrefix(name, "cmdstat_")] = callsIn(stat)
	}
	reading.cpu, err = r.cpu()
	return reading, err
}

const mebi = 1 << 20

// callsIn reads the calls of a line of INFO commandstats: "calls=7,usec=12,…".
func callsIn(stat string) int64 {
	first, _, _ := strings.Cut(stat, ",")
	n, _ := strconv.ParseInt(strings.TrimPrefix(first, "calls="), 10, 64)
	return n
}

// managersWrites are commands that write, and that the manager calls whenever it
// writes anything. No heartbeat calls them, and there are no requests to be counted.
var managersWrites = []string{"set", "del", "sadd", "srem", "publish"}

// writesBesideHeartbeats is what was written between two readings and is not an
// enforcer's report, in calls.
func writesBesideHeartbeats(from, to redisReading) (n int64) {
	for _, command := range managersWrites {
		n += to.commands[command] - from.commands[command]
	}
	return n
}

// calls of a command between two readings.
func calls(from, to redisReading, command string) float64 {
	return float64(to.commands[command] - from.commands[command])
}
