package v1alpha1

// Override is what applies to some values of a key instead of the limit's
// numbers.
//
// +kubebuilder:validation:XValidation:rule="(self.action == 'Limit') == has(self.requests)",fieldPath=".requests",message="must be set with `action` Limit, and with no other action"
// +kubebuilder:validation:XValidation:rule="self.action == 'Limit' || !has(self.burst)",fieldPath=".burst",message="goes with `action` Limit only: remove `burst`"
type Override struct {
	// keys are the values of the limit's `key`, 1 to 256 of at most 1024
	// characters. An IP address stands for the network that counts together with
	// it, as the prefix lengths of `clientIP` have it.
	// Example: `[acme]`.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Keys []KeyValue `json:"keys,omitempty"`

	// action is what becomes of a request with one of the keys. `Limit` counts it
	// with the numbers of this override. `Exempt` leaves it out of the limit.
	// `Deny` refuses it.
	// Default: `Limit`.
	// +optional
	// +kubebuilder:default=Limit
	Action OverrideAction `json:"action,omitempty"`

	// requests is how many requests are admitted per window for each of the keys,
	// 0 to 9007199254740991. Required with `action: Limit`, and only there.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Requests *int64 `json:"requests,omitempty"`

	// burst is how many requests a full TokenBucket admits at once, from 1 to
	// 9007199254740991. Only with `algorithm: TokenBucket` and `action: Limit`.
	// Default: as many as this override's `requests`.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	Burst *int64 `json:"burst,omitempty"`
}

// KeyValue is a value of a key.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=1024
type KeyValue string

// OverrideAction says what an override does.
//
// +kubebuilder:validation:Enum=Limit;Exempt;Deny
type OverrideAction string

// Distribution says how the pods count together.
//
// +kubebuilder:validation:XValidation:rule="self.mode == 'Leased' || !has(self.maxIdlePercent)",fieldPath=".maxIdlePercent",message="only Leased leaves requests idle: set `mode` to Leased, or remove `maxIdlePercent`"
// +kubebuilder:validation:XValidation:rule="self.mode == 'Synced' || !has(self.interval)",fieldPath=".interval",message="only Synced exchanges counts at an interval: set `mode` to Synced, or remove `interval`"
// +kubebuilder:validation:XValidation:rule="self.mode == 'Synced' || !has(self.maxOvershootPercent)",fieldPath=".maxOvershootPercent",message="only Synced overshoots: set `mode` to Synced, or remove `maxOvershootPercent`"
// +kubebuilder:validation:XValidation:rule="!has(self.interval) || !has(self.maxOvershootPercent)",message="must have at most one of `interval` and `maxOvershootPercent`: the interval follows from the overshoot"
type Distribution struct {
	// mode is the way of counting together.
	// `Exact` asks the shared count for every request: never over the limit, and
	// never a refusal while something is left of it.
	// `Leased` takes shares of the limit from the store ahead of need and decides
	// in the pod: much faster, never over the limit; a part of it may lie idle in
	// one pod while another one refuses. Not with `algorithm: Concurrency`.
	// `Synced` counts in each pod, and exchanges counts at intervals: as fast, and
	// may admit more than the limit between two exchanges. Not with
	// `algorithm: Concurrency` or `SlidingLog`.
	// `Split` gives each live pod an equal part, without the store: inaccurate
	// when pods get uneven traffic.
	// Default: `Exact`.
	// +optional
	// +kubebuilder:default=Exact
	Mode DistributionMode `json:"mode,omitempty"`

	// maxIdlePercent is how much of the limit may lie idle in pods, 1 to 50: the
	// more, the larger the shares and the fewer calls of the store. Only with
	// `mode: Leased`.
	// Default: 10 with `mode: Leased`.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=50
	MaxIdlePercent int32 `json:"maxIdlePercent,omitempty"`

	// interval is the time between two exchanges of counts, from `10ms` to `1m`.
	// Only with `mode: Synced`, and instead of `maxOvershootPercent`.
	// Example: `500ms`.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') || (duration(self) >= duration('10ms') && duration(self) <= duration('1m'))",message="must be between 10ms and 1m"
	Interval Duration `json:"interval,omitempty"`

	// maxOvershootPercent is how much more than the limit may be admitted, 1 to
	// 100: the interval of exchanges follows from it. Only with `mode: Synced`,
	// and instead of `interval`.
	// Default: 10 with `mode: Synced` without `interval`.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxOvershootPercent int32 `json:"maxOvershootPercent,omitempty"`
}

// DistributionMode is a way of counting together.
//
// +kubebuilder:validation:Enum=Exact;Leased;Synced;Split
type DistributionMode string

// FailurePolicy decides when the store cannot answer in time.
//
// +kubebuilder:validation:Enum=Backstop;Allow;Deny
type FailurePolicy string

// Backstop is the limit that each pod holds by itself while the store cannot
// answer.
type Backstop struct {
	// requests is how many requests each pod admits per window, for each value of
	// `key`: 1 to 9007199254740991.
	// Example: `20`.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	Requests int64 `json:"requests,omitempty"`
}
