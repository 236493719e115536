package policy

import "time"

// Bounds of what a policy may hold. They are those of the CRD's schema, held
// here again for files and for definitions that come from Redis.
const (
	// MaxInteger is 2^53-1, the largest integer that JSON, Lua and CEL all
	// carry exactly.
	MaxInteger = 1<<53 - 1
	// MaxSlidingLogRequests bounds a SlidingLog, which stores every admitted
	// request: 100,000 entries are about 10 MB of Redis memory per key.
	MaxSlidingLogRequests = 100_000
	// MaxConcurrency bounds the slots of a Concurrency limit, each of which is
	// an entry in Redis while it is held.
	MaxConcurrency = 100_000

	MinDuration     = Duration(time.Millisecond)
	MaxWindow       = Duration(366 * 24 * time.Hour)
	MaxStoreTimeout = Duration(10 * time.Second)
	MaxJitter       = Duration(time.Hour)
	// MinSlotLifetime and MaxSlotLifetime bound the window of a Concurrency
	// limit.
	MinSlotLifetime = Duration(time.Second)
	MaxSlotLifetime = Duration(time.Hour)
	// MinInterval and MaxInterval bound how often Synced counts are exchanged.
	MinInterval = Duration(10 * time.Millisecond)
	MaxInterval = Duration(time.Minute)
	// MaxFillTime is the time to fill a TokenBucket that the limiter cannot
	// count to any more: 2^52 µs, 142 years.
	MaxFillTime = 1 << 52 * time.Microsecond

	MaxIdlePercent      = 50
	MaxOvershootPercent = 100

	MinStatusCode = 400
	MaxStatusCode = 599

	MaxLimits       = 64
	MaxTargetRefs   = 16
	MaxMatches      = 16
	MaxMethods      = 16
	MaxHeaders      = 8
	MaxKeyParts     = 8
	MaxOverrides    = 64
	MaxOverrideKeys = 256

	// Lengths are in characters.
	MaxTargetName       = 253
	MaxLimitName        = 63
	MaxExpressionLength = 1024
	MaxPathLength       = 1024
	MaxMethodLength     = 32
	MaxHeaderName       = 256
	MaxHeaderValue      = 1024
	MaxParameterName    = 256
	MaxKeyValue         = 1024
	MaxTimeZone         = 64
	MaxBodyLength       = 4096
	MaxContentType      = 256
)

// Spec is what a RateLimitPolicy asks for.
type Spec struct {
	// TargetRefs and Selector choose the pods; exactly one of them is set.
	TargetRefs []TargetRef `json:"targetRefs,omitempty"`
	Selector   *Selector   `json:"selector,omitempty"`

	Enforcement  Enforcement `json:"enforcement,omitempty"`
	Limits       []Limit     `json:"limits"`
	StoreTimeout Duration    `json:"storeTimeout,omitempty"`
	Response     Response    `json:"response,omitzero"`
}

// TargetRef names a workload or Service of the policy's namespace.
type TargetRef struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// Enforcement says whether refusals are carried out.
type Enforcement string

const (
	// Enforce refuses requests over a limit.
	Enforce Enforcement = "Enforce"
	// Shadow counts and reports, and refuses nothing.
	Shadow Enforcement = "Shadow"
)

// Match is met by a request that meets every condition it states.
type Match struct {
	Methods    []string      `json:"methods,omitempty"`
	Path       *PathMatch    `json:"path,omitempty"`
	Headers    []HeaderMatch `json:"headers,omitempty"`
	Expression string        `json:"expression,omitempty"`
}

// PathMatchType says how a path is compared.
type PathMatchType string

const (
	PathExact PathMatchType = "Exact"
	// PathPrefix compares whole segments: /v1 covers /v1 and /v1/a, not /v10.
	PathPrefix PathMatchType = "Prefix"
	// PathTemplate has {name} for one segment: /v1/users/{id}.
	PathTemplate PathMatchType = "Template"
	// PathRegularExpression is an RE2 expression over the whole path.
	PathRegularExpression PathMatchType = "RegularExpression"
)

// PathMatch compares the normalised path of a request.
type PathMatch struct {
	Type  PathMatchType `json:"type,omitempty"`
	Value string        `json:"value"`
}

// HeaderMatchType says how a header's value is compared.
type HeaderMatchType string

const (
	HeaderExact             HeaderMatchType = "Exact"
	HeaderRegularExpression HeaderMatchType = "RegularExpression"
)

// HeaderMatch is met when any value of the header matches.
type HeaderMatch struct {
	Name  string          `json:"name"`
	Type  HeaderMatchType `json:"type,omitempty"`
	Value string          `json:"value"`
}

// KeyPart is one attribute that tells counters apart; exactly one field is set.
type KeyPart struct {
	ClientIP       *ClientIPKey `json:"clientIP,omitempty"`
	Header         *NamedKey    `json:"header,omitempty"`
	Cookie         *NamedKey    `json:"cookie,omitempty"`
	QueryParameter *NamedKey    `json:"queryParameter,omitempty"`
	Path           *struct{}    `json:"path,omitempty"`
	Method         *struct{}    `json:"method,omitempty"`
	Expression     string       `json:"expression,omitempty"`
}

// ClientIPKey groups client addresses by network.
type ClientIPKey struct {
	// IPv4PrefixLength is 1..32, IPv6PrefixLength 1..128.
	IPv4PrefixLength int32 `json:"ipv4PrefixLength,omitempty"`
	IPv6PrefixLength int32 `json:"ipv6PrefixLength,omitempty"`
}

// NamedKey names a header, cookie or query parameter.
type NamedKey struct {
	Name string `json:"name"`
}

// HeaderStyle chooses the rate limit headers of responses.
type HeaderStyle string

const (
	// HeadersIETF is RateLimit-Policy and RateLimit of
	// draft-ietf-httpapi-ratelimit-headers-10.
	HeadersIETF HeaderStyle = "IETF"
	// HeadersLegacy is X-RateLimit-Limit, -Remaining and -Reset.
	HeadersLegacy HeaderStyle = "Legacy"
	HeadersBoth   HeaderStyle = "Both"
	HeadersNone   HeaderStyle = "None"
)

// Response shapes the answer to a refused request.
type Response struct {
	StatusCode int32 `json:"statusCode,omitempty"`
	// Body replaces the problem+json document when it is not empty.
	Body        string      `json:"body,omitempty"`
	ContentType string      `json:"contentType,omitempty"`
	Headers     HeaderStyle `json:"headers,omitempty"`
	// RetryAfterJitter is how much later than at the earliest time clients may be
	// told to try again; 0 for none.
	RetryAfterJitter Duration `json:"retryAfterJitter,omitempty"`
}
