// Package store keeps policy definitions in Redis: the manager publishes them
// and reads who enforces them, the sidecars watch them and report.
//
// Keys, below a prefix ("tallyman"); <ns> is a namespace:
//
//	policies:{<ns>}   hash    policy name → definition (policy.Definition.Encode)
//	revision:{<ns>}   string  "epoch-number", increases with every publish
//	enforcers:{<ns>}  hash    pod → heartbeat
//	places:{<ns>}     zset    policy/pod of each that lives, by name
//	seen:{<ns>}       zset    the same, by the µs of the last heartbeat
//	namespaces        set     namespaces that have definitions, for the sweep
//	events:<ns>       channel "revision epoch-number"
//
// A deletion is told from a lost store by the revision: a publish without
// definitions deletes the hash and leaves the revision behind, for a day; a
// store without a revision knows nothing, and enforcers keep what they have.
//
// A sidecar needs these rules of an ACL, for its own namespace only, and what
// package limiter needs for its counters:
//
//	%R~tallyman:policies:{<ns>} %R~tallyman:revision:{<ns>}
//	~tallyman:enforcers:{<ns>} ~tallyman:places:{<ns>} ~tallyman:seen:{<ns>}
//	&tallyman:events:<ns>
//	+client|setname +ping +get +subscribe +eval_ro +evalsha_ro +type +hlen +hkeys +hstrlen +hget
//	+eval +evalsha +time +del +hset +hdel +pexpire +hrandfield
//	+zcard +zadd +zrem +zrangebyscore +zlexcount
//
// The manager needs these:
//
//	~tallyman:policies:* ~tallyman:revision:* ~tallyman:enforcers:*
//	~tallyman:namespaces &tallyman:events:*
//	+client|setname +ping +script|load +script|exists +eval +evalsha +type +exists +time
//	+eval_ro +evalsha_ro +get +set +del +hlen +hget +hset +hkeys +hstrlen +publish
//	+sismember +sadd +srem +smembers
//
// Redis is 7.0 or later: EVAL_RO reads in one step what may not be written.
//
// Both need +select for a database other than 0, and on a Redis Cluster
// +cluster|slots, +command and +asking.
//
// It must not import a client of Kubernetes: it is linked into the sidecar.
package store
