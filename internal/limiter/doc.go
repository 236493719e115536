// Package limiter counts requests against limits.
//
// An Engine decides. For each limit it asks who its distribution says: leases,
// syncs and splits decide in this process; all other limits are decided by the
// store, in one call. Before that come the refusals that are remembered, and after
// it, when the store does not answer, the limits' failure policies. Slots of
// Concurrency are renewed until they are released. docs/adr has the reasons.
//
// Two stores decide alike: Redis, where one script (scripts/decide.lua) reads,
// checks and writes all counters of a request in one step, and Memory, the
// reference, which does the same within one process. The script replies the
// state of the counters, and both stores compute from it what is left and when
// to try again, by the same functions of this package (see algorithm). Calls to
// Redis are combined (lane, batch), and not made while it keeps failing (guard).
//
// Time is a count of microseconds since 1970, of Redis's clock or of the one
// given to Memory. It never goes back for a counter: while the clock is behind
// the time in a counter's state, that time holds. A state that is ahead of the
// clock by more than its window, or a minute if that is longer, comes from nowhere
// and starts anew, so that nobody is refused for ever.
//
// The package knows nothing of HTTP, policies' matching or Kubernetes.
package limiter
