package tallyman

import (
	"context"
	"time"
)

// Observer is told what happens, for metrics and traces. A nil function is not
// called. Functions are called on the request's way: they are quick, and safe for
// concurrent use. None of them is told anything of a request but the decision.
type Observer struct {
	// Decided is told every decision of Admit, AdmitAll and Reserve. The context has
	// the values of theirs, such as a span.
	Decided func(context.Context, Decision)
	// StoreCalled is told when the store has answered, or failed, and how long that
	// took. The context has the values of the request's where the call is made for
	// one. Many decisions need no call, and some calls are made in the background.
	StoreCalled func(ctx context.Context, took time.Duration, err error)
	// StoreSent is told of each trip to a server of the store, and how many calls
	// share it.
	StoreSent func(calls int)
	// ExpressionFailed is told of a match, key or cost that could not be
	// evaluated for a request; the safe side was taken.
	ExpressionFailed func(policy, limit string)
	// CounterCorrupt is told that a counter held garbage, and started anew.
	CounterCorrupt func()
	// UnitsLost is told that units could not be given back that were taken for a
	// request after its time for the store was over or, on a Redis Cluster, that
	// another limit refused.
	UnitsLost func()
	// UnitsUnreported is told of units that were admitted while the store failed,
	// and could not be charged to it when it was back.
	UnitsUnreported func(units int64)
	// Overshot is told of units that a limit with distribution Synced was found to
	// have admitted, by this process, above its requests.
	Overshot func(policy, limit string, units int64)
	// CircuitChanged is told that the store keeps failing and is not asked any
	// more (true), or is asked again.
	CircuitChanged func(open bool)
	// EventIgnored is told of a message on the definitions' channel that no
	// manager sends.
	EventIgnored func()
	// DefinitionsLoaded is told the new state whenever definitions were read
	// that differ from the ones before.
	DefinitionsLoaded func(State)
	// LoadFailed is told that the definitions could not be read.
	LoadFailed func(error)
	// HeartbeatFailed is told that the store did not take a report of what is
	// enforced, so that the manager may think that nobody enforces.
	HeartbeatFailed func(error)
}

// withDefaults fills in functions that do nothing.
func (o Observer) withDefaults() Observer {
	if o.Decided == nil {
		o.Decided = func(context.Context, Decision) {}
	}
	if o.StoreCalled == nil {
		o.StoreCalled = func(context.Context, time.Duration, error) {}
	}
	if o.StoreSent == nil {
		o.StoreSent = func(int) {}
	}
	if o.ExpressionFailed == nil {
		o.ExpressionFailed = func(string, string) {}
	}
	if o.CounterCorrupt == nil {
		o.CounterCorrupt = func() {}
	}
	if o.UnitsLost == nil {
		o.UnitsLost = func() {}
	}
	if o.UnitsUnreported == nil {
		o.UnitsUnreported = func(int64) {}
	}
	if o.Overshot == nil {
		o.Overshot = func(string, string, int64) {}
	}
	if o.CircuitChanged == nil {
		o.CircuitChanged = func(bool) {}
	}
	if o.EventIgnored == nil {
		o.EventIgnored = func() {}
	}
	if o.DefinitionsLoaded == nil {
		o.DefinitionsLoaded = func(State) {}
	}
	if o.LoadFailed == nil {
		o.LoadFailed = func(error) {}
	}
	if o.HeartbeatFailed == nil {
		o.HeartbeatFailed = func(error) {}
	}
	return o
}
