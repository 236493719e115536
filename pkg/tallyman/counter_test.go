package tallyman

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

func TestCountersThatCannotBeChangedAreRefusedWithTheRemedy(t *testing.T) {
	l := fromFile(t, doc("orders", explained)+doc("slots", `{selector: {}, limits: [{name: slots, requests: 1, window: 1m, algorithm: Concurrency}]}`), Options{})
	for name, c := range map[string]struct {
		counter Counter
		says    string
		reset   bool // is possible
	}{
		"unknown policy":  {Counter{"odrers", "per-client", []string{"a"}}, `"odrers" is not in force here; in force are: orders, slots`, false},
		"unknown limit":   {Counter{"orders", "reads", nil}, `no limit "reads"; it has: per-client, writes, address`, false},
		"too few values":  {Counter{"orders", "address", []string{"192.0.2.1"}}, `limit "address": the key has 2 values, and not 1: clientIP, path`, false},
		"too many values": {Counter{"orders", "writes", []string{"a"}}, "one counter for all", false},
		"no address":      {Counter{"orders", "address", []string{"example.com", "/"}}, "clientIP is an address", false},
		"missing value":   {Counter{"orders", "address", []string{"", "/"}}, "onMissingKey: Skip", false},
		"exempt key":      {Counter{"orders", "per-client", []string{"internal"}}, "overrides[1] of limit \"per-client\" exempts", false},
		"denied key":      {Counter{"orders", "per-client", []string{"banned"}}, "change the policy", false},
		"slots":           {Counter{"slots", "slots", nil}, "a reset frees all slots", true},
	} {
		_, refund := l.RefundUnits(t.Context(), c.counter, 1)
		if !errors.Is(refund, ErrNoCounter) || !strings.Contains(refund.Error(), c.says) {
			t.Errorf("%s: a refund fails with %v", name, refund)
		}
		if _, reset := l.Reset(t.Context(), c.counter); (reset == nil) != c.reset || !c.reset && reset.Error() != refund.Error() {
			t.Errorf("%s: a reset fails with %v", name, reset)
		}
	}
	unavailableStore, _ := scripted(t, doc("orders", explained), unavailable)
	if _, err := unavailableStore.Reset(t.Context(), Counter{"orders", "writes", nil}); err == nil || errors.Is(err, ErrNoCounter) {
		t.Errorf("without a store: %v", err)
	}
	none := fromFile(t, doc("orders", explained), Options{})
	none.current.Store(&snapshot{})
	if _, err := none.Reset(t.Context(), Counter{Policy: "a"}); !errors.Is(err, ErrNoCounter) || !strings.Contains(err.Error(), "in force are: none") {
		t.Errorf("without policies: %v", err)
	}
}

func TestUnitsAreRefundedAsFarAsTheyAreCounted(t *testing.T) {
	l := fromFile(t, doc("orders", explained), Options{})
	acme := Counter{"orders", "per-client", []string{"acme"}}
	for range 5 {
		l.Admit(t.Context(), keyed("acme"))
	}
	for _, c := range []struct{ units, back, remaining int64 }{{2, 2, 997}, {0, 1, 998}, {10, 2, 1000}, {1 << 60, 0, 1000}} {
		got, err := l.RefundUnits(t.Context(), acme, c.units)
		if err != nil || got.Units != c.back || got.Remaining != c.remaining {
			t.Errorf("of %d units: %+v, %v", c.units, got, err)
		}
	}
}

// keysOfAllKinds is a limit for each kind of key, and one for several at once. Each
// has one request.
func keysOfAllKinds() string {
	kinds := []string{
		"{clientIP: {}}", "{clientIP: {ipv4PrefixLength: 20, ipv6PrefixLength: 56}}", "{method: {}}", "{path: {}}", "{header: {name: Host}}",
		"{header: {name: X-Api-Key}}", "{cookie: {name: sid}}", "{queryParameter: {name: q}}", "{expression: request.host + request.path}",
	}
	all := "\n- {name: all, requests: 1, window: 1h, key: []}" +
		"\n- {name: several, requests: 1, window: 1h, key: [" + strings.Join(kinds[1:], ", ") + "]}"
	for i, kind := range kinds {
		all += "\n- {name: kind-" + string(rune('a'+i)) + ", requests: 1, window: 1h, key: [" + kind + "]}"
	}
	return doc("all", "\n  selector: {}\n  storeTimeout: 10s\n  limits:"+strings.ReplaceAll(all, "\n", "\n  "))
}

func drawRequest(t *rapid.T) Request {
	text := func(name string) string {
		return rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "*", "-", "#", "}", "{a}", ":", "1:a", "é", "%2F", "\xff"})).Draw(t, name)
	}
	address, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address"))
	if rapid.Bool().Draw(t, "IPv4") {
		address = netip.AddrFrom4([4]byte(address.AsSlice()))
	}
	return Request{
		Method: text("method"), Host: text("host"), Path: "/" + text("path"), RawQuery: "q=" + url.QueryEscape(text("query")),
		Header:   http.Header{"X-Api-Key": {text("header")}, "Cookie": {"sid=" + text("cookie")}},
		ClientIP: address,
	}
}

// What Explain shows as a limit's key names the counter that Admit charges, whatever
// the client sends.
func TestTheExplainedKeyIsThatOfTheCounterThatIsCharged(t *testing.T) {
	l := fromFile(t, keysOfAllKinds(), Options{})
	rapid.Check(t, func(t *rapid.T) {
		r := drawRequest(t)
		for _, limit := range l.Explain(t.Context(), r).Limits { // of the requests before
			if _, err := l.Reset(t.Context(), limit.Counter); err != nil {
				t.Fatal(err)
			}
		}
		if d := l.Admit(t.Context(), r); !d.Allowed {
			t.Fatalf("refused by %s", d.Limit)
		}
		for _, limit := range l.Explain(t.Context(), r).Limits {
			if limit.Decision.Remaining != 0 {
				t.Fatalf("%+v was not charged", limit)
			}
			state, err := l.Reset(t.Context(), limit.Counter)
			if err != nil || state.RedisKey != limit.RedisKey || state.Remaining != 1 {
				t.Fatalf("%+v was reset to %+v, %v", limit, state, err)
			}
		}
		if d := l.Admit(t.Context(), r); !d.Allowed {
			t.Fatalf("refused by %s after all was reset", d.Limit)
		}
	})
}

// A reset by one process is one for all, with no more rights than are documented.
func TestAResetIsForAllProcesses(t *testing.T) {
	server := startWithUsers(t)
	manager := store.New(server.as(t, "manager"), store.DefaultPrefix)
	const limits = `{"selector":{},"storeTimeout":"10s","limits":[
		{"name":"log","requests":3,"window":"1h","algorithm":"SlidingLog","key":[{"header":{"name":"X-Api-Key"}}]},
		{"name":"bucket","requests":3,"window":"1h","algorithm":"TokenBucket","key":[{"path":{}}]}]}`
	if _, err := manager.Publish(t.Context(), "shop", []policy.Definition{definition(t, "orders", 1, limits)}); err != nil {
		t.Fatal(err)
	}
	pods := make([]*Limiter, 2)
	for i := range pods {
		pods[i] = open(t, Options{Store: "redis://" + server.Addr, Username: "shop", Password: aclPassword, Namespace: "shop", Pod: "orders-" + string(rune('a'+i))})
		<-pods[i].Ready()
	}
	r := keyed("alice")
	for range 5 {
		pods[0].Admit(t.Context(), r)
	}
	e := pods[1].Explain(t.Context(), r)
	if e.Decision.Allowed || len(server.counters(t)) != 2 {
		t.Fatalf("got %+v and the counters %v", e, server.counters(t))
	}
	for _, limit := range e.Limits {
		if !slices.Contains(server.counters(t), limit.RedisKey) {
			t.Errorf("there is no %s", limit.RedisKey)
		}
		if state, err := pods[0].Reset(t.Context(), limit.Counter); err != nil || state.Remaining != 3 {
			t.Errorf("got %+v, %v", state, err)
		}
	}
	if left := server.counters(t); len(left) != 0 {
		t.Errorf("there are still %v", left)
	}
	for i, pod := range pods {
		if d := pod.Admit(t.Context(), r); !d.Allowed || d.Degraded {
			t.Errorf("pod %d: %+v", i, d)
		}
	}
	if denied := server.denied(t); len(denied) != 0 {
		t.Errorf("denied: %v", denied)
	}
}

func (s *aclServer) counters(t *testing.T) []string {
	t.Helper()
	keys, err := s.admin.Keys(t.Context(), "tallyman:c:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestAResetIsForAllProcessesOnACluster(t *testing.T) {
	cluster := testredis.StartCluster(t, 2)
	url := strings.Replace(cluster.URL(), "redis:", "redis+cluster:", 1)
	l := fromFile(t, keysOfAllKinds(), Options{Store: url})
	other := fromFile(t, keysOfAllKinds(), Options{Store: url})
	r := keyed("alice")
	if d := l.Admit(t.Context(), r); !d.Allowed || d.Degraded {
		t.Fatalf("got %+v", d)
	}
	for _, limit := range other.Explain(t.Context(), r).Limits {
		if state, err := other.Reset(t.Context(), limit.Counter); err != nil || limit.Decision.Remaining != 0 || state.Remaining != 1 {
			t.Errorf("%+v was reset to %+v, %v", limit, state, err)
		}
	}
	if d := l.Admit(t.Context(), r); !d.Allowed || d.Degraded {
		t.Errorf("got %+v", d)
	}
}
