package store_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/store"
)

func TestEnforcersAreThoseHeardOfLately(t *testing.T) {
	s, client, prefix := sharedStore(t)
	beat := store.Heartbeat{
		Pod: "a", Revision: store.Revision{Epoch: 5, Number: 2},
		Policies: map[string]int64{"orders": 7}, Rejected: map[string]string{"login": "cut off"}, Version: "v1",
	}
	for _, h := range []store.Heartbeat{beat, {Pod: "b"}, {Pod: "c"}} {
		if err := s.Beat(t.Context(), "shop", h); err != nil {
			t.Fatal(err)
		}
	}
	key := prefix + ":enforcers:{shop}"
	silent := client.Time(t.Context()).Val().Add(-store.EnforcerTimeout - time.Second).UnixMicro()
	client.HSet(t.Context(), key, "b", micros(silent)+` {"pod":"b"}`)
	client.HSet(t.Context(), key, "garbage", "\xff{}", "liar", micros(silent)+` {"pod":"a"}`)
	if err := s.Leave(t.Context(), "shop", "c"); err != nil {
		t.Fatal(err)
	}

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

func TestABeatForgetsWhoIsLongGone(t *testing.T) {
	s, client, prefix := sharedStore(t)
	key := prefix + ":enforcers:{shop}"
	gone := client.Time(t.Context()).Val().Add(-time.Hour).UnixMicro()
	client.HSet(t.Context(), key, "gone", micros(gone)+` {"pod":"gone"}`, "garbage", "x")
	if err := s.Beat(t.Context(), "shop", store.Heartbeat{Pod: "a"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a"}, client.HKeys(t.Context(), key).Val()); diff != "" {
		t.Error(diff)
	}
}

func TestAForeignKeyInPlaceOfTheReportsIsReplaced(t *testing.T) {
	s, client, prefix := sharedStore(t)
	client.Set(t.Context(), prefix+":enforcers:{shop}", "x", 0)
	if enforcers, err := s.Enforcers(t.Context(), "shop"); err != nil || len(enforcers) != 0 {
		t.Errorf("enforcers: %v, %v", enforcers, err)
	}
	if err := s.Beat(t.Context(), "shop", store.Heartbeat{Pod: "a"}); err != nil {
		t.Fatal(err)
	}
	if enforcers, err := s.Enforcers(t.Context(), "shop"); err != nil || len(enforcers) != 1 {
		t.Errorf("enforcers: %v, %v", enforcers, err)
	}
}

func micros(n int64) string { return strconv.FormatInt(n, 10) }
