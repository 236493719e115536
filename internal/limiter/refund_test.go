package limiter

import (
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// C11: what is given back clamps at the limit.
func TestRefundOfMoreThanUsedClamps(t *testing.T) {
	onEveryAlgorithm(t, 10, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		do(t, s, Call{Hits: []Hit{hit}, Count: 2})
		for _, step := range []struct{ count, granted, remaining int64 }{{1, 1, 9}, {7, 1, 10}, {7, 0, 10}, {1000, 0, 10}} {
			refund := do(t, s, Call{Op: Refund, Hits: []Hit{hit}, Count: step.count})
			if refund.Granted != step.granted || refund.Results[0].Remaining != step.remaining {
				t.Fatalf("after %d came back: %+v", step.count, refund)
			}
			diff(t, "remaining", peek(t, s, hit)[0].Remaining, step.remaining)
		}
	})
}

// C33: a refund with a token happens once.
func TestRefundHappensOnce(t *testing.T) {
	onEveryAlgorithm(t, 10, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		hits := []Hit{{Rule: rule(l), Key: keyOf(t, l), Cost: 2}}
		do(t, s, Call{Hits: hits, Count: 4})
		for _, step := range []struct {
			token              string
			granted, remaining int64
		}{{"a", 1, 4}, {"a", 0, 4}, {"b", 1, 6}, {"a", 0, 6}, {"b", 0, 6}} {
			refund := do(t, s, Call{Op: Refund, Hits: hits, Token: step.token})
			if refund.Granted != step.granted || refund.Results[0].Remaining != step.remaining {
				t.Fatalf("refund %q: %+v", step.token, refund)
			}
		}
	})
}

// Part of a log entry can come back; its rest keeps its time.
func TestRefundOfPartOfALogEntryKeepsItsTime(t *testing.T) {
	onBothStores(t, func(t *testing.T, s Store, c *clock) {
		l := limitOf(policy.SlidingLog, 10, time.Second)
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 6}
		take(t, s, hit)
		c.set(100 * time.Millisecond)
		hit.Cost = 2
		do(t, s, Call{Op: Refund, Hits: []Hit{hit}})
		hit.Cost = 7
		if r := take(t, s, hit)[0]; r.Remaining != 6 || r.RetryAfter != 900*time.Millisecond {
			t.Fatalf("after 2 of 6 came back: %+v", r)
		}
	})
}

// Garbage among a log's entries does not fail a refund.
func TestRefundToASpoiltLogFailsNothing(t *testing.T) {
	s := simulatedRedis(t, &clock{epoch}, Hooks{})
	l := limitOf(policy.SlidingLog, 10, time.Second)
	hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 2}
	take(t, s, hit)
	command(t, testredis.Shared(t).Client(t), "ZADD", hit.Key, epoch, "0000000000000002:garbage")
	take(t, s, hit)
	hit.Cost = 4
	do(t, s, Call{Op: Refund, Hits: []Hit{hit}})
	diff(t, "remaining", peek(t, s, hit)[0].Remaining, 10)
}

// A charge is for what has happened: it is taken as far as there is room.
func TestChargeFillsUpToTheLimit(t *testing.T) {
	onEveryAlgorithm(t, 10, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		hits := []Hit{{Rule: rule(l), Key: keyOf(t, l), Cost: 1}}
		for _, step := range []struct {
			token                     string
			count, granted, remaining int64
		}{{"", 7, 7, 3}, {"", 2, 2, 1}, {"x", 5, 1, 0}, {"x", 5, 0, 0}, {"", 1000, 0, 0}} {
			charge := do(t, s, Call{Op: Charge, Hits: hits, Count: step.count, Token: step.token})
			if charge.Granted != step.granted || charge.Results[0].Remaining != step.remaining {
				t.Fatalf("a charge of %d: %+v", step.count, charge)
			}
		}
	})
}

// An estimate becomes what it really was: less, more, or more than there is.
func TestReservationIsSettled(t *testing.T) {
	onEveryAlgorithm(t, 10, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		key := keyOf(t, l)
		hit := func(cost int64) []Hit { return []Hit{{Rule: rule(l), Key: key, Cost: cost}} }
		step := func(op Op, token string, cost, granted, remaining int64) {
			t.Helper()
			call := do(t, s, Call{Op: op, Hits: hit(cost), Token: token, TokenTTL: time.Minute})
			if call.Granted != granted || call.Results[0].Remaining != remaining {
				t.Fatalf("op %d of %q at %d: %+v", op, token, cost, call)
			}
		}
		step(Reserve, "a", 5, 1, 5)
		step(Reserve, "b", 6, 0, 5)
		step(Settle, "b", 6, 0, 5) // it was refused
		step(Settle, "a", 2, 1, 8)
		step(Settle, "a", 2, 0, 8) // it was settled
		step(Reserve, "c", 1, 1, 7)
		step(Settle, "c", 4, 1, 4)
		step(Reserve, "d", 2, 1, 2)
		step(Settle, "d", 1000, 1, 0)
	})
}

// A limit that changes between the two, to 0 even, leaves an estimate that was
// right as it is counted.
func TestReservationIsSettledWithOtherNumbers(t *testing.T) {
	onEveryAlgorithm(t, 10, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		key := keyOf(t, l)
		for _, requests := range []int64{70, 7, 4, 0} {
			hits := []Hit{{Rule: rule(l), Key: key, Cost: 5}}
			do(t, s, Call{Op: Reserve, Hits: hits, Token: "a"})
			hits[0].Rule = rule(limitOf(l.Algorithm, requests, l.Window))
			if settled := do(t, s, Call{Op: Settle, Hits: hits, Token: "a"}); settled.Granted != 1 {
				t.Fatalf("with %d requests: %+v", requests, settled)
			}
			hits[0].Rule = rule(l)
			diff(t, "remaining", peek(t, s, hits...)[0].Remaining, 5)
			do(t, s, Call{Op: Refund, Hits: hits})
		}
	})
}

// A shadow that was not taken has nothing to give back.
func TestSettlingLeavesARefusedShadow(t *testing.T) {
	onEveryAlgorithm(t, 10, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		wide := l
		wide.Requests, wide.Burst = 100, 100
		hits := []Hit{{Rule: rule(wide), Key: keyOf(t, wide), Cost: 4}, {Rule: rule(l), Key: keyOf(t, l), Cost: 4, Shadow: true}}
		take(t, s, hits...)
		take(t, s, hits...)
		do(t, s, Call{Op: Reserve, Hits: hits, Token: "a"})
		diff(t, "reserved", remainingOf(peek(t, s, hits...)), []int64{88, 2})
		hits[0].Cost, hits[1].Cost = 1, 1
		do(t, s, Call{Op: Settle, Hits: hits, Token: "a"})
		diff(t, "settled", remainingOf(peek(t, s, hits...)), []int64{91, 2})
	})
}

// Slots are held until a request ends, whatever it turns out to cost.
func TestSettlingLeavesSlots(t *testing.T) {
	onBothStores(t, func(t *testing.T, s Store, _ *clock) {
		l := limitOf(policy.Concurrency, 10, time.Minute)
		hits := []Hit{{Rule: rule(l), Key: keyOf(t, l), Cost: 2}}
		do(t, s, Call{Op: Reserve, Hits: hits, Token: "a"})
		for _, cost := range []int64{1, 5} {
			settling := []Hit{hits[0]}
			settling[0].Cost = cost
			do(t, s, Call{Op: Settle, Hits: settling, Token: "a"})
			diff(t, "remaining", peek(t, s, hits...)[0].Remaining, 8)
		}
		diff(t, "slots that come back", do(t, s, Call{Op: Refund, Hits: hits, Token: "a"}).Granted, 1)
		diff(t, "remaining", peek(t, s, hits...)[0].Remaining, 10)
	})
}

// An estimate that is not settled in time stays as it is. In Redis tokens expire
// by the server's own time: see TestTokensHaveATTL.
func TestReservationExpires(t *testing.T) {
	c := &clock{epoch}
	s := NewMemory(c.time)
	hits := []Hit{{Rule: rule(limitOf(policy.FixedWindow, 10, 24*time.Hour)), Key: "k", Cost: 5}}
	do(t, s, Call{Op: Reserve, Hits: hits, Token: "a", TokenTTL: time.Second})
	c.set(time.Second)
	hits[0].Cost = 1
	settled := do(t, s, Call{Op: Settle, Hits: hits, Token: "a"})
	if settled.Granted != 0 || settled.Results[0].Remaining != 5 {
		t.Fatalf("%+v", settled)
	}
}

func TestTokensHaveATTL(t *testing.T) {
	s, client := live(t, testredis.Shared(t))
	l := limitOf(policy.FixedWindow, 10, time.Hour)
	hits := []Hit{{Rule: rule(l), Key: keyOf(t, l), Cost: 5}}
	for _, op := range []Op{Reserve, Refund, Charge} {
		token := string(rune('a' + op))
		do(t, s, Call{Op: op, Hits: hits, Token: token, TokenTTL: time.Minute})
		if ttl := command(t, client, "PTTL", hits[0].Key+":"+token).(int64); ttl <= 0 || ttl > 60_000 {
			t.Errorf("op %d leaves a token for %d ms", op, ttl)
		}
	}
}
