package v1alpha1

// Limit is one rule: how many requests of which kind, per what.
//
// +kubebuilder:validation:XValidation:rule="!has(self.burst) || self.algorithm == 'TokenBucket'",fieldPath=".burst",message="only a TokenBucket has a burst: set `algorithm` to TokenBucket, or remove `burst`"
// +kubebuilder:validation:XValidation:rule="self.algorithm != 'SlidingLog' || self.requests <= 100000",fieldPath=".requests",message="must be at most 100000 with SlidingLog, which stores every request: lower it, or choose SlidingWindow"
type Limit struct {
	// name tells the limits of a policy apart, in headers, metrics and messages.
	// Letters, digits, `-`, `_` and `.`, at most 63, with a letter or digit at
	// both ends.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$')",message="must consist of letters, digits, -, _ and . with a letter or digit at both ends, such as per-client"
	Name string `json:"name"`

	// requests is how many requests are admitted per `window`, for each value of
	// `key`: 0 to 9007199254740991 (2^53-1). With 0 every request is refused.
	// Example: `100`.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Requests *int64 `json:"requests,omitempty"`

	// window is the time over which `requests` are admitted, from `1ms` to
	// `8784h` (366 days). Up to four numbers with a unit of h, m, s or ms.
	// Examples: `1m`, `1h30m`, `500ms`, `24h` (a day).
	// +required
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') || (duration(self) >= duration('1ms') && duration(self) <= duration('8784h'))",message="must be between 1ms and 8784h (366 days)"
	Window Duration `json:"window"`

	// algorithm is the way of counting.
	// `FixedWindow` counts in windows that begin at whole multiples of `window`:
	// the cheapest; up to twice `requests` can pass around such a boundary.
	// `SlidingWindow` weighs the previous window's count in: as cheap, without
	// the bursts; accurate to a few percent.
	// `SlidingLog` remembers the time of every request: exact; memory grows with
	// `requests`, which may be at most 100000.
	// `TokenBucket` refills evenly, `requests` per `window`, and lets `burst`
	// requests pass at once.
	// Default: `SlidingWindow`.
	// +optional
	// +kubebuilder:default=SlidingWindow
	Algorithm Algorithm `json:"algorithm,omitempty"`

	// burst is how many requests a full TokenBucket admits at once, from 1 to
	// 9007199254740991. Only with `algorithm: TokenBucket`.
	// Default: as many as `requests`.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	Burst *int64 `json:"burst,omitempty"`

	// match lists the requests that are limited: those that meet any one of the
	// entries. Without it every request is limited.
	// Example: `[{methods: [POST], path: {value: /v1/orders}}]`.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Match []Match `json:"match,omitempty"`

	// except lists requests that this limit leaves alone, though they match:
	// those that meet any one of the entries.
	// Example: `[{path: {type: Exact, value: /healthz}}]`.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Except []Match `json:"except,omitempty"`

	// key lists the attributes that tell clients apart: requests in which all of
	// them are equal share a counter. Without it all requests share one counter.
	// Example: `[{clientIP: {}}]` limits each client address by itself.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Key []KeyPart `json:"key,omitempty"`

	// onMissingKey says what happens to a request that lacks an attribute of
	// `key`. `Share` counts all such requests on one counter. `Skip` leaves them
	// out of this limit. `Deny` refuses them.
	// Default: `Share`.
	// +optional
	// +kubebuilder:default=Share
	OnMissingKey OnMissingKey `json:"onMissingKey,omitempty"`

	// cost is how much of the limit one request takes.
	// Default: 1.
	// +optional
	Cost *Cost `json:"cost,omitempty"`

	// failurePolicy decides while the store cannot answer in time. `Allow` lets
	// requests pass: an outage of the store is none of the API. `Deny` refuses
	// them: for logins and what must never go uncounted.
	// Default: `Allow`.
	// +optional
	// +kubebuilder:default=Allow
	FailurePolicy FailurePolicy `json:"failurePolicy,omitempty"`
}

// Duration is a length of time as GEP-2257 writes it: up to four numbers with a
// unit of h, m, s or ms, such as 1m30s or 500ms.
//
// The form is a rule and not a pattern, since a pattern's message cannot tell
// the remedy.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=28
// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$')",message="must be up to four numbers with a unit of h, m, s or ms, such as 1m30s or 500ms (a day is 24h)"
type Duration string

// Algorithm is a way of counting.
//
// +kubebuilder:validation:Enum=FixedWindow;SlidingWindow;SlidingLog;TokenBucket
type Algorithm string

// KeyPart is one attribute that tells clients apart.
//
// +kubebuilder:validation:XValidation:rule="[has(self.clientIP), has(self.header), has(self.cookie), has(self.queryParameter), has(self.path), has(self.method), has(self.expression)].filter(set, set).size() == 1",message="must have exactly one of `clientIP`, `header`, `cookie`, `queryParameter`, `path`, `method` and `expression`: to count by several attributes, write one entry for each"
type KeyPart struct {
	// clientIP is the address of the client, or the network around it.
	// Example: `clientIP: {}`.
	// +optional
	ClientIP *ClientIPKey `json:"clientIP,omitempty"`

	// header is the value of a request header.
	// Example: `header: {name: X-Api-Key}`.
	// +optional
	Header *HeaderKey `json:"header,omitempty"`

	// cookie is the value of a cookie.
	// Example: `cookie: {name: session}`.
	// +optional
	Cookie *CookieKey `json:"cookie,omitempty"`

	// queryParameter is the value of a parameter of the URL's query.
	// Example: `queryParameter: {name: tenant}`.
	// +optional
	QueryParameter *QueryParameterKey `json:"queryParameter,omitempty"`

	// path is the request's path, without the query.
	// Example: `path: {}`.
	// +optional
	Path *PathKey `json:"path,omitempty"`

	// method is the request's method.
	// Example: `method: {}`.
	// +optional
	Method *MethodKey `json:"method,omitempty"`

	// expression is a CEL expression whose result, a string, is the value.
	// Example: `expression: "request.headers['x-tenant'].lowerAscii()"`.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Expression string `json:"expression,omitempty"`
}

// ClientIPKey groups client addresses by network.
type ClientIPKey struct {
	// ipv4PrefixLength is the length of the network's prefix of IPv4 addresses,
	// 1 to 32. With 32 each address counts by itself.
	// Default: `32`.
	// +optional
	// +kubebuilder:default=32
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	IPv4PrefixLength int32 `json:"ipv4PrefixLength,omitempty"`

	// ipv6PrefixLength is the length of the network's prefix of IPv6 addresses,
	// 1 to 128. One client commonly has a whole /64.
	// Default: `64`.
	// +optional
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	IPv6PrefixLength int32 `json:"ipv6PrefixLength,omitempty"`
}

// HeaderKey names a header.
type HeaderKey struct {
	// name of the header. Upper and lower case are the same.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9!#$%&*+.^_|~\\x27\\x60-]+$')",message="must be a header's name, without spaces and colon, such as X-Api-Key"
	Name string `json:"name"`
}

// CookieKey names a cookie.
type CookieKey struct {
	// name of the cookie.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9!#$%&*+.^_|~\\x27\\x60-]+$')",message="must be a cookie's name, without spaces, = and ;, such as session"
	Name string `json:"name"`
}

// QueryParameterKey names a parameter of the URL's query.
type QueryParameterKey struct {
	// name of the parameter, as it is before it is encoded for the URL.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
}

// PathKey is the path; it has no settings.
type PathKey struct{}

// MethodKey is the method; it has no settings.
type MethodKey struct{}

// OnMissingKey says what happens to a request that lacks a key's attribute.
//
// +kubebuilder:validation:Enum=Share;Skip;Deny
type OnMissingKey string

// Cost is how much of a limit one request takes.
//
// +kubebuilder:validation:XValidation:rule="has(self.requests) != has(self.expression)",message="must have exactly one of `requests` and `expression`"
type Cost struct {
	// requests is a fixed cost, 0 to 9007199254740991: the request counts as so
	// many.
	// Example: `5`.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Requests *int64 `json:"requests,omitempty"`

	// expression is a CEL expression whose result, an integer of 0 or more, is
	// the cost.
	// Example: `"request.method == 'GET' ? 1 : 5"`.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Expression string `json:"expression,omitempty"`
}

// FailurePolicy decides when the store cannot answer in time.
//
// +kubebuilder:validation:Enum=Allow;Deny
type FailurePolicy string
