package tallyman

import (
	"fmt"
	"time"

	"github.com/tallyman-dev/tallyman/internal/limiter"
)

// Reason says why a request, or one limit of it, was decided as it was. The
// empty reason is the ordinary one of a request that is admitted.
type Reason string

const (
	// LimitExceeded means that the units are used up for now.
	LimitExceeded Reason = "LimitExceeded"
	// CostExceedsLimit means that the request can never be admitted: there is
	// no time at which to try again.
	CostExceedsLimit Reason = "CostExceedsLimit"
	// KeyMissing means that the request lacks an attribute of the limit's key
	// and the limit says onMissingKey: Deny.
	KeyMissing Reason = "KeyMissing"
	// KeyDenied means that an override of the limit denies the request's key.
	KeyDenied Reason = "KeyDenied"
	// BackstopFull means that the store did not answer, and that this process
	// counts as many keys by itself as it can: the request's is not among them.
	BackstopFull Reason = "BackstopFull"
	// StoreUnavailable means that the store did not answer in time, so that
	// the limits' failurePolicy decided.
	StoreUnavailable Reason = "StoreUnavailable"
	// DefinitionsUnknown means that no definitions have been read yet, so that
	// there was nothing to enforce. See Limiter.Ready.
	DefinitionsUnknown Reason = "DefinitionsUnknown"
)

// Decision is the answer to one request.
type Decision struct {
	Allowed bool
	// Reason of a refusal, or of a degraded decision.
	Reason Reason
	// Policy and Limit are those that refused. When several did, they are
	// those that the client has to wait for longest.
	Policy, Limit string
	// RetryAfter is the time until the same request can be admitted at the
	// earliest, if nobody else takes units, and what the policy's
	// retryAfterJitter adds to it at random; 0 when it is allowed or when there is
	// no such time.
	RetryAfter time.Duration
	// Degraded decisions were made without the store or the definitions.
	Degraded bool
	// Limits are the limits that the request met, in the order of the
	// policies' names and then of their specs.
	Limits []LimitDecision
	// Response is how the policy that refused wants the refusal to look.
	Response Response

	release func()
}

// Release tells that an admitted request has ended, so that the slots that it
// holds of Concurrency limits come free. Without it they are held for as long as
// the Limiter lives. It does nothing for other decisions, and the second time.
func (d Decision) Release() {
	if d.release != nil {
		d.release()
	}
}

// IsOutage says whether a request was refused since it cannot be counted, which is
// no fault of the client's.
func (d Decision) IsOutage() bool {
	return !d.Allowed && (d.Reason == StoreUnavailable || d.Reason == BackstopFull)
}

// Detail is a sentence about a refusal, fit for clients: it repeats nothing that
// they have sent.
func (d Decision) Detail() string {
	switch d.Reason {
	case StoreUnavailable:
		return fmt.Sprintf("Limit %q refuses requests that cannot be counted.", d.Limit)
	case BackstopFull:
		return fmt.Sprintf("Limit %q cannot count more clients at the moment.", d.Limit)
	case KeyDenied:
		return fmt.Sprintf("Limit %q denies this client.", d.Limit)
	case KeyMissing:
		return fmt.Sprintf("The request lacks what limit %q counts by.", d.Limit)
	case CostExceedsLimit:
		return fmt.Sprintf("The request costs more than limit %q ever admits.", d.Limit)
	default:
		return fmt.Sprintf("Limit %q admits no further request for now.", d.Limit)
	}
}

// LimitDecision is one limit's part in a decision.
type LimitDecision struct {
	Policy, Limit string
	// Title is what clients know the limit by: its name, or policy/limit when
	// more than one policy is in effect.
	Title string

	// Requests per Window is the limit; Capacity is the most units that can be
	// had at once, which is the burst of a TokenBucket and Requests otherwise.
	Requests, Capacity int64
	Window             time.Duration

	// Allowed is this limit's own answer. Units are taken only when every
	// enforced limit allows.
	Allowed bool
	Reason  Reason
	// Shadow limits count and report, and never refuse.
	Shadow bool

	// Counted says that the limit was asked and that the store answered, so that
	// the figures below are known.
	Counted bool
	// Remaining units after the decision, 0..Capacity.
	Remaining int64
	// RetryAfter is as in Decision, for this limit alone and without a jitter.
	RetryAfter time.Duration
	// ResetAfter is the time until all units are there again.
	ResetAfter time.Duration

	// Headers is how the policy wants its figures told to clients.
	Headers HeaderStyle
}

// numbersOf takes over what the limit is.
func (d *LimitDecision) numbersOf(r *limiter.Rule) {
	d.Requests, d.Capacity, d.Window = r.Limit().Requests, r.Capacity(), r.Window(time.Now())
}

// answer takes over what the store said.
func (d *LimitDecision) answer(r limiter.Result) {
	d.Counted = !r.Unknown
	d.Allowed, d.Reason = r.Allowed, Reason(r.Reason)
	d.Remaining, d.RetryAfter, d.ResetAfter = r.Remaining, r.RetryAfter, r.ResetAfter
}

// refuses says whether the limit stands in the request's way.
func (d *LimitDecision) refuses() bool { return !d.Allowed && !d.Shadow }

// HeaderStyle chooses the rate limit headers of responses.
type HeaderStyle string

const (
	// HeadersIETF is RateLimit-Policy and RateLimit of
	// draft-ietf-httpapi-ratelimit-headers-10.
	HeadersIETF HeaderStyle = "IETF"
	// HeadersLegacy is X-RateLimit-Limit, -Remaining and -Reset.
	HeadersLegacy HeaderStyle = "Legacy"
	// HeadersBoth is IETF and Legacy.
	HeadersBoth HeaderStyle = "Both"
	// HeadersNone tells clients nothing but the status.
	HeadersNone HeaderStyle = "None"
)

// Response shapes the answer to a refused request.
type Response struct {
	// StatusCode is an HTTP status, 429 unless the policy says otherwise.
	StatusCode int
	// Body replaces the problem+json document when it is not empty.
	Body        string
	ContentType string
	Headers     HeaderStyle
}
