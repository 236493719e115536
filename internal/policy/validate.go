package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// The forms of names. The CRD's schema has the same expressions.
var (
	limitNameForm   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	contentTypeForm = regexp.MustCompile(`^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[ -~]*)?$`)
)

// Validate returns every fault of a spec after Default, in the order of the
// spec. It holds files and definitions from the store to the rules that the
// CRD's schema holds objects to, and to those that no schema can state. What
// has a language of its own, CEL and regular expressions, is compiled and
// checked by internal/match.
func (s *Spec) Validate() Errors {
	var errs Errors
	s.validateTargets(&errs)
	checkEnum(&errs, "enforcement", s.Enforcement, Enforce, Shadow)
	s.validateLimits(&errs)
	checkDuration(&errs, "storeTimeout", s.StoreTimeout, MinDuration, MaxStoreTimeout, "1ms and 10s")
	s.Response.validate(&errs, "response")
	return errs
}

func (s *Spec) validateTargets(errs *Errors) {
	if (s.TargetRefs == nil) == (s.Selector == nil) {
		errs.Add("", "exactly one of targetRefs and selector must be set: "+
			"name workloads in targetRefs, or choose pods by label with selector")
	}
	if s.TargetRefs != nil {
		checkCount(errs, "targetRefs", len(s.TargetRefs), 1, MaxTargetRefs)
	}
	seen := make(map[TargetRef]bool)
	for i, ref := range s.TargetRefs {
		path := fmt.Sprintf("targetRefs[%d]", i)
		checkEnum(errs, path+".kind", ref.Kind, "Deployment", "StatefulSet", "DaemonSet", "Service")
		checkText(errs, path+".name", ref.Name, 1, MaxTargetName)
		if seen[ref] {
			errs.Add(path, "%s %s is there twice: remove one", ref.Kind, word(ref.Name))
		}
		seen[ref] = true
	}
	if s.Selector != nil {
		s.Selector.validate(errs, "selector")
	}
}

func (s *Selector) validate(errs *Errors, path string) {
	for i, r := range s.MatchExpressions {
		path := fmt.Sprintf("%s.matchExpressions[%d]", path, i)
		checkText(errs, path+".key", r.Key, 1, 317) // prefix/name: 253 + 1 + 63
		checkEnum(errs, path+".operator", r.Operator, OpIn, OpNotIn, OpExists, OpDoesNotExist)
		takesValues := r.Operator == OpIn || r.Operator == OpNotIn
		if takesValues != (len(r.Values) > 0) {
			errs.Add(path+".values", "must be set with In and NotIn, and with no other operator")
		}
	}
}

func (s *Spec) validateLimits(errs *Errors) {
	checkCount(errs, "limits", len(s.Limits), 1, MaxLimits)
	seen := make(map[string]bool)
	for i := range s.Limits {
		l, path := &s.Limits[i], fmt.Sprintf("limits[%d]", i)
		l.validate(errs, path)
		if seen[l.Name] {
			errs.Add(path+".name", "another limit is named %q: give each its own name", shorten(l.Name))
		}
		seen[l.Name] = true
	}
}

func (r *Response) validate(errs *Errors, path string) {
	checkInteger(errs, path+".statusCode", int64(r.StatusCode), MinStatusCode, MaxStatusCode)
	checkText(errs, path+".body", r.Body, 0, MaxBodyLength)
	checkText(errs, path+".contentType", r.ContentType, 0, MaxContentType)
	switch {
	case r.ContentType == "":
	case r.Body == "":
		errs.Add(path+".contentType", "contentType describes body: set body too, or remove contentType")
	case !contentTypeForm.MatchString(r.ContentType):
		errs.Add(path+".contentType", "must be a media type, such as application/json or text/plain; charset=utf-8")
	}
	checkEnum(errs, path+".headers", r.Headers, HeadersIETF, HeadersLegacy, HeadersBoth, HeadersNone)
	if r.RetryAfterJitter != 0 {
		checkDuration(errs, path+".retryAfterJitter", r.RetryAfterJitter, MinDuration, MaxJitter, "1ms and 1h")
	}
}

// checkDuration bounds a duration; bounds are the least and most in words.
func checkDuration(errs *Errors, path string, d, least, most Duration, bounds string) {
	if d < least || d > most {
		errs.Add(path, "must be between %s", bounds)
	}
}

func checkInteger(errs *Errors, path string, n, least, most int64) {
	if n < least || n > most {
		errs.Add(path, "must be between %d and %d, not %d", least, most, n)
	}
}

func checkCount(errs *Errors, path string, n, least, most int) {
	if n < least || n > most {
		errs.Add(path, "must have %d to %d entries, not %d", least, most, n)
	}
}

// checkText bounds a text's length, in characters as the API server counts.
func checkText(errs *Errors, path, text string, least, most int) {
	switch n := utf8.RuneCountInString(text); {
	case n < least:
		errs.Add(path, "must be set")
	case n > most:
		errs.Add(path, "must have at most %d characters, not %d", most, n)
	}
}

func checkEnum[T ~string](errs *Errors, path string, value T, known ...T) {
	if slices.Contains(known, value) {
		return
	}
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	errs.Add(path, "%q is unknown: write one of %s", shorten(string(value)), strings.Join(names, ", "))
}
