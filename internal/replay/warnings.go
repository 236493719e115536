package replay

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tallyman-dev/tallyman/internal/accesslog"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Warnings says which limits look at what a log does not tell, so that their
// figures are not what they would have been.
func Warnings(policies []policy.Definition, fields accesslog.Fields) []string {
	var all []string
	for i := range policies {
		p := &policies[i]
		for j := range p.Spec.Limits {
			l := &p.Spec.Limits[j]
			if missing := missingOf(l, fields); len(missing) > 0 {
				all = append(all, fmt.Sprintf("limit %q of policy %q looks at what the log does not have, and finds it missing in all requests: %s",
					l.Name, p.Name, strings.Join(missing, ", ")))
			}
			if l.Algorithm == policy.Concurrency {
				all = append(all, fmt.Sprintf("limit %q of policy %q counts requests in progress, and a log does not say when they end: each is taken to last for the limit's whole window",
					l.Name, p.Name))
			}
		}
	}
	return all
}

// missingOf lists what a limit looks at and the log does not have, without
// repetitions.
func missingOf(l *policy.Limit, fields accesslog.Fields) []string {
	m := missing{fields: fields}
	for _, list := range [][]policy.Match{l.Match, l.Except} {
		for i := range list {
			for _, h := range list[i].Headers {
				m.header(h.Name)
			}
			m.check(len(list[i].Methods) > 0, fields.Method, "method")
			m.check(list[i].Path != nil, fields.Path, "path")
			m.expression(list[i].Expression)
		}
	}
	for i := range l.Key {
		m.keyPart(&l.Key[i])
	}
	if l.Cost != nil {
		m.expression(l.Cost.Expression)
	}
	return m.names
}

// missing collects names.
type missing struct {
	fields accesslog.Fields
	names  []string
}

func (m *missing) check(needed, there bool, name string) {
	if needed && !there && !slices.Contains(m.names, name) {
		m.names = append(m.names, name)
	}
}

func (m *missing) header(name string) {
	canonical := http.CanonicalHeaderKey(name)
	there := slices.Contains(m.fields.Headers, canonical) || canonical == "Host" && m.fields.Host
	m.check(true, there, "header "+canonical)
}

func (m *missing) keyPart(k *policy.KeyPart) {
	m.check(k.ClientIP != nil, m.fields.ClientIP, "clientIP")
	m.check(k.Method != nil, m.fields.Method, "method")
	m.check(k.Path != nil, m.fields.Path, "path")
	if k.Header != nil {
		m.header(k.Header.Name)
	}
	if k.Cookie != nil {
		m.check(true, m.hasCookies(), "cookie "+k.Cookie.Name)
	}
	m.expression(k.Expression)
}

func (m *missing) hasCookies() bool { return slices.Contains(m.fields.Headers, "Cookie") }

// lookedAt finds what an expression looks at: an attribute, and of headers a name
// if it is written there.
var lookedAt = regexp.MustCompile(`request\.(\w+)(?:\[\s*['"]([^'"]+)['"]\s*\])?`)

func (m *missing) expression(source string) {
	for _, found := range lookedAt.FindAllStringSubmatch(source, -1) {
		switch attribute, name := found[1], found[2]; attribute {
		case "headers":
			if name != "" {
				m.header(name)
			} else {
				m.check(true, false, "headers other than "+strings.Join(m.fields.Headers, ", "))
			}
		case "cookies":
			m.check(true, m.hasCookies(), "cookies")
		case "method":
			m.check(true, m.fields.Method, "method")
		case "path":
			m.check(true, m.fields.Path, "path")
		case "host":
			m.check(true, m.fields.Host, "host")
		case "clientIP":
			m.check(true, m.fields.ClientIP, "clientIP")
		}
	}
}

// largeStep is how far times can go back in a log because servers write a line when
// a request ends.
const largeStep = time.Minute

// timeWarnings are about times that are out of order by far.
func (r *Replay) timeWarnings() []string {
	step := time.Duration(r.largestStep) * time.Microsecond
	if step <= largeStep {
		return nil
	}
	return []string{fmt.Sprintf("the log's time goes back by up to %v: write the parts of a log in the order of their times", step.Round(time.Second))}
}
