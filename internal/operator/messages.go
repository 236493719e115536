package operator

import "time"

// TopPatience is for how long a sidecar goes on counting keys that nobody asks for.
const TopPatience = 15 * time.Second

// ManagerPort is the port of the manager's API, at a loopback address, unless it is told
// another one. A sidecar's is in its container's arguments.
const ManagerPort = 8082

// Header is one that every request to the API must have, with any value. A web page
// cannot send it across origins, nor can who makes an app fetch a URL of his choice.
const Header = "X-Tallyman-Operator"

// The paths of the API.
const (
	// PathExplain takes a Request by POST, and answers with an Explanation.
	PathExplain = "/v1/explain"
	// PathTop takes no body, by GET, and answers with a Top. Keys are counted from
	// the first question on, and no longer than TopPatience after the last one. With
	// ?reveal=true the keys are the values themselves.
	PathTop = "/v1/top"
	// PathReset takes a Change without units by POST, and answers with a Changed. The
	// shared count is reset for all pods, and what the pod that is asked knows of it is
	// forgotten. The others follow within a second or a Synced limit's interval; only
	// the counts of a Split, and of backstops, are each pod's own, so that each pod has
	// to be asked. A pod that knows no such counter answers with status 404.
	PathReset = "/v1/reset"
	// PathRefund takes a Change by POST, and answers with a Changed, or as PathReset
	// does. Slots of Concurrency cannot be given back, but reset.
	PathRefund = "/v1/refund"
	// PathStore takes no body, by GET, and answers with a StoreHealth. It is the
	// manager's, not a sidecar's.
	PathStore = "/v1/store"
)

// Request describes a request as a client would send it.
type Request struct {
	Method string `json:"method,omitempty"` // GET if empty
	Host   string `json:"host,omitempty"`
	// Path with or without a query, escaped as it would be sent; / if empty.
	Path    string              `json:"path,omitempty"`
	Headers map[string][]string `json:"headers,omitempty"`
	// ClientIP is the client's address, without a port; empty if it is not known.
	ClientIP string `json:"clientIP,omitempty"`
}

// Explanation is what would become of a request now, by the shared count: units that
// the pod has at hand of a Leased limit, and what it has not exchanged of a Synced one,
// are left out. Nothing was charged.
type Explanation struct {
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason,omitempty"`
	// Policy and Limit that would refuse.
	Policy string `json:"policy,omitempty"`
	Limit  string `json:"limit,omitempty"`
	// RetryAfterMs is absent when there is no such time.
	RetryAfterMs int64 `json:"retryAfterMs,omitempty"`
	// Degraded says that the store did not answer, or that no definitions are known.
	Degraded bool `json:"degraded,omitempty"`
	// Exempt says why no limit looks at the request at all, such as "CORS preflight".
	Exempt string `json:"exempt,omitempty"`
	// Limits are all that are in force in the pod, by policy and in their order,
	// whether they apply to the request or not.
	Limits []LimitExplanation `json:"limits"`
}

// LimitExplanation is one limit's part in an explanation.
type LimitExplanation struct {
	Policy     string `json:"policy"`
	Generation int64  `json:"generation"`
	Limit      string `json:"limit"`
	Shadow     bool   `json:"shadow,omitempty"`

	// Applies says whether the limit counts or refuses the request. Why tells, in a
	// few words for people, why it does or does not: "match[1]", "except[0]",
	// "no match applies", "overrides[2]: Exempt".
	Applies bool   `json:"applies"`
	Why     string `json:"why"`
	// Key has the values that the request is counted by, for people: it is what
	// Change takes. A value is empty that the request lacks. Bytes that are not UTF-8
	// cannot be told, nor named. RedisKey is the counter's name in Redis; that of a
	// Split is each pod's own. Both are absent where the request has none.
	Key      []string `json:"key,omitempty"`
	RedisKey string   `json:"redisKey,omitempty"`
	Cost     int64    `json:"cost,omitempty"`

	Algorithm     string `json:"algorithm"`
	Distribution  string `json:"distribution"`
	FailurePolicy string `json:"failurePolicy"`
	// Requests per WindowMs are the limit, with the numbers of an override where one
	// applies. Capacity is the most units that can be had at once.
	Requests int64 `json:"requests"`
	Capacity int64 `json:"capacity"`
	WindowMs int64 `json:"windowMs"`

	// Allowed and Reason are this limit's own answer, of a limit that applies.
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason,omitempty"`
	// Remaining and ResetAfterMs are absent when the store was not asked, or did not
	// answer.
	Remaining    *int64 `json:"remaining,omitempty"`
	ResetAfterMs *int64 `json:"resetAfterMs,omitempty"`
	RetryAfterMs int64  `json:"retryAfterMs,omitempty"`
}

// Top is what a sidecar has decided since it counts keys.
type Top struct {
	// SinceMs is for how long keys have been counted: 0 in the first answer.
	SinceMs int64      `json:"sinceMs"`
	Limits  []TopLimit `json:"limits"`
}

// TopLimit is one limit of a Top. Counts are requests since SinceMs ago, or since the
// policy has changed: those that the limit refused, or would have, and those that were
// admitted. What only other limits refused is in neither.
type TopLimit struct {
	Policy   string `json:"policy"`
	Limit    string `json:"limit"`
	Shadow   bool   `json:"shadow,omitempty"`
	Admitted int64  `json:"admitted"`
	Refused  int64  `json:"refused"`
	// Keys are the 100 with most requests, most first; Others says that there were
	// more keys than the sidecar counts. Then a key's counts may begin anew between
	// two answers, and are too low by a 256th of the limit's requests at most.
	Keys   []TopKey `json:"keys,omitempty"`
	Others bool     `json:"others,omitempty"`
}

// TopKey is one key of a limit.
type TopKey struct {
	// Key has addresses, methods and paths as they are. Of other values it has a
	// hash, unless the question was for the values.
	Key      string `json:"key"`
	Admitted int64  `json:"admitted"`
	Refused  int64  `json:"refused"`
}

// Change names a counter, and what is to be done to it.
type Change struct {
	Policy string `json:"policy"`
	Limit  string `json:"limit"`
	// Key has a value for each part of the limit's key, in their order; none for a
	// limit without a key. An empty value is one that requests lack; an address stands
	// for its network.
	Key []string `json:"key,omitempty"`
	// Units to give back, 1 or more, for a refund.
	Units int64 `json:"units,omitempty"`
}

// Changed is what has become of a counter.
type Changed struct {
	RedisKey string `json:"redisKey"`
	// Units that were given back. A reset gives back all that were used, and does
	// not say how many.
	Units int64 `json:"units,omitempty"`
	// Remaining units now.
	Remaining int64 `json:"remaining"`
}

// StoreHealth is what the manager finds when it looks at the store.
type StoreHealth struct {
	// Nodes are those that count: the server, or the masters of a Cluster.
	Nodes []NodeHealth `json:"nodes"`
	// Error is why the nodes are not known, when none answered.
	Error string `json:"error,omitempty"`
}

// NodeHealth is one node's.
type NodeHealth struct {
	Address string `json:"address"`
	// Error is why it did not answer; empty if it did. It holds no credentials.
	Error string `json:"error,omitempty"`
	// LatencyMicros is the time of a PING.
	LatencyMicros int64 `json:"latencyMicros,omitempty"`
	// Scripts is how many of ours are loaded, and MissingScripts names the others.
	Scripts        int      `json:"scripts"`
	MissingScripts []string `json:"missingScripts,omitempty"`
}
