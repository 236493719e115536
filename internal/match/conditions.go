package match

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// condition is one thing that a policy.Match states.
type condition func(r *Request) (holds bool, fault *EvaluationError)

// conditions hold together: they are one policy.Match, cheapest first.
type conditions []condition

// none is the place of no alternative.
const none = -1

// firstToHold is the place of the first of the alternatives that holds, or none,
// where a condition that cannot be evaluated counts as onFault.
func firstToHold(alternatives []conditions, r *Request, onFault bool, o *Outcome) int {
	for i, all := range alternatives {
		if all.hold(r, onFault, o) {
			return i
		}
	}
	return none
}

func (all conditions) hold(r *Request, onFault bool, o *Outcome) bool {
	for _, c := range all {
		holds, fault := c(r)
		if fault != nil {
			o.record(fault)
			holds = onFault
		}
		if !holds {
			return false
		}
	}
	return true
}

func (c *compiler) matches(path string, list []policy.Match) []conditions {
	out := make([]conditions, len(list))
	for i := range list {
		out[i] = c.match(fmt.Sprintf("%s[%d]", path, i), &list[i])
	}
	return out
}

func (c *compiler) match(path string, m *policy.Match) conditions {
	var all conditions
	if len(m.Methods) > 0 {
		all = append(all, func(r *Request) (bool, *EvaluationError) {
			return slices.Contains(m.Methods, r.method()), nil
		})
	}
	if m.Path != nil {
		all = append(all, c.pathCondition(path+".path", m.Path))
	}
	for i, h := range m.Headers {
		all = append(all, c.headerCondition(fmt.Sprintf("%s.headers[%d]", path, i), h))
	}
	if m.Expression != "" {
		all = append(all, c.expressionCondition(path+".expression", m.Expression))
	}
	return all
}

func (c *compiler) expressionCondition(path, source string) condition {
	e := c.expression(path, source, boolResult)
	return func(r *Request) (bool, *EvaluationError) { return evaluate[bool](e, r) }
}

func (c *compiler) pathCondition(path string, p *policy.PathMatch) condition {
	value := normalizePath(p.Value)
	switch p.Type {
	case policy.PathExact:
		return func(r *Request) (bool, *EvaluationError) { return r.path() == value, nil }
	case policy.PathPrefix:
		return func(r *Request) (bool, *EvaluationError) { return hasPathPrefix(r.path(), value), nil }
	case policy.PathTemplate:
		t := c.template(path+".value", value)
		return func(r *Request) (bool, *EvaluationError) { return t.matches(r.path()), nil }
	case policy.PathRegularExpression:
		re, tooLong := c.regexp(path+".value", p.Value)
		return func(r *Request) (bool, *EvaluationError) {
			found, err := re.find(r.path())
			if err != nil {
				return false, tooLong
			}
			return found, nil
		}
	default:
		c.errs.Add(path+".type", "%q is unknown: write Exact, Prefix, Template or RegularExpression", p.Type)
		return nil
	}
}

// hasPathPrefix compares whole segments.
func hasPathPrefix(path, prefix string) bool {
	if prefix == "/" {
		return true
	}
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

// template is a path's segments, some of them anySegment.
type template []string

// anySegment stands for one segment that is not empty. It is no segment of a
// path template itself, since braces are for parameters there.
const anySegment = "{}"

func (c *compiler) template(path, value string) template {
	t := template(strings.Split(value[1:], "/"))
	for i, segment := range t {
		switch {
		case len(segment) > 2 && segment[0] == '{' && strings.IndexByte(segment, '}') == len(segment)-1:
			t[i] = anySegment
		case strings.ContainsAny(segment, "{}"):
			c.errs.Add(path, "segment %q is not a parameter: braces enclose a whole segment, such as /v1/users/{id}", segment)
		}
	}
	return t
}

func (t template) matches(path string) bool {
	rest := path[1:]
	for i, want := range t {
		segment, after, more := strings.Cut(rest, "/")
		if fits := want == segment || want == anySegment && segment != ""; !fits || more != (i < len(t)-1) {
			return false
		}
		rest = after
	}
	return true
}

func (c *compiler) headerCondition(path string, h policy.HeaderMatch) condition {
	name := http.CanonicalHeaderKey(h.Name)
	switch h.Type {
	case policy.HeaderExact:
		return func(r *Request) (bool, *EvaluationError) {
			return slices.Contains(r.header(name), h.Value), nil
		}
	case policy.HeaderRegularExpression:
		re, tooLong := c.regexp(path+".value", h.Value)
		return func(r *Request) (bool, *EvaluationError) {
			return anyMatches(re, r.header(name), tooLong)
		}
	default:
		c.errs.Add(path+".type", "%q is unknown: write Exact or RegularExpression", h.Type)
		return nil
	}
}

// anyMatches looks into as many bytes of all the values together as the
// pattern takes of one.
func anyMatches(p pattern, values []string, tooLong *EvaluationError) (bool, *EvaluationError) {
	total := 0
	for _, v := range values {
		if total += len(v); total > p.longest {
			return false, tooLong
		}
		if p.re.MatchString(v) {
			return true, nil
		}
	}
	return false, nil
}

// regexp compiles an expression over a whole value, with the fault to report
// when the value is too long for it.
func (c *compiler) regexp(path, expression string) (pattern, *EvaluationError) {
	p, err := whole(expression)
	if err != nil {
		c.errs.Add(path, "the regular expression %s", shorten(err.Error()))
	}
	return p, tooLong(path)
}
