package limiter

import (
	"strconv"
	"strings"
)

// KeyBase is the part that all counters of a limit have in common:
//
//	prefix:c:namespace:policy:limit:<algorithm><window in µs>:
//
// The namespace comes first, so that an ACL pattern can fence it. Algorithm and
// window are part of it, so that changing them starts anew; requests and burst
// are not, so that changing them keeps what is used.
//
// The names are those of Kubernetes objects and of limits, which have no colon
// and no brace; this is what keeps the counters of different limits apart.
func KeyBase(prefix, namespace, policyName, limitName string, r *Rule) string {
	window := strconv.FormatInt(r.limit.Window.Microseconds(), 10)
	if r.limit.Calendar != nil {
		window = r.limit.Calendar.String()
	}
	return strings.Join([]string{prefix, "c", namespace, policyName, limitName, string(r.code()) + window, ""}, ":")
}

// CounterKey is the key of the counter that a request's key values have under a
// limit. The tag encodes the values: it is not empty, does not start with a
// closing brace, and different values have different tags. It is Redis
// Cluster's hash tag as well, so that limits with the same key values are
// decided in one call.
func CounterKey(base, tag string) string {
	return base + "{" + tag + "}"
}
