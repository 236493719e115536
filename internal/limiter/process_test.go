package limiter

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// childJob is the environment variable that makes the test binary a door: a
// process that admits requests against the one count.
const childJob = "LIMITER_TEST_CHILD"

const (
	doors           = 4
	requestsPerDoor = 5
	chapterLimit    = 100
	chapterUsed     = 95
)

// chapterWindow is long, so that nothing comes back while the test runs.
const chapterWindow = 720 * time.Hour

// 95 of 100 are used and 20 requests come at once, through 4 processes: 5 pass.
func TestFourProcessesAdmitWhatIsLeft(t *testing.T) {
	server := testredis.Shared(t)
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			l := limitOf(a, chapterLimit, chapterWindow)
			key := keyOf(t, l)
			s := NewRedis(server.Client(t), RedisOptions{})
			take(t, s, Hit{Rule: rule(l), Key: key, Cost: chapterUsed})

			if n := openDoors(t, "take", server.Addr, key, a); n != chapterLimit-chapterUsed {
				t.Fatalf("%d were admitted, want %d", n, chapterLimit-chapterUsed)
			}
			if r := peek(t, s, Hit{Rule: rule(l), Key: key, Cost: 1})[0]; r.Allowed || r.Remaining != 0 {
				t.Fatalf("afterwards: %+v", r)
			}
		})
	}
}

// The same test tells a limiter that reads, decides and then writes: it lets all
// 20 through.
func TestFourProcessesOvershootWhenTheyReadAndThenWrite(t *testing.T) {
	server := testredis.Shared(t)
	key := testredis.Prefix(t)
	if err := server.Client(t).Set(t.Context(), key, chapterUsed, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	if n := openDoors(t, "read-then-write", server.Addr, key, "-"); n != doors*requestsPerDoor {
		t.Fatalf("%d were admitted, want all %d", n, doors*requestsPerDoor)
	}
}

// openDoors starts the processes, lets them go together, and sums up what they
// admitted.
func openDoors(t *testing.T, job, addr, key string, a policy.Algorithm) (admitted int) {
	t.Helper()
	starts := make([]io.WriteCloser, doors)
	outputs := make([]*bufio.Reader, doors)
	for i := range doors {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childJob+"="+strings.Join([]string{job, addr, key, string(a)}, " "))
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Wait() }()
		starts[i], outputs[i] = stdin, bufio.NewReader(stdout)
	}
	for _, out := range outputs {
		if line, err := out.ReadString('\n'); line != "ready\n" {
			t.Fatalf("a door says %q, %v", line, err)
		}
	}
	for _, start := range starts {
		_ = start.Close()
	}
	for _, out := range outputs {
		var n int
		if _, err := fmt.Fscan(out, &n); err != nil {
			t.Fatal(err)
		}
		admitted += n
	}
	return admitted
}

// runChild is the life of a door: it connects, waits until its standard input
// ends, sends its requests at once and prints how many were admitted.
func runChild(job string) int {
	var how, addr, key, algorithm string
	if _, err := fmt.Sscan(job, &how, &addr, &key, &algorithm); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	admit := func() (bool, error) { return readThenWrite(ctx, client, key) }
	if how == "take" {
		s := NewRedis(client, RedisOptions{})
		hit := Hit{Rule: rule(limitOf(policy.Algorithm(algorithm), chapterLimit, chapterWindow)), Key: key, Cost: 1}
		admit = func() (bool, error) {
			results, err := ask(ctx, s, Take, []Hit{hit})
			return err == nil && results[0].Allowed, err
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return sendAtOnce(admit)
}

func sendAtOnce(admit func() (bool, error)) (status int) {
	var admitted, failed atomic.Int64
	var wg sync.WaitGroup
	for range requestsPerDoor {
		wg.Go(func() {
			ok, err := admit()
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				failed.Add(1)
			}
			if ok {
				admitted.Add(1)
			}
		})
	}
	wg.Wait()
	if failed.Load() > 0 {
		return 1
	}
	fmt.Println(admitted.Load())
	return 0
}

// readThenWrite is the limiter that this package is not. Everybody has read
// before anybody writes, as it can happen at any time under load.
func readThenWrite(ctx context.Context, client *redis.Client, key string) (bool, error) {
	used, err := client.Get(ctx, key).Int()
	if err != nil {
		return false, err
	}
	const all = doors * requestsPerDoor
	arrived, err := client.Incr(ctx, key+":arrived").Result()
	if err != nil {
		return false, err
	}
	if arrived == all {
		if err := client.RPush(ctx, key+":gate", make([]any, all)...).Err(); err != nil {
			return false, err
		}
	}
	if err := client.BLPop(ctx, 30*time.Second, key+":gate").Err(); err != nil {
		return false, err
	}
	if used+1 > chapterLimit {
		return false, nil
	}
	return true, client.Incr(ctx, key).Err()
}
