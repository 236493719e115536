package tallyman

import (
	"context"
	"math"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

const twoLimits = `{selector: {}, limits: [
	{name: path, requests: 3, window: 1h, algorithm: SlidingLog, match: [{headers: [{name: Kind, value: path}]}], key: [{path: {}}]},
	{name: all, requests: 5, window: 1h, algorithm: SlidingLog, match: [{headers: [{name: Kind, value: all}]}]}]}`

// of is a request of a kind, which stands for so many.
func of(kind string, hits int64) Request {
	return Request{Path: "/", Header: http.Header{"Kind": {kind}}, Hits: hits}
}

// remainders are the units that remain of the first limit of each decision.
func remainders(ds []Decision) (remaining []int64) {
	for _, d := range ds {
		remaining = append(remaining, d.Limits[0].Remaining)
	}
	return remaining
}

func TestAdmitAllChargesAllOrNone(t *testing.T) {
	l := fromFile(t, doc("a", twoLimits), Options{})
	all, each := l.AdmitAll(t.Context(), []Request{of("path", 1), of("all", 2)})
	if diff := cmp.Diff([]int64{2, 3}, remainders(each)); diff != "" || !all.Allowed || len(all.Limits) != 2 {
		t.Fatalf("got %+v, remaining (-want +got):\n%s", all, diff)
	}
	all, each = l.AdmitAll(t.Context(), []Request{of("path", 3), of("all", 1)})
	if all.Allowed || all.Limit != "path" || all.RetryAfter == 0 || each[0].Allowed || !each[1].Allowed {
		t.Errorf("got %+v, %+v, want a refusal by the limit that has no room", all, each)
	}
	if diff := cmp.Diff([]int64{2, 3}, remainders(each)); diff != "" {
		t.Errorf("the refusal took something (-want +got):\n%s", diff)
	}
}

func TestAdmitAllAsksACounterForTheSum(t *testing.T) {
	l := fromFile(t, doc("a", twoLimits), Options{})
	if all, each := l.AdmitAll(t.Context(), []Request{of("all", 3), of("all", 3)}); all.Allowed || each[0].Allowed || each[1].Allowed {
		t.Errorf("6 of 5 are admitted: %+v", all)
	}
	all, each := l.AdmitAll(t.Context(), []Request{of("all", 3), of("none", 9), of("all", 2)})
	if !all.Allowed || len(all.Limits) != 1 || all.Limits[0].Remaining != 0 || len(each[1].Limits) != 0 || !each[1].Allowed {
		t.Errorf("got %+v, %+v", all, each)
	}
}

func TestAdmitAllIsToldToTheObserverOnce(t *testing.T) {
	var told []Decision
	l := fromFile(t, doc("a", twoLimits), Options{Observer: Observer{Decided: func(_ context.Context, d Decision) { told = append(told, d) }}})
	l.AdmitAll(t.Context(), []Request{of("path", 1), of("all", 1)})
	l.PeekAll(t.Context(), []Request{of("path", 1), of("all", 1)})
	if len(told) != 1 || len(told[0].Limits) != 2 {
		t.Errorf("the observer was told %+v", told)
	}
}

func TestPeekAllTakesNothing(t *testing.T) {
	l := fromFile(t, doc("a", twoLimits), Options{})
	for range 9 {
		if all, each := l.PeekAll(t.Context(), []Request{of("path", 3), of("all", 5)}); !all.Allowed || each[0].Limits[0].Remaining != 3 {
			t.Fatalf("got %+v", all)
		}
	}
}

func TestAdmitAllWithoutTheStoreIsDegraded(t *testing.T) {
	l, _ := scripted(t, doc("a", `{selector: {}, limits: [
		{name: x, requests: 1, window: 1h, failurePolicy: Deny, match: [{headers: [{name: Kind, value: path}]}]}]}`), unavailable)
	all, each := l.AdmitAll(t.Context(), []Request{of("path", 1), of("none", 1)})
	if all.Allowed || !all.Degraded || all.Reason != StoreUnavailable || !each[0].Degraded || each[1].Degraded || !each[1].Allowed {
		t.Errorf("got %+v, %+v", all, each)
	}
}

func TestAdmitAllRefusesForAMissingKeyWithoutAsking(t *testing.T) {
	l, s := scripted(t, doc("a", `{selector: {}, limits: [
		{name: x, requests: 9, window: 1h},
		{name: keyed, requests: 9, window: 1h, key: [{header: {name: Key}}], onMissingKey: Deny, match: [{headers: [{name: Kind, value: path}]}]}]}`), admitAll)
	all, each := l.AdmitAll(t.Context(), []Request{of("path", 1), of("none", 1)})
	if all.Allowed || all.Reason != KeyMissing || each[0].Allowed || !each[1].Allowed || len(s.calls) != 0 {
		t.Errorf("got %+v, %+v after %d calls", all, each, len(s.calls))
	}
}

func TestSlotsOfAdmitAllAreReleasedTogether(t *testing.T) {
	l := fromFile(t, doc("a", `{selector: {}, limits: [{name: x, requests: 2, window: 1h, algorithm: Concurrency, key: [{header: {name: Kind}}]}]}`), Options{})
	rs := []Request{of("path", 2), of("all", 2)}
	first, _ := l.AdmitAll(t.Context(), rs)
	if second, _ := l.AdmitAll(t.Context(), rs); !first.Allowed || second.Allowed {
		t.Fatalf("got %+v and then %+v", first, second)
	}
	first.Release()
	if third, _ := l.AdmitAll(t.Context(), rs); !third.Allowed {
		t.Errorf("got %+v after the release", third)
	}
}

func TestHitsMultiplyTheCost(t *testing.T) {
	l, s := scripted(t, doc("a", `{selector: {}, limits: [{name: x, requests: 100, window: 1h, cost: {requests: 3}}]}`), admitAll)
	for hits, want := range map[int64]int64{0: 3, -1: 3, 1: 3, 7: 21, math.MaxInt64: policy.MaxInteger} {
		s.calls = nil
		l.Admit(t.Context(), of("any", hits))
		if got := s.calls[0][0].Cost; got != want {
			t.Errorf("%d hits cost %d, want %d", hits, got, want)
		}
	}
}
