package compile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

const (
	// maxPodNames bounds the pods that a message names: enough to look at one,
	// in a rollout of thousands.
	maxPodNames = 10
	// maxWhy bounds the words of one pod, or about it, in a message, in bytes.
	maxWhy = 256
)

// Facts are what was observed of the store and of a namespace's pods.
type Facts struct {
	// Published says that the store holds the namespace's definitions.
	Published bool
	// Fault is what went wrong with the store; nil when nothing did. Without
	// Published the definitions could not be published, with it the enforcers
	// could not be asked.
	Fault *Fault
	// Pods are those alive in the namespace.
	Pods []Pod
	// Enforcers have reported to the store lately.
	Enforcers []Enforcer
}

// Fault is a failure of the store, for people who cannot see the manager's log.
type Fault struct {
	// Reason is ReasonStoreUnavailable or ReasonStoreUnauthorized.
	Reason string
	// Message goes on after a colon. It holds no secret and, as long as the cause
	// is the same, no part that changes, or else every retry would write a status.
	Message string
}

// Pod is a live pod.
type Pod struct {
	Name, UID string
	Labels    map[string]string
	// WithoutSidecar says that no sidecar is among its containers. It can still
	// enforce, by the library.
	WithoutSidecar bool
	// Asked says that it is to have one, by its labels or its namespace's.
	Asked bool
	// Reason is why it has none, or why the one that it has does not enforce, if that
	// is known.
	Reason string
	// Bypasses tell of the Services that lead to it past its sidecar.
	Bypasses []string
}

// Enforcer is what a pod says of itself.
type Enforcer struct {
	Pod string
	// Policies has the generation that it enforces of each policy, by name.
	Policies map[string]int64
	// UIDs has the object that this generation is of, by name, where it is known.
	UIDs map[string]string
	// Rejected says why it does not enforce a policy, by name.
	Rejected map[string]string
}

// Status is the policy's next status. It is equal to the present one when
// nothing has changed.
func Status(p *v1alpha1.RateLimitPolicy, v Verdict, f Facts) v1alpha1.RateLimitPolicyStatus {
	status := *p.Status.DeepCopy()
	meta.SetStatusCondition(&status.Conditions, v.Accepted)
	setEvadable(&status.Conditions, p, v.Evadable)
	setBypassed(&status.Conditions, p, v.Definition, f.Pods)
	if v.Definition == nil {
		// What is not accepted has no further story, as in the Gateway API.
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionProgrammed)
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionEnforced)
		status.Enforcers = nil
		return status
	}
	meta.SetStatusCondition(&status.Conditions, programmed(p, f))
	enforced, enforcers := enforced(p, v.Definition, f)
	meta.SetStatusCondition(&status.Conditions, enforced)
	status.Enforcers = enforcers
	return status
}

func programmed(p *v1alpha1.RateLimitPolicy, f Facts) metav1.Condition {
	if !f.Published {
		return condition(p, v1alpha1.ConditionProgrammed, metav1.ConditionFalse, f.Fault.Reason,
			"The manager cannot publish the policy: "+f.Fault.Message)
	}
	return condition(p, v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed,
		fmt.Sprintf("The store holds generation %d", p.Generation))
}

func enforced(p *v1alpha1.RateLimitPolicy, d *policy.Definition, f Facts) (metav1.Condition, *v1alpha1.Enforcers) {
	if f.Fault != nil {
		return condition(p, v1alpha1.ConditionEnforced, metav1.ConditionUnknown, f.Fault.Reason,
			"What the pods enforce is not known, since they report to the store: "+f.Fault.Message), nil
	}
	pods := observe(d, f)
	status, reason := metav1.ConditionTrue, v1alpha1.ReasonEnforced
	switch {
	case !slices.ContainsFunc(pods, reports):
		status, reason = metav1.ConditionFalse, v1alpha1.ReasonNoEnforcers
	case slices.ContainsFunc(pods, isBehind(d.Generation)):
		status, reason = metav1.ConditionFalse, v1alpha1.ReasonPartial
	}
	message, enforcers := summarize(pods, d.Generation)
	return condition(p, v1alpha1.ConditionEnforced, status, reason, message), enforcers
}

// observation is what one pod does about a policy.
type observation struct {
	pod        string
	reported   bool
	generation int64  // that it enforces; 0 for none
	missing    bool   // is its sidecar
	why        string // it enforces none
}

func reports(o observation) bool { return o.reported }

func isBehind(generation int64) func(observation) bool {
	return func(o observation) bool { return o.generation != generation }
}

// observe unites the live pods that the policy selects, which should enforce
// it, with the enforcers that report it: some run outside of pods that the API
// server knows. The result is in the order of names.
func observe(d *policy.Definition, f Facts) []observation {
	pods := map[string]observation{}
	for _, pod := range f.Pods {
		if d.Selects(pod.Labels) {
			pods[pod.Name] = observation{pod: pod.Name, missing: pod.WithoutSidecar, why: pod.Reason}
		}
	}
	for _, e := range f.Enforcers {
		generation, enforces := e.Policies[d.Name]
		if uid, known := e.UIDs[d.Name]; known && uid != d.UID {
			generation = 0 // it is of an object that was deleted
		}
		rejection, rejects := e.Rejected[d.Name]
		if enforces || rejects {
			pods[e.Pod] = observation{pod: e.Pod, reported: true, generation: generation, why: rejection}
		}
	}
	return slices.SortedFunc(maps.Values(pods), func(a, b observation) int { return cmp.Compare(a.pod, b.pod) })
}

// summarize tells who enforces and who does not.
func summarize(pods []observation, generation int64) (string, *v1alpha1.Enforcers) {
	var behind, missing []observation
	for _, o := range pods {
		switch {
		case o.generation == generation:
		case o.missing:
			missing = append(missing, o)
		default:
			behind = append(behind, o)
		}
	}
	total := len(pods)
	current := total - len(behind) - len(missing)
	enforcers := v1alpha1.NewEnforcers(int32(current), int32(total))
	message, colon := fmt.Sprintf("%d/%d pods enforce generation %d", current, total, generation), "; behind: "
	switch {
	case total == 0:
		return "The policy selects no live pod", enforcers
	case !slices.ContainsFunc(pods, reports):
		message, colon = fmt.Sprintf("None of %s runs an enforcer that reports the policy", count(total, "selected pod")), ": "
	}
	if len(behind) > 0 {
		message += colon + list(names(behind), ", ", maxPodNames) + first(behind)
	}
	if len(missing) > 0 {
		message += "; without a sidecar: " + list(names(missing), ", ", maxPodNames) + first(missing)
	}
	return message, enforcers
}

func names(pods []observation) (names []string) {
	for _, o := range pods {
		names = append(names, o.pod)
	}
	return names
}

// first tells why, for the first of the pods of which it is known.
func first(pods []observation) string {
	for _, o := range pods {
		if o.why != "" {
			return fmt.Sprintf("; %s %s: %s", o.pod, o.verb(), cut(o.why, maxWhy))
		}
	}
	return ""
}

// verb goes before why.
func (o *observation) verb() string {
	switch {
	case o.missing:
		return "has none"
	case o.reported:
		return "rejects it"
	default:
		return "is not ready"
	}
}

func condition(p *v1alpha1.RateLimitPolicy, kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: p.Generation}
}
