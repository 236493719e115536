package limiter

import (
	"strings"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func TestKeyNamesWhatItCounts(t *testing.T) {
	l := Limit{Algorithm: policy.TokenBucket, Requests: 100, Window: time.Minute, Burst: 150}
	got := CounterKey(KeyBase("tallyman", "shop", "orders.v1", "per-client", rule(l)), "8:10.0.0.1")
	diff(t, "key", got, "tallyman:c:shop:orders.v1:per-client:t60000000:{8:10.0.0.1}")
}

func TestKeyChangesWithAlgorithmAndWindowOnly(t *testing.T) {
	base := func(l Limit) string { return KeyBase("tallyman", "shop", "orders", "all", rule(l)) }
	seen := map[string]bool{}
	for _, a := range algorithms {
		for _, window := range []time.Duration{time.Millisecond, time.Second, time.Minute} {
			key := base(limitOf(a, 10, window))
			if seen[key] {
				t.Errorf("%s of %v shares %s", a, window, key)
			}
			seen[key] = true
			diff(t, "with other numbers", base(limitOf(a, 20, window)), key)
		}
	}
}

// C17: counters of different policies, limits or values never join to the same
// key. Names are those of Kubernetes objects; tags are whatever a request has.
func FuzzKeysAreInjective(f *testing.F) {
	f.Add("a-b", "c", "l", "1:x", "a", "b-c", "l", "1:x")
	f.Add("n", "p", "l", "3:a:b", "n", "p", "l", "1:a1:b")
	for _, value := range []string{":", "{", "}", "{}", "|", "_", "%", "\x00", "ü", "1:}", "a}:{b"} {
		f.Add("n", "p", "l", "1:"+value, "n", "p", "l"+value, "1:")
		f.Add("n", "p", value, "1:x", "n", "p."+value, "l", "1:x")
	}
	f.Fuzz(func(t *testing.T, ns1, p1, l1, tag1, ns2, p2, l2, tag2 string) {
		names := []*string{&ns1, &p1, &l1, &ns2, &p2, &l2}
		for _, n := range names {
			*n = nameOf(*n)
		}
		limit := limitOf(policy.FixedWindow, 1, time.Second)
		key1 := CounterKey(KeyBase("tallyman", ns1, p1, l1, rule(limit)), "1:"+tag1)
		key2 := CounterKey(KeyBase("tallyman", ns2, p2, l2, rule(limit)), "1:"+tag2)
		same := ns1 == ns2 && p1 == p2 && l1 == l2 && tag1 == tag2
		if (key1 == key2) != same {
			t.Fatalf("%q and %q", key1, key2)
		}
		if (hashTag(key1) == hashTag(key2)) != (tag1 == tag2) {
			t.Fatalf("tags of %q and %q", key1, key2)
		}
	})
}

// nameOf makes a DNS subdomain's characters of any string.
func nameOf(s string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-.", r) {
			return r
		}
		return -1
	}, s)
}
