package convert

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// maxPolicyName leaves room for what follows, where Kubernetes allows 253 characters.
const maxPolicyName = 200

// policyName is the name for a domain's policies, with the domain if others need
// to be told from it.
func (o Options) policyName(domain string, oneOfSeveral bool) string {
	own := inName(strings.ToLower(domain), notInPolicyName, "-", "policy")
	switch {
	case o.Name == "":
		return own
	case oneOfSeveral:
		return o.Name + "-" + own
	default:
		return o.Name
	}
}

var (
	notInPolicyName = regexp.MustCompile(`[^a-z0-9-]+`)
	notInLimitName  = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
)

// inName is a text as a part of names, which begin and end with a letter or digit.
func inName(text string, not *regexp.Regexp, instead, fallback string) string {
	return cmp.Or(strings.Trim(not.ReplaceAllString(text, instead), "._-"), fallback)
}

// names are unique.
type names map[string]bool

// unique is the name, or one like it if it is taken, of at most so many characters.
func (n names) unique(name string, most int) string {
	name = name[:min(len(name), most)]
	out := name
	for i := 2; n[out]; i++ {
		suffix := fmt.Sprintf("-%d", i)
		out = name[:min(len(name), most-len(suffix))] + suffix
	}
	n[out] = true
	return out
}

// limit is the name of the limit at the end of a path: its own or, without one, what
// the rate limit service calls it in its metrics.
func (n names) limit(p path) string {
	text := p.last().limit.name
	if text == "" {
		steps := make([]string, len(p))
		for i, s := range p {
			steps[i] = strings.TrimSuffix(s.key+"_"+s.value, "_")
		}
		text = strings.Join(steps, ".")
	}
	text = inName(text, notInLimitName, "-", "limit")
	const room = 5 // for a number behind it
	text = strings.TrimRight(text[:min(len(text), policy.MaxLimitName-room)], "._-")
	return n.unique(text, policy.MaxLimitName)
}

// sortFindings brings findings into the order of the inputs.
func sortFindings(inputs []Input, all []Finding) {
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(indexOf(inputs, a.File), indexOf(inputs, b.File)), cmp.Compare(a.Line, b.Line))
	})
}

func indexOf(inputs []Input, file string) int {
	return slices.IndexFunc(inputs, func(in Input) bool { return in.Name == file })
}
