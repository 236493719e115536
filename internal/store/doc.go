// Package store keeps policy definitions in Redis: the manager publishes them
// and reads who enforces them, the sidecars watch them and report.
//
// Keys, below a prefix ("tallyman"); <ns> is a namespace:
//
//	policies:{<ns>}   hash    policy name → definition (policy.Definition.Encode)
//	revision:{<ns>}   string  "epoch-number", increases with every publish
//	enforcers:{<ns>}  hash    pod → heartbeat
//	namespaces        set     namespaces that have definitions, for the sweep
//	events:<ns>       channel "revision epoch-number"
//
// A deletion is told from a lost store by the revision: a publish without
// definitions deletes the hash and leaves the revision behind, for a day; a
// store without a revision knows nothing, and enforcers keep what they have.
//
// A sidecar needs these commands, on the keys of its own namespace only:
// MULTI, EXEC, GET, HGETALL, SUBSCRIBE to read; HDEL, and EVALSHA, EVAL with
// TIME, HGETALL, HSET, HDEL, PEXPIRE to report; and what package limiter needs
// on its counters.
//
// It must not import a client of Kubernetes: it is linked into the sidecar.
package store
