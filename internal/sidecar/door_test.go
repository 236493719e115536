package sidecar

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// What is decided is counted by the way that it came in; what charges nobody is not.
func TestEachWayInCountsItsOwn(t *testing.T) {
	l, m := inMemory(t, roomy)
	d := newDoors(l, m, nil, silent)
	r := tallyman.Request{Method: "GET", Path: "/"}
	d.proxy.Admit(t.Context(), r)
	d.check.Reserve(t.Context(), r, "token", time.Minute)
	d.check.Peek(t.Context(), r)
	d.rateLimit.AdmitAll(t.Context(), []tallyman.Request{r, r})
	d.rateLimit.PeekAll(t.Context(), []tallyman.Request{r, r})
	d.forwardAuth.Admit(t.Context(), r)
	d.extAuthz.Admit(t.Context(), r)
	got := view(newAdmin(t.Context(), l, m.registry), "/metrics").Body.String()
	for _, way := range []string{"proxy", "check", "rls", "forward-auth", "ext_authz"} {
		for _, want := range []string{
			`tallyman_requests_total{outcome="admitted",reason="",way="` + way + `"} 1`,
			`tallyman_decision_duration_seconds_count{way="` + way + `"} 1`,
		} {
			if !strings.Contains(got, want+"\n") {
				t.Errorf("there is no %s", want)
			}
		}
	}
}

func TestUnitsThatLieIdleAreSeen(t *testing.T) {
	l, m := inMemory(t, `limits: [{name: x, requests: 1000, window: 1h, distribution: {mode: Leased}, key: [{header: {name: X-Api-Key}}]}]`)
	d := newDoors(l, m, nil, silent)
	for _, key := range []string{"a", "b"} {
		for range 20 { // from the second on, units are taken ahead of need
			d.proxy.Admit(t.Context(), tallyman.Request{Method: "GET", Path: "/", Header: map[string][]string{"X-Api-Key": {key}}})
		}
	}
	eventually(t, "two leases with units at hand", func() bool {
		return value(t, m, "tallyman_leases") == 2 && value(t, m, "tallyman_lease_idle_units") > 0
	})
}

// A limit's refusals are told of at once, and then now and then, with their number.
func TestRefusalsAreLoggedNowAndThen(t *testing.T) {
	var out bytes.Buffer
	r := &refusalLog{
		log: slog.New(slog.NewJSONHandler(&out, nil)), revision: func() string { return "1-2" }, limits: map[limitName]*refusalsOf{},
	}
	began := time.Now()
	refuse := func(limit string, after time.Duration) {
		r.note("proxy", tallyman.Decision{Reason: tallyman.LimitExceeded, Policy: "orders", Limit: limit}, began.Add(after))
	}
	refuse("x", 0)
	refuse("x", time.Second)
	refuse("y", time.Second)
	refuse("x", refusalEvery-1)
	refuse("x", refusalEvery)
	refuse("x", refusalEvery+1)
	refuse("x", 3*refusalEvery)

	type line struct {
		Msg, Level, Policy, Limit, Reason, Way, Revision string
		NotLogged                                        int64
	}
	var got []line
	for decoder := json.NewDecoder(&out); decoder.More(); {
		var l line
		if err := decoder.Decode(&l); err != nil {
			t.Fatal(err)
		}
		got = append(got, l)
	}
	want := []struct {
		limit  string
		untold int64
	}{{"x", 0}, {"y", 0}, {"x", 2}, {"x", 1}}
	if len(got) != len(want) {
		t.Fatalf("the log has %v", got)
	}
	for i, w := range want {
		if got[i] != (line{"Refused a request", "INFO", "orders", w.limit, "LimitExceeded", "proxy", "1-2", w.untold}) {
			t.Errorf("line %d is %+v", i, got[i])
		}
	}
}

// However many limits refuse, few are remembered.
func TestTheLogOfRefusalsIsBounded(t *testing.T) {
	r := &refusalLog{limits: map[limitName]*refusalsOf{}}
	for i := range maxRefusers + 1 {
		if _, due := r.due(limitName{"p", string(rune(i))}, time.Now()); !due {
			t.Fatal("a limit's first refusal is not told of")
		}
	}
	if len(r.limits) > maxRefusers {
		t.Errorf("%d limits are remembered", len(r.limits))
	}
}

// What a sidecar adds to a decision in memory: counting, timing and, off here, tracing.
func BenchmarkDoor(b *testing.B) {
	l, m := inMemory(b, `limits: [{name: x, requests: 1000000000, window: 1h, algorithm: TokenBucket, burst: 1000000000, distribution: {mode: Leased}}]`)
	r := tallyman.Request{Method: "GET", Path: "/"}
	b.Run("limiter", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l.Admit(b.Context(), r)
		}
	})
	b.Run("door", func(b *testing.B) {
		d := newDoors(l, m, nil, silent).proxy
		b.ReportAllocs()
		for b.Loop() {
			d.Admit(b.Context(), r)
		}
	})
}
