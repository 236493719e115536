package store_test

import (
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/store"
)

func TestEnforcersAreThoseHeardOfLately(t *testing.T) {
	s, client, prefix := sharedStore(t)
	beat := store.Heartbeat{
		Pod: "a", Revision: store.Revision{Epoch: 5, Number: 2},
		Policies: map[string]int64{"orders": 7}, UIDs: map[string]string{"orders": "11-22"}, Rejected: map[string]string{"login": "cut off"}, Version: "v1",
	}
	for _, h := range []store.Heartbeat{beat, {Pod: "b"}, {Pod: "c"}} {
		if _, err := s.Pulse("shop").Beat(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Leave(t.Context(), "shop", "c"); err != nil {
		t.Fatal(err)
	}
	key := prefix + ":enforcers:{shop}"
	silent := client.Time(t.Context()).Val().Add(-store.EnforcerTimeout - time.Second).UnixMicro()
	client.HSet(t.Context(), key, "b", micros(silent)+` ab {"pod":"b"}`)
	client.HSet(t.Context(), key, "garbage", "\xff{}", "liar", micros(silent)+` ab {"pod":"a"}`)

	enforcers, err := s.Enforcers(t.Context(), "shop")
	if err != nil || len(enforcers) != 1 {
		t.Fatalf("enforcers: %+v, %v", enforcers, err)
	}
	if diff := cmp.Diff(beat, enforcers[0].Heartbeat); diff != "" {
		t.Error(diff)
	}
	if client.PTTL(t.Context(), key).Val() <= 0 {
		t.Error("reports stay for ever when nobody reports any more")
	}
}

// Sidecars stay as they are when the manager is upgraded.
func TestEnforcersOfAVersionWithoutDigestsAreSeen(t *testing.T) {
	s, client, prefix := sharedStore(t)
	now := client.Time(t.Context()).Val().UnixMicro()
	client.HSet(t.Context(), prefix+":enforcers:{shop}", "a", micros(now)+` {"pod":"a","policies":{"orders":7}}`)
	enforcers, err := s.Enforcers(t.Context(), "shop")
	if err != nil || len(enforcers) != 1 || enforcers[0].Policies["orders"] != 7 {
		t.Fatalf("enforcers: %+v, %v", enforcers, err)
	}
}

func TestABeatForgetsWhoIsSilent(t *testing.T) {
	f := newFleet(t)
	f.beat("gone", "orders")
	f.beat("here", "orders")
	f.age("gone", store.EnforcerTimeout)
	f.beat("here", "orders")
	key := func(name string) string { return f.prefix + ":" + name + ":{shop}" }
	if diff := cmp.Diff([]string{"here"}, f.client.HKeys(t.Context(), key("enforcers")).Val()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"orders/here"}, f.client.ZRange(t.Context(), key("places"), 0, -1).Val()); diff != "" {
		t.Error(diff)
	}
}

func TestAReportIsBounded(t *testing.T) {
	s, _, _ := sharedStore(t)
	long := strings.Repeat("é", 1<<19)
	if _, err := s.Pulse("shop").Beat(t.Context(), store.Heartbeat{Pod: "a", Rejected: map[string]string{"orders": "x" + long}}); err != nil {
		t.Fatal(err)
	}
	enforcers, err := s.Enforcers(t.Context(), "shop")
	if err != nil || len(enforcers) != 1 {
		t.Fatalf("enforcers: %v, %v", enforcers, err)
	}
	if reason := enforcers[0].Rejected["orders"]; len(reason) != 255 || !utf8.ValidString(reason) {
		t.Errorf("the reason has %d bytes: %.20q…", len(reason), reason)
	}
	for _, h := range []store.Heartbeat{{}, {Pod: long[:254]}, {Pod: "a", Version: long}} {
		if _, err := s.Pulse("shop").Beat(t.Context(), h); err == nil || len(err.Error()) > 1000 {
			t.Errorf("reported %.20q: %.200v", h.Pod, err)
		}
	}
}

// A pod may write into its namespace's reports, and the manager reads them.
func TestHugeReportsDoNotBurdenTheReader(t *testing.T) {
	s, client, prefix := sharedStore(t)
	key := prefix + ":enforcers:{shop}"
	now := micros(client.Time(t.Context()).Val().UnixMicro())
	report := func(pod string, size int) string {
		return now + ` ab {"pod":"` + pod + `","version":"` + strings.Repeat("x", size) + `"}`
	}
	if _, err := s.Pulse("shop").Beat(t.Context(), store.Heartbeat{Pod: "a"}); err != nil {
		t.Fatal(err)
	}
	reports := map[string]string{"huge": report("huge", 1<<20)}
	for i := range 10 {
		pod := "large-" + strconv.Itoa(i)
		reports[pod] = report(pod, 1_000_000)
	}
	for pod, report := range reports {
		if err := client.HSet(t.Context(), key, pod, report).Err(); err != nil {
			t.Fatal(err)
		}
	}
	enforcers, err := s.Enforcers(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	var read int
	for _, e := range enforcers {
		read += len(e.Version)
	}
	if len(enforcers) != 9 || enforcers[0].Pod != "a" || read != 8_000_000 {
		t.Errorf("read %d bytes of %d enforcers", read, len(enforcers))
	}
}

func TestAForeignKeyInPlaceOfTheReportsIsReplaced(t *testing.T) {
	s, client, prefix := sharedStore(t)
	client.Set(t.Context(), prefix+":enforcers:{shop}", "x", 0)
	if enforcers, err := s.Enforcers(t.Context(), "shop"); err != nil || len(enforcers) != 0 {
		t.Errorf("enforcers: %v, %v", enforcers, err)
	}
	if _, err := s.Pulse("shop").Beat(t.Context(), store.Heartbeat{Pod: "a"}); err != nil {
		t.Fatal(err)
	}
	if enforcers, err := s.Enforcers(t.Context(), "shop"); err != nil || len(enforcers) != 1 {
		t.Errorf("enforcers: %v, %v", enforcers, err)
	}
}

func micros(n int64) string { return strconv.FormatInt(n, 10) }
