// Package store keeps policy definitions in Redis: the manager publishes them
// and reads who enforces them, the sidecars watch them and report.
//
// Keys, below a prefix ("tallyman"); <ns> is a namespace:
//
//	policies:{<ns>}   hash    policy name → definition (policy.Definition.Encode)
//	revision:{<ns>}   string  "epoch-number", increases with every publish
//	enforcers:{<ns>}  hash    pod → heartbeat
//	places:{<ns>}     zset    policy/pod of each that lives, by name
//	seen:{<ns>}       zset    pods by the µs of the last heartbeat; "" by that of the last change of places
//	namespaces        set     namespaces that have definitions, for the sweep
//	events:<ns>       channel "revision epoch-number"
//
// A deletion is told from a lost store by the revision: a publish without
// definitions deletes the hash and leaves the revision behind, for a day; a
// store without a revision knows nothing, and enforcers keep what they have.
//
// What the manager and the sidecars need to be allowed by an ACL is in docs/redis.md.
//
// Redis is 7.0 or later: EVAL_RO reads in one step what may not be written.
//
// It must not import a client of Kubernetes: it is linked into the sidecar.
package store
