package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// requestsOfACounter are the columns of the table of docs/redis.md.
var requestsOfACounter = []int{1, 10, 100, 1000}

// What docs/redis.md says of counters' memory is what a server says, within a quarter:
// versions of Redis differ.
func TestTheDocumentedMemoryIsWhatRedisUses(t *testing.T) {
	documented, client := memoryTable(t), testredis.Start(t).Client(t)
	for _, algorithm := range []policy.Algorithm{
		policy.FixedWindow, policy.SlidingWindow, policy.TokenBucket, policy.SlidingLog, policy.Concurrency,
	} {
		said, measured := documented[string(algorithm)], bytesOfACounter(t, client, algorithm)
		if !slices.EqualFunc(said, measured, about) {
			t.Errorf("docs/redis.md says %v for %s; it is %v", said, algorithm, measured)
		}
	}
}

// about says that a figure is within a quarter of what was measured.
func about(said, measured int64) bool { return measured*4 >= said*3 && measured*4 <= said*5 }

// memoryTable are the rows of the table, by algorithm.
func memoryTable(t *testing.T) map[string][]int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/redis.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## How much memory\n")
	rows := map[string][]int64{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` ((?:\\| [\\d,]+ )+)\\|$").FindAllStringSubmatch(section, -1) {
		for cell := range strings.SplitSeq(strings.Trim(row[2], "| "), "|") {
			n, err := strconv.ParseInt(strings.ReplaceAll(strings.TrimSpace(cell), ",", ""), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			rows[row[1]] = append(rows[row[1]], n)
		}
	}
	return rows
}

// bytesOfACounter is what a server says a counter takes, with its key, after each of
// requestsOfACounter. The key is one of a header's value.
func bytesOfACounter(t *testing.T, client *redis.Client, algorithm policy.Algorithm) (bytes []int64) {
	t.Helper()
	store := limiter.NewRedis(client, limiter.RedisOptions{})
	rule := ruleOf(t, algorithm)
	base := limiter.KeyBase("tallyman", "shop", "orders", "per-client", rule)
	key := limiter.CounterKey(base, "h"+strings.Repeat("0", 32))
	for i := range slices.Max(requestsOfACounter) {
		call := limiter.Call{
			Hits: []limiter.Hit{{Rule: rule, Key: key, Cost: 1}}, Token: fmt.Sprintf("ABCDEFGHIJKLM-%d", i),
			Timeout: time.Minute, // a machine may be busy
		}
		if err := store.Do(t.Context(), &call); err != nil || call.Granted != 1 {
			t.Fatalf("request %d: %d granted, %v", i, call.Granted, err)
		}
		if slices.Contains(requestsOfACounter, i+1) {
			n, err := client.MemoryUsage(t.Context(), key, 0).Result()
			if err != nil {
				t.Fatal(err)
			}
			bytes = append(bytes, n)
		}
	}
	return bytes
}

func ruleOf(t *testing.T, algorithm policy.Algorithm) *limiter.Rule {
	t.Helper()
	spec := policy.Spec{Limits: []policy.Limit{{
		Name: "per-client", Algorithm: algorithm, Requests: new(int64(1000)), Window: policy.Duration(time.Hour),
	}}}
	spec.Default()
	rule, err := limiter.PrepareLimit(&spec.Limits[0])
	if err != nil {
		t.Fatal(err)
	}
	return rule
}
