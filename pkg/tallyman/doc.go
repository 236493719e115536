// Package tallyman admits and refuses requests by RateLimitPolicies, against
// one count that all servers share in Redis.
//
// A Limiter follows the policies that the manager publishes for a namespace, or
// takes them from a file. A program that serves HTTP puts it in front of its
// handler with package httplimit; any other asks it itself:
//
//	l, err := tallyman.New(ctx, tallyman.Options{
//		Store:     "redis://redis:6379",
//		Namespace: "shop",
//		Labels:    map[string]string{"app": "orders"},
//	})
//	if err != nil {
//		return err
//	}
//	defer l.Close(context.WithoutCancel(ctx))
//
//	d := l.Admit(ctx, tallyman.Request{Method: "POST", Path: "/v1/orders"})
//	if !d.Allowed {
//		return fmt.Errorf("refused by limit %s of policy %s", d.Limit, d.Policy)
//	}
//	defer d.Release() // when the request has ended
//
// # The way of a request
//
// Admit takes the current snapshot of the policies, asks each of their limits
// whether it counts the request, under which key and at which cost, and has all
// of these counters decided: in the store by one call, or in this process where a
// limit's distribution says so. A request that one limit refuses is charged to
// none. See admit.go.
//
// Costs that are known late are charged as an estimate by Reserve and corrected by
// Settle; Refund gives back what a request was charged that did not happen.
//
// # Changes
//
// A snapshot is replaced as a whole, and a request is decided by one. A policy
// that was deleted is enforced no more, and neither is one that was edited into an
// invalid one, which the manager does not publish. One whose published definition
// is garbage is enforced as it was (snapshot.go). The same holds for all policies
// while Redis is away, or has lost its data (follow.go).
//
// # Faults
//
// When the store does not answer within a policy's storeTimeout, each limit's
// failurePolicy decides, and the decision says that it is degraded. A store that
// keeps failing is not asked until it answers again. Before the
// definitions are known for the first time, requests are admitted; a server
// that must not do so waits for Ready before it listens.
package tallyman
