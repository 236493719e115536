package limiter

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// Whatever somebody wrote into a counter's key: no call fails, no counter stays
// for ever, and nobody is refused for longer than the limit's window.
func FuzzGarbageInACounter(f *testing.F) {
	packed := func(numbers ...int64) string {
		var b []byte
		for _, n := range numbers {
			b = appendInteger(b, n)
		}
		return string(b)
	}
	const most, beyond = policy.MaxInteger, policy.MaxInteger + 1
	for _, text := range []string{
		"", "999", "-1", "1.5", "1e3", "nan", "inf", "0x10", "garbage", "\x00\xff", "12345678901234", "9007199254740992",
		strings.Repeat("\xff", 14), strings.Repeat("\xff", 21), strings.Repeat("\xff", 28), strings.Repeat("\x00", 28),
		packed(epoch, 5), packed(epoch+1, 5), packed(epoch, most), packed(0, beyond), packed(most, 5),
		packed(epoch, 5, 5), packed(epoch, most, most), packed(epoch-1_000_000, 9, 0),
		packed(1_000_000, 0, epoch, 5), packed(most, 0, epoch, most), packed(1, most, epoch, 5),
		packed(1, 0, most, 5), packed(1, 0, epoch, 0), packed(beyond, beyond, beyond, beyond),
	} {
		f.Add(text, float64(epoch), 3)
		f.Add(text, math.Inf(1), 1)
	}
	for _, score := range []float64{0, -1, 0.5, 1e300, math.Inf(-1), float64(epoch) - 1, float64(epoch) + 1, 1 << 53} {
		f.Add("0000000000000005:5", score, 2)
	}
	c := &clock{epoch}
	corrupt := ""
	s := simulatedRedis(f, c, Hooks{Corrupt: func(key string) { corrupt = key }})
	f.Fuzz(func(t *testing.T, text string, score float64, entries int) {
		if math.IsNaN(score) {
			return // Redis does not store it
		}
		for _, a := range algorithms {
			l := limitOf(a, 5, time.Second)
			hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 5}
			for _, spoil := range []func(){
				func() { command(t, s.client, "SET", hit.Key, text) },
				func() { command(t, s.client, "HSET", hit.Key, text, text) },
				func() {
					for i := range min(max(entries, 1), 9) {
						command(t, s.client, "ZADD", hit.Key, score, text+string(rune('0'+i)))
					}
				},
			} {
				c.micros = epoch
				command(t, s.client, "DEL", hit.Key)
				spoil()
				corrupt = ""
				requireHealing(t, s, c, hit, &corrupt)
			}
		}
	})
}

// requireHealing looks at a spoilt counter until it is well.
func requireHealing(t *testing.T, s *Redis, c *clock, hit Hit, corrupt *string) {
	t.Helper()
	r := peek(t, s, hit)[0]
	if r.RetryAfter > 2*time.Minute || r.ResetAfter > 2*time.Minute || r.Remaining < 0 || r.Remaining > 5 {
		t.Fatalf("%+v gives %+v", hit, r)
	}
	if *corrupt == hit.Key {
		requireNoCounter(t, s, hit.Key)
		diff(t, "a counter that starts anew", r, Result{Allowed: true, Remaining: 5})
	}
	if ttl := command(t, s.client, "PTTL", hit.Key).(int64); ttl == -1 {
		t.Fatalf("%+v has no TTL", hit)
	}
	c.micros += r.RetryAfter.Microseconds()
	if r := take(t, s, hit)[0]; !r.Allowed {
		t.Fatalf("%+v is still refused: %+v", hit, r)
	}
}

// Garbage is told of, whether the request is admitted or not, and is not
// mistaken for a counter that is just empty.
func TestGarbageIsTold(t *testing.T) {
	var told []string
	client := testredis.Shared(t).Client(t)
	s := NewRedis(client, RedisOptions{Hooks: Hooks{Corrupt: func(key string) { told = append(told, key) }}})
	for _, a := range algorithms {
		l := limitOf(a, 5, time.Hour)
		bad := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		full := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 5}
		take(t, s, full)
		told = nil
		for _, hits := range [][]Hit{{bad}, {bad, full}} {
			command(t, client, "DEL", bad.Key)
			command(t, client, "LPUSH", bad.Key, "garbage")
			if r := take(t, s, hits...)[0]; !r.Allowed {
				t.Fatalf("%s: %+v", a, r)
			}
		}
		diff(t, "told", told, []string{bad.Key, bad.Key})
		requireNoCounter(t, s, bad.Key) // the refused call left nothing
		take(t, s, bad)
		diff(t, "told of a good one", len(told), 2)
	}
}

// By Redis's own clock too: garbage that is written over has a TTL.
func TestGarbageIsReplacedByACounter(t *testing.T) {
	s, client := live(t, testredis.Shared(t))
	for _, a := range algorithms {
		l := limitOf(a, 5, time.Hour)
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 2}
		command(t, client, "HSET", hit.Key, "a", "b")
		if r := take(t, s, hit)[0]; !r.Allowed || r.Remaining != 3 {
			t.Fatalf("%s: %+v", a, r)
		}
		diff(t, "later", peek(t, s, hit)[0].Remaining, 3)
		if ttl := command(t, client, "PTTL", hit.Key).(int64); ttl <= 0 {
			t.Fatalf("%s: TTL %d", a, ttl)
		}
	}
}

// A plain number, as an INCR by hand leaves it, counts in the present window.
func TestPlainNumberCountsInThePresentWindow(t *testing.T) {
	client := testredis.Shared(t).Client(t)
	for _, a := range []policy.Algorithm{policy.FixedWindow, policy.SlidingWindow} {
		s := NewRedis(client, RedisOptions{Hooks: Hooks{Corrupt: func(key string) { t.Errorf("%s is called corrupt", key) }}})
		l := limitOf(a, 10, 720*time.Hour)
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		if err := client.Set(t.Context(), hit.Key, 7, redis.KeepTTL).Err(); err != nil {
			t.Fatal(err)
		}
		diff(t, string(a), take(t, s, hit)[0].Remaining, 2)
		command(t, client, "SET", hit.Key, "999")
		if r := take(t, s, hit)[0]; r.Allowed {
			t.Errorf("%s: a counter at 999 gives %+v", a, r)
		}
		if ttl := command(t, client, "PTTL", hit.Key).(int64); ttl <= 0 {
			t.Errorf("%s: a refusal leaves a TTL of %d", a, ttl)
		}
	}
}
