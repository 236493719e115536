package httplimit

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// maxItems bounds the limits that one response tells of. Each takes some 80
// bytes of headers, and common clients and proxies take 8 KiB of headers at most.
const maxItems = 16

// SetHeaders tells of the limits of a decision, each in the style that its
// policy asks for, and of a refusal when to try again. Limits in shadow, and
// those that the store did not answer for, are not told of.
//
//   - RateLimit-Policy and RateLimit, as draft-ietf-httpapi-ratelimit-headers-10
//     has them: q requests per w seconds; r are left, and all are back in t
//     seconds. There is one item for each limit, the one nearest to its end
//     first, and at most 16. A limit is named by LimitDecision.Title. With a
//     burst, r can be more than q.
//   - X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset (seconds
//     from now) of the limit that is nearest to its end.
//   - Retry-After in seconds, at least 1, when the request was refused and there
//     is a time at which it can be admitted.
//
// All seconds are integers and rounded up: who waits so long has waited long
// enough, and a window below a second is told as one second.
func SetHeaders(h http.Header, d tallyman.Decision) {
	if limits := told(d.Limits, tallyman.HeadersIETF); len(limits) > 0 {
		setIETF(h, limits[:min(len(limits), maxItems)])
	}
	if limits := told(d.Limits, tallyman.HeadersLegacy); len(limits) > 0 {
		h.Set("X-RateLimit-Limit", number(limits[0].Capacity))
		h.Set("X-RateLimit-Remaining", number(limits[0].Remaining))
		h.Set("X-RateLimit-Reset", seconds(limits[0].ResetAfter))
	}
	if !d.Allowed && d.RetryAfter > 0 && d.Response.Headers != tallyman.HeadersNone {
		h.Set("Retry-After", seconds(d.RetryAfter))
	}
}

func setIETF(h http.Header, limits []*tallyman.LimitDecision) {
	policies, states := make([]byte, 0, 128), make([]byte, 0, 128) // of one limit or two
	for i, l := range limits {
		if i > 0 {
			policies, states = append(policies, ", "...), append(states, ", "...)
		}
		policies = appendItem(policies, l.Title, ";q=", l.Requests, ";w=", wholeSeconds(l.Window))
		states = appendItem(states, l.Title, ";r=", l.Remaining, ";t=", wholeSeconds(l.ResetAfter))
	}
	// In their canonical form: this is done for every request, and Set would make it anew.
	h["Ratelimit-Policy"] = []string{string(policies)}
	h["Ratelimit"] = []string{string(states)}
}

// appendItem appends a string with two integer parameters. Titles are names of
// Kubernetes objects and need no escapes.
func appendItem(b []byte, title, parameter1 string, value1 int64, parameter2 string, value2 int64) []byte {
	b = append(append(append(b, '"'), title...), '"')
	b = strconv.AppendInt(append(b, parameter1...), bounded(value1), 10)
	return strconv.AppendInt(append(b, parameter2...), bounded(value2), 10)
}

// told are the limits to be told of in a style, the nearest to its end first.
func told(all []tallyman.LimitDecision, style tallyman.HeaderStyle) []*tallyman.LimitDecision {
	var limits []*tallyman.LimitDecision
	for i := range all {
		l := &all[i]
		if l.Counted && !l.Shadow && (l.Headers == style || l.Headers == tallyman.HeadersBoth) {
			limits = append(limits, l)
		}
	}
	slices.SortStableFunc(limits, nearness)
	return limits
}

// nearness orders limits that refuse before those that admit, and then by the
// share that is left.
func nearness(a, b *tallyman.LimitDecision) int {
	if a.Allowed != b.Allowed {
		if b.Allowed {
			return -1
		}
		return 1
	}
	return cmp.Compare(share(a), share(b))
}

// Nearest is the limit that matters most to a client: one that refuses, or else the
// one of which the smallest share is left; nil when nothing is known of any. Limits
// in shadow are none of the client's business.
func Nearest(d tallyman.Decision) *tallyman.LimitDecision {
	var nearest *tallyman.LimitDecision
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Counted && !l.Shadow && (nearest == nil || nearness(l, nearest) < 0) {
			nearest = l
		}
	}
	return nearest
}

func share(l *tallyman.LimitDecision) float64 {
	return float64(l.Remaining) / float64(max(1, l.Capacity))
}

// bounded is an integer that a structured field can have, which is one of at most 15
// digits (RFC 9651 section 3.3.1).
func bounded(n int64) int64 { return min(n, 999_999_999_999_999) }

func number(n int64) string { return strconv.FormatInt(bounded(n), 10) }

func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func seconds(d time.Duration) string { return number(wholeSeconds(d)) }
