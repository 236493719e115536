package tallyman

import (
	"errors"
	"net/http"
	"testing"
	"time"
)

const tokensPerDay = `{selector: {}, limits: [{name: x, requests: 100, window: 24h, cost: {requests: 40}}]}`

func left(t *testing.T, l *Limiter) int64 {
	t.Helper()
	return l.Peek(t.Context(), get("/")).Limits[0].Remaining
}

func TestSettleMakesAnEstimateWhatItWas(t *testing.T) {
	for name, step := range map[string]struct{ cost, remaining int64 }{
		"less": {10, 90}, "as estimated": {40, 60}, "more": {70, 30}, "more than there is": {1000, 0}, "nothing": {0, 100},
	} {
		t.Run(name, func(t *testing.T) {
			l := fromFile(t, doc("a", tokensPerDay), Options{})
			if d := l.Reserve(t.Context(), get("/"), "one", time.Minute); !d.Allowed || left(t, l) != 60 {
				t.Fatalf("%+v", d)
			}
			if err := l.Settle(t.Context(), get("/"), "one", step.cost); err != nil || left(t, l) != step.remaining {
				t.Fatalf("%v, and %d are left", err, left(t, l))
			}
			if err := l.Settle(t.Context(), get("/"), "one", 1); !errors.Is(err, ErrNotReserved) {
				t.Fatalf("settled twice: %v", err)
			}
		})
	}
}

func TestReserveRefusesWhatDoesNotFit(t *testing.T) {
	l := fromFile(t, doc("a", tokensPerDay), Options{})
	for i, allowed := range []bool{true, true, false} {
		d := l.Reserve(t.Context(), get("/"), string(rune('a'+i)), time.Minute)
		if d.Allowed != allowed {
			t.Fatalf("reservation %d: %+v", i, d)
		}
	}
	if err := l.Settle(t.Context(), get("/"), "c", 1); !errors.Is(err, ErrNotReserved) {
		t.Fatalf("settled what was refused: %v", err)
	}
}

// C33: a refund happens once, and lifts nothing above the limit.
func TestRefundHappensOnce(t *testing.T) {
	l := fromFile(t, doc("a", tokensPerDay), Options{})
	l.Admit(t.Context(), get("/"))
	l.Admit(t.Context(), get("/"))
	for i, remaining := range []int64{60, 60, 100, 100} {
		token := []string{"one", "one", "two", "three"}[i]
		if err := l.Refund(t.Context(), get("/"), token); err != nil || left(t, l) != remaining {
			t.Fatalf("refund %d: %v, and %d are left, want %d", i, err, left(t, l), remaining)
		}
	}
}

func TestReserveIsDegradedWithoutAStore(t *testing.T) {
	l, _ := scripted(t, doc("a", tokensPerDay), unavailable)
	if d := l.Reserve(t.Context(), get("/"), "one", time.Minute); !d.Allowed || !d.Degraded {
		t.Fatalf("%+v", d)
	}
	if err := l.Settle(t.Context(), get("/"), "one", 1); err == nil || errors.Is(err, ErrNotReserved) {
		t.Fatalf("%v", err)
	}
}

// Slots are Release's to give back: a refund of units need not name their holder.
func TestRefundOfUnitsLeavesSlotsAlone(t *testing.T) {
	l := fromFile(t, doc("a", `{selector: {}, limits: [{name: x, requests: 10, window: 1h},
		{name: slots, requests: 5, window: 1m, algorithm: Concurrency}]}`), Options{})
	defer l.Admit(t.Context(), get("/")).Release()
	for _, token := range []string{"", "one", "one"} {
		l.Admit(t.Context(), get("/")).Release()
		if err := l.Refund(t.Context(), get("/"), token); err != nil {
			t.Fatal(err)
		}
	}
	// The second refund by one token is none.
	d := l.Peek(t.Context(), get("/"))
	if d.Limits[0].Remaining != 8 || d.Limits[1].Remaining != 4 {
		t.Errorf("%d units and %d slots are left", d.Limits[0].Remaining, d.Limits[1].Remaining)
	}
}

// What was never charged cannot be given back, or be corrected.
func TestWhatIsNotCountedIsNotGivenBack(t *testing.T) {
	l := fromFile(t, doc("a", tokensPerDay), Options{})
	l.Admit(t.Context(), get("/"))
	preflight := Request{Method: "OPTIONS", Path: "/", Header: http.Header{"Origin": {"https://shop.example"}, "Access-Control-Request-Method": {"GET"}}}
	if d := l.Reserve(t.Context(), preflight, "one", time.Minute); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	if err := l.Settle(t.Context(), preflight, "one", 1); err != nil {
		t.Errorf("settle: %v", err)
	}
	if err := l.Refund(t.Context(), preflight, ""); err != nil || left(t, l) != 60 {
		t.Errorf("refund: %v, and %d are left", err, left(t, l))
	}
}
