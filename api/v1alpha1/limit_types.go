package v1alpha1

// Limit is one rule: how many requests of which kind, per what.
//
// +kubebuilder:validation:XValidation:rule="!has(self.burst) || self.algorithm == 'TokenBucket'",fieldPath=".burst",message="only a TokenBucket has a burst: set `algorithm` to TokenBucket, or remove `burst`"
// +kubebuilder:validation:XValidation:rule="self.algorithm != 'SlidingLog' || self.requests <= 100000",fieldPath=".requests",message="must be at most 100000 with SlidingLog, which stores every request: lower it, or choose SlidingWindow"
// +kubebuilder:validation:XValidation:rule="self.algorithm != 'Concurrency' || self.requests <= 100000",fieldPath=".requests",message="must be at most 100000 with Concurrency, which stores every request in progress: lower it"
// +kubebuilder:validation:XValidation:rule="has(self.window) != has(self.calendar)",message="must have exactly one of `window` and `calendar`: write `window: 1m`, or `calendar: {period: Month}`"
// +kubebuilder:validation:XValidation:rule="self.algorithm != 'Concurrency' || !has(self.window) || !self.window.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') || (duration(self.window) >= duration('1s') && duration(self.window) <= duration('1h'))",fieldPath=".window",message="must be between 1s and 1h with Concurrency, where it is how long a slot outlives a holder that crashed"
// +kubebuilder:validation:XValidation:rule="!has(self.calendar) || self.algorithm == 'FixedWindow'",fieldPath=".calendar",message="only a FixedWindow counts by the calendar: set `algorithm` to FixedWindow, or write `window` instead of `calendar`"
// +kubebuilder:validation:XValidation:rule="self.anchor != 'FirstRequest' || (self.algorithm == 'FixedWindow' && has(self.window))",fieldPath=".anchor",message="only a FixedWindow with a `window` begins with the first request: set `algorithm` to FixedWindow and write `window`, or remove `anchor`"
// +kubebuilder:validation:XValidation:rule="self.algorithm != 'Concurrency' || !(self.distribution.mode in ['Leased', 'Synced'])",fieldPath=".distribution.mode",message="must be Exact or Split with Concurrency, whose slots are held and not used up"
// +kubebuilder:validation:XValidation:rule="self.algorithm != 'SlidingLog' || self.distribution.mode != 'Synced'",fieldPath=".distribution.mode",message="must not be Synced with SlidingLog, which is exact: write another mode, or choose SlidingWindow"
// +kubebuilder:validation:XValidation:rule="!has(self.backstop) || self.failurePolicy == 'Backstop'",fieldPath=".backstop",message="goes with `failurePolicy` Backstop only: set `failurePolicy` to Backstop, or remove `backstop`"
// +kubebuilder:validation:XValidation:rule="!has(self.overrides) || self.overrides.size() == 0 || (has(self.key) && self.key.size() == 1)",fieldPath=".overrides",message="name values of a `key` of one part: write exactly one entry in `key`, or remove `overrides`"
// +kubebuilder:validation:XValidation:rule="self.algorithm == 'TokenBucket' || !has(self.overrides) || !self.overrides.exists(o, has(o.burst))",fieldPath=".overrides",message="only a TokenBucket has a burst: set `algorithm` to TokenBucket, or remove `burst`"
// +kubebuilder:validation:XValidation:rule="self.algorithm != 'SlidingLog' || !has(self.overrides) || !self.overrides.exists(o, has(o.requests) && o.requests > 100000)",fieldPath=".overrides",message="must be at most 100000 with SlidingLog, which stores every request: lower it, or choose SlidingWindow"
// +kubebuilder:validation:XValidation:rule="self.algorithm != 'Concurrency' || !has(self.overrides) || !self.overrides.exists(o, has(o.requests) && o.requests > 100000)",fieldPath=".overrides",message="must be at most 100000 with Concurrency, which stores every request in progress: lower it"
type Limit struct {
	// name tells the limits of a policy apart, in headers, metrics and messages.
	// Letters, digits, `-`, `_` and `.`, at most 63, with a letter or digit at
	// both ends.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$')",message="must consist of letters, digits, -, _ and . with a letter or digit at both ends, such as per-client"
	Name string `json:"name"`

	// requests is how many requests are admitted per `window` or period of the
	// `calendar`, for each value of `key`: 0 to 9007199254740991 (2^53-1). With 0
	// every request is refused. With `algorithm: Concurrency` it is how many may
	// be in progress at the same time, at most 100000.
	// Example: `100`.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Requests *int64 `json:"requests,omitempty"`

	// window is the time over which `requests` are admitted, from `1ms` to
	// `8784h` (366 days). Up to four numbers with a unit of h, m, s or ms. With
	// `algorithm: Concurrency` it is how long the slot of a request lives on after
	// the pod that served it crashed, from `1s` to `1h`; while the request is in
	// progress its slot is renewed. Exactly one of `window` and `calendar` is set.
	// Examples: `1m`, `1h30m`, `500ms`, `24h` (a day).
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') || (duration(self) >= duration('1ms') && duration(self) <= duration('8784h'))",message="must be between 1ms and 8784h (366 days)"
	Window Duration `json:"window,omitempty"`

	// calendar counts by periods of the calendar instead of a `window`: quotas by
	// day or month, which begin anew at midnight. Only with
	// `algorithm: FixedWindow`.
	// Example: `{period: Month, timeZone: Europe/Berlin}`.
	// +optional
	Calendar *Calendar `json:"calendar,omitempty"`

	// algorithm is the way of counting.
	// `FixedWindow` counts in windows that begin at whole multiples of `window`:
	// the cheapest; up to twice `requests` can pass around such a boundary.
	// `SlidingWindow` weighs the previous window's count in: as cheap, without
	// the bursts; holds steady traffic to the limit, while after an abrupt change
	// more can pass for up to a window, less than twice `requests`.
	// `SlidingLog` remembers the time of every request: exact; memory grows with
	// `requests`, which may be at most 100000.
	// `TokenBucket` refills evenly, `requests` per `window`, and lets `burst`
	// requests pass at once.
	// `Concurrency` counts requests in progress and not requests per time: for
	// backends that bear so many at once, however long each takes.
	// Default: `SlidingWindow`.
	// +optional
	// +kubebuilder:default=SlidingWindow
	Algorithm Algorithm `json:"algorithm,omitempty"`

	// anchor says when the windows of a FixedWindow begin. `Clock`: at whole
	// multiples of `window`, for all keys at the same time. `FirstRequest`: with
	// the first request after the last window ended, for each value of `key` by
	// itself; only with `algorithm: FixedWindow` and `window`.
	// Default: `Clock`.
	// +optional
	// +kubebuilder:default=Clock
	Anchor Anchor `json:"anchor,omitempty"`

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

	// overrides are other numbers for named values of `key`, which must have
	// exactly one part. A value is in one override only.
	// Example: `[{keys: [acme], requests: 1000}, {keys: [internal], action: Exempt}]`.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Overrides []Override `json:"overrides,omitempty"`

	// cost is how much of the limit one request takes.
	// Default: 1.
	// +optional
	Cost *Cost `json:"cost,omitempty"`

	// distribution says how the pods count together: how exact, and how often
	// they ask the store.
	// Default: `{mode: Exact}`.
	// +optional
	// +kubebuilder:default={}
	Distribution Distribution `json:"distribution,omitzero"`

	// failurePolicy decides while the store cannot answer in time. `Backstop`
	// goes on in each pod by itself, with `backstop`: the API stays open, and
	// nobody gets much more than the limit. `Allow` lets all requests pass.
	// `Deny` refuses them: for logins and what must never go uncounted.
	// Default: `Backstop`.
	// +optional
	// +kubebuilder:default=Backstop
	FailurePolicy FailurePolicy `json:"failurePolicy,omitempty"`

	// backstop is the limit that each pod holds by itself while the store cannot
	// answer. Only with `failurePolicy: Backstop`.
	// Default: `requests` divided by the number of live pods.
	// +optional
	Backstop *Backstop `json:"backstop,omitempty"`
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
// +kubebuilder:validation:Enum=FixedWindow;SlidingWindow;SlidingLog;TokenBucket;Concurrency
type Algorithm string

// Anchor says when windows begin.
//
// +kubebuilder:validation:Enum=Clock;FirstRequest
type Anchor string

// Calendar counts by periods of the calendar.
type Calendar struct {
	// period is the time over which `requests` are admitted. A `Week` begins on
	// Monday (ISO 8601).
	// +required
	Period Period `json:"period"`

	// timeZone is the IANA name of the zone in which periods begin. A day of a
	// zone with daylight saving time has 23 to 25 hours.
	// Example: `Europe/Berlin`.
	// Default: `UTC`.
	// +optional
	// +kubebuilder:default=UTC
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self != 'Local' && self.matches('^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$')",message="must be the IANA name of a time zone, such as Europe/Berlin or UTC"
	TimeZone string `json:"timeZone,omitempty"`
}

// Period is a unit of the calendar.
//
// +kubebuilder:validation:Enum=Minute;Hour;Day;Week;Month;Year
type Period string

// KeyPart is one attribute that tells clients apart.
//
// +kubebuilder:validation:XValidation:rule="[has(self.clientIP), has(self.header), has(self.cookie), has(self.queryParameter), has(self.path), has(self.method), has(self.expression)].filter(set, set).size() == 1",message="must have exactly one of `clientIP`, `header`, `cookie`, `queryParameter`, `path`, `method` and `expression`: to count by several attributes, write one entry for each"
type KeyPart struct {
	// clientIP is the address of the client, or the network around it.
	// Example: `clientIP: {}`.
	// +optional
	ClientIP *ClientIPKey `json:"clientIP,omitempty"`

	// header is the value of a request header: the first, if it is sent more than
	// once.
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
