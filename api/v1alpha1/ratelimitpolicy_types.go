package v1alpha1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RateLimitPolicy limits the rate of requests to the pods that it selects.
// All replicas of a workload count together: a limit of 100 per minute is 100
// per minute, however many pods serve the requests.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=tally,categories=tallyman
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`,description="Whether the policy is valid and its targets exist"
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`,description="Whether the policy is in the store, for the pods to read"
// +kubebuilder:printcolumn:name="Enforced",type=string,JSONPath=`.status.conditions[?(@.type=="Enforced")].status`,description="Whether all selected pods enforce the current generation"
// +kubebuilder:printcolumn:name="Pods",type=string,JSONPath=`.status.enforcers.summary`,description="How many of the selected pods enforce the current generation"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.status!="True")].reason`,description="Why the policy is not accepted, programmed or enforced"
type RateLimitPolicy struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what the policy asks for: which pods, and which limits.
	// +required
	Spec RateLimitPolicySpec `json:"spec"`

	// status is what has become of the policy, as observed facts.
	// +optional
	Status RateLimitPolicyStatus `json:"status,omitzero"`
}

// RateLimitPolicyList is a list of RateLimitPolicy objects.
//
// +kubebuilder:object:root=true
type RateLimitPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []RateLimitPolicy `json:"items"`
}

// RateLimitPolicySpec is what a policy asks for.
//
// +kubebuilder:validation:XValidation:rule="has(self.targetRefs) != has(self.selector)",message="exactly one of `targetRefs` and `selector` must be set: name workloads in `targetRefs`, or choose pods by label with `selector`"
type RateLimitPolicySpec struct {
	// targetRefs names the workloads or Services whose pods enforce the policy.
	// They are in the policy's own namespace. Exactly one of `targetRefs` and
	// `selector` is set.
	// Example: `[{kind: Deployment, name: orders}]`.
	// +optional
	// +listType=map
	// +listMapKey=kind
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	TargetRefs []TargetRef `json:"targetRefs,omitempty"`

	// selector chooses by label the pods of the policy's namespace that enforce
	// the policy. An empty selector, `{}`, chooses all of them. Exactly one of
	// `targetRefs` and `selector` is set.
	// Example: `{matchLabels: {app: orders}}`.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'] && (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="each of `matchExpressions` must have an operator of In, NotIn, Exists or DoesNotExist, and `values` with In and NotIn only"
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// enforcement says whether requests over a limit are refused.
	// `Enforce` refuses them. `Shadow` counts and reports them, and lets them
	// pass: try a policy with it before it can hurt anyone.
	// Default: `Enforce`.
	// +optional
	// +kubebuilder:default=Enforce
	Enforcement Enforcement `json:"enforcement,omitempty"`

	// limits are the rules. A request must pass every limit that it matches; a
	// request that one of them refuses takes nothing of the others. Limits never
	// share a counter. Their names are unique in the policy.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Limits []Limit `json:"limits,omitempty"`

	// storeTimeout is how long a request waits for the shared count, from `1ms`
	// to `10s`. After that each limit's `failurePolicy` decides.
	// Default: `500ms`.
	// +optional
	// +kubebuilder:default="500ms"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') || (duration(self) >= duration('1ms') && duration(self) <= duration('10s'))",message="must be between 1ms and 10s"
	StoreTimeout Duration `json:"storeTimeout,omitempty"`

	// response shapes the answers to requests.
	// +optional
	// +kubebuilder:default={}
	Response Response `json:"response,omitzero"`
}

// TargetRef names a workload or Service of the policy's namespace.
type TargetRef struct {
	// kind of the target. The pods of a `Service` are those that its selector
	// chooses.
	// +required
	// +kubebuilder:validation:Enum=Deployment;StatefulSet;DaemonSet;Service
	Kind string `json:"kind"`

	// name of the target.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Enforcement says whether refusals are carried out.
//
// +kubebuilder:validation:Enum=Enforce;Shadow
type Enforcement string

// Response shapes the answers to requests.
//
// +kubebuilder:validation:XValidation:rule="has(self.body) || !has(self.contentType)",message="`contentType` describes `body`: set `body` too, or remove `contentType`"
type Response struct {
	// statusCode is the HTTP status of a refusal, 400 to 599. A refused gRPC
	// call gets RESOURCE_EXHAUSTED instead. A request that could not be counted
	// and is refused by `failurePolicy: Deny` gets 503 (gRPC: UNAVAILABLE).
	// Default: `429`.
	// +optional
	// +kubebuilder:default=429
	// +kubebuilder:validation:Minimum=400
	// +kubebuilder:validation:Maximum=599
	StatusCode int32 `json:"statusCode,omitempty"`

	// body is the body of a refusal, at most 4096 characters. Without it a
	// refusal has a problem document (RFC 9457, application/problem+json) that
	// names the policy and the limit.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Body string `json:"body,omitempty"`

	// contentType is the media type of `body`.
	// Default: `text/plain; charset=utf-8`.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[ -~]*)?$')",message="must be a media type, such as application/json or text/plain; charset=utf-8"
	ContentType string `json:"contentType,omitempty"`

	// headers chooses the headers that tell clients of the limits, on admitted
	// and refused requests alike.
	// `IETF` is RateLimit-Policy and RateLimit, as of
	// draft-ietf-httpapi-ratelimit-headers-10. `Legacy` is X-RateLimit-Limit,
	// X-RateLimit-Remaining and X-RateLimit-Reset. `Both` is both, `None` is
	// neither. A refusal has Retry-After with all of them but `None`.
	// Default: `IETF`.
	// +optional
	// +kubebuilder:default=IETF
	Headers HeaderStyle `json:"headers,omitempty"`

	// retryAfterJitter spreads clients that are refused: each is told to try
	// again up to so much later than it could, from `1ms` to `1h`, so that they
	// do not all come back at the same time. It is never earlier, and what
	// `headers` tell of a limit does not change.
	// Default: none; Retry-After is the earliest time.
	// Example: `5s`.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') || (duration(self) >= duration('1ms') && duration(self) <= duration('1h'))",message="must be between 1ms and 1h"
	RetryAfterJitter Duration `json:"retryAfterJitter,omitempty"`
}

// HeaderStyle chooses the rate limit headers of responses.
//
// +kubebuilder:validation:Enum=IETF;Legacy;Both;None
type HeaderStyle string

// RateLimitPolicyStatus is what has become of a policy.
type RateLimitPolicyStatus struct {
	// conditions are Accepted (the policy is valid and its targets exist),
	// Programmed (it is in the store) and Enforced (all selected pods enforce
	// it). Evadable is there only while clients can get around the policy by
	// other values of what it counts by, such as a header that nobody checks, and
	// Bypassed only while a Service leads past the sidecar of a selected pod.
	// Each tells in observedGeneration which generation it speaks of.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// enforcers counts the selected pods that enforce the policy. It is absent
	// while this is not known.
	// +optional
	Enforcers *Enforcers `json:"enforcers,omitempty"`
}

// Enforcers counts the selected pods that run an enforcer. NewEnforcers makes
// one whose fields agree.
type Enforcers struct {
	// current is the number of pods that enforce the current generation.
	// +required
	// +kubebuilder:validation:Minimum=0
	Current int32 `json:"current"`

	// total is the number of pods that should.
	// +required
	// +kubebuilder:validation:Minimum=0
	Total int32 `json:"total"`

	// summary is `current/total`, such as `3/3`, for the columns of kubectl get.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Summary string `json:"summary"`
}

// NewEnforcers is the count "current of total".
func NewEnforcers(current, total int32) *Enforcers {
	return &Enforcers{Current: current, Total: total, Summary: fmt.Sprintf("%d/%d", current, total)}
}
