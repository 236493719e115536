package policy

// Limit is one rule: how many requests of which kind, per what.
type Limit struct {
	Name string `json:"name"`
	// Requests admitted per window, 0..MaxInteger; 0 refuses everything. With
	// Concurrency it is how many are in progress at the same time.
	// A pointer, since zero is a valid choice and absence is an error.
	Requests *int64 `json:"requests"`
	// Window and Calendar say over which time; exactly one of them is set. With
	// Concurrency, Window is how long a slot outlives a holder that crashed.
	Window    Duration  `json:"window,omitempty"`
	Calendar  *Calendar `json:"calendar,omitempty"`
	Algorithm Algorithm `json:"algorithm,omitempty"`
	Anchor    Anchor    `json:"anchor,omitempty"`
	// Burst is the size of a TokenBucket's bucket; nil means Requests.
	Burst *int64 `json:"burst,omitempty"`
	// Match lists alternatives; none means every request.
	Match []Match `json:"match,omitempty"`
	// Except lists requests that the limit leaves alone.
	Except       []Match      `json:"except,omitempty"`
	Key          []KeyPart    `json:"key,omitempty"`
	OnMissingKey OnMissingKey `json:"onMissingKey,omitempty"`
	// Overrides hold other numbers for named values of a Key of one part. No
	// value is in two of them.
	Overrides     []Override    `json:"overrides,omitempty"`
	Cost          *Cost         `json:"cost,omitempty"`
	Distribution  Distribution  `json:"distribution,omitzero"`
	FailurePolicy FailurePolicy `json:"failurePolicy,omitempty"`
	// Backstop goes with FailureBackstop only; nil means the pod's share,
	// Requests divided by the number of live pods.
	Backstop *Backstop `json:"backstop,omitempty"`
}

// Algorithm is a way of counting.
type Algorithm string

const (
	FixedWindow   Algorithm = "FixedWindow"
	SlidingWindow Algorithm = "SlidingWindow"
	SlidingLog    Algorithm = "SlidingLog"
	TokenBucket   Algorithm = "TokenBucket"
	// Concurrency counts requests in progress, not requests per time.
	Concurrency Algorithm = "Concurrency"
)

// Anchor says when the windows of a FixedWindow begin.
type Anchor string

const (
	// AnchorClock begins windows at whole multiples of their length since 1970.
	AnchorClock Anchor = "Clock"
	// AnchorFirstRequest begins a window with the first request after the last
	// one ended, for each key by itself.
	AnchorFirstRequest Anchor = "FirstRequest"
)

// Calendar makes windows of the calendar's periods. Only a FixedWindow has one.
type Calendar struct {
	Period Period `json:"period"`
	// TimeZone is an IANA name, such as Europe/Berlin, that package calendar
	// knows.
	TimeZone string `json:"timeZone,omitempty"`
}

// Period is a unit of the calendar, in its time zone.
type Period string

const (
	PeriodMinute Period = "Minute"
	PeriodHour   Period = "Hour"
	PeriodDay    Period = "Day"
	// PeriodWeek begins on Monday, as ISO 8601 has it.
	PeriodWeek  Period = "Week"
	PeriodMonth Period = "Month"
	PeriodYear  Period = "Year"
)

// OnMissingKey says what happens to a request that lacks a key's attribute.
type OnMissingKey string

const (
	// MissingShare counts all such requests on one counter.
	MissingShare OnMissingKey = "Share"
	// MissingSkip leaves such requests out of the limit.
	MissingSkip OnMissingKey = "Skip"
	// MissingDeny refuses such requests.
	MissingDeny OnMissingKey = "Deny"
)

// Override is what applies to some values of the key instead of the limit's
// numbers.
type Override struct {
	// Keys are values of the limit's one key part. Those of a clientIP are
	// addresses, each of which stands for its network.
	Keys   []string       `json:"keys"`
	Action OverrideAction `json:"action,omitempty"`
	// Requests is set with OverrideLimit only: 0..MaxInteger.
	Requests *int64 `json:"requests,omitempty"`
	// Burst is the size of a TokenBucket's bucket; nil means the override's
	// Requests.
	Burst *int64 `json:"burst,omitempty"`
}

// OverrideAction says what an override does.
type OverrideAction string

const (
	// OverrideLimit counts with the override's numbers.
	OverrideLimit OverrideAction = "Limit"
	// OverrideExempt leaves the request alone.
	OverrideExempt OverrideAction = "Exempt"
	// OverrideDeny refuses the request.
	OverrideDeny OverrideAction = "Deny"
)

// Cost is what one request takes of the limit; exactly one field is set.
type Cost struct {
	Requests *int64 `json:"requests,omitempty"`
	// Expression is CEL with an integer result of 0 or more.
	Expression string `json:"expression,omitempty"`
}

// Distribution says how the pods count together.
type Distribution struct {
	Mode DistributionMode `json:"mode,omitempty"`
	// MaxIdlePercent of Requests may lie unused in pods: 1..MaxIdlePercent, with
	// Leased only.
	MaxIdlePercent int32 `json:"maxIdlePercent,omitempty"`
	// Interval between exchanges, or MaxOvershootPercent from which it follows,
	// 1..MaxOvershootPercent. With Synced exactly one of them is set after
	// Default, and otherwise none.
	Interval            Duration `json:"interval,omitempty"`
	MaxOvershootPercent int32    `json:"maxOvershootPercent,omitempty"`
}

// DistributionMode is a way of counting together.
type DistributionMode string

const (
	// Exact asks the shared count for every request.
	Exact DistributionMode = "Exact"
	// Leased takes units from the shared count in batches.
	Leased DistributionMode = "Leased"
	// Synced counts in each pod, and exchanges counts at intervals.
	Synced DistributionMode = "Synced"
	// Split gives each live pod an equal part.
	Split DistributionMode = "Split"
)

// FailurePolicy decides when the store cannot answer in time.
type FailurePolicy string

const (
	// FailureBackstop counts in each pod by itself.
	FailureBackstop FailurePolicy = "Backstop"
	FailureAllow    FailurePolicy = "Allow"
	FailureDeny     FailurePolicy = "Deny"
)

// Backstop is the limit that each pod holds by itself while the store cannot
// answer.
type Backstop struct {
	// Requests admitted per window and pod, 1..MaxInteger.
	Requests int64 `json:"requests"`
}
