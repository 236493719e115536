package lint

import (
	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Evadable says how a client gets around a policy by other values of what the limits
// count by; it is empty if one limit bounds clients whatever they write. A limit of 0
// does, too: it refuses all values but those that it names.
func Evadable(spec *policy.Spec, compiled *match.Policy) string {
	for i, l := range compiled.Limits {
		if !l.IsKeyChosen() || *spec.Limits[i].Requests == 0 {
			return ""
		}
	}
	return "All limits count by what clients write into their requests, and who writes something else has a new count. " +
		"Unless something in front checks these values, add a limit whose key is clientIP alone, or one without a key"
}
