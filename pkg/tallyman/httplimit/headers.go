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
	var policyBuffer, stateBuffer [256]byte
	policies, states := policyBuffer[:0], stateBuffer[:0]
	for i, l := range limits {
		if i > 0 {
			policies, states = append(policies, ", "...), append(states, ", "...)
		}
		policies = appendItem(policies, l.Title, ";q=", l.Requests, ";w=", wholeSeconds(l.Window))
		states = appendItem(states, l.Title, ";r=", l.Remaining, ";t=", wholeSeconds(l.ResetAfter))
	}
	// As net/http spells RateLimit-Policy and RateLimit, so that it need not.
	h["Ratelimit-Policy"] = []string{string(policies)}
	h["Ratelimit"] = []string{string(states)}
}

// appendItem adds an item of a structured field with two parameters. Titles are names
// of Kubernetes objects and need no escapes.
func appendItem(list []byte, title, first string, a int64, second string, b int64) []byte {
	list = append(append(append(list, '"'), title...), '"')
	list = appendNumber(append(list, first...), a)
	return appendNumber(append(list, second...), b)
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

// appendNumber adds an integer of a structured field, which has at most 15 digits
// (RFC 9651 section 3.3.1).
func appendNumber(text []byte, n int64) []byte {
	return strconv.AppendInt(text, min(n, 999_999_999_999_999), 10)
}

func number(n int64) string { return string(appendNumber(nil, n)) }

func seconds(d time.Duration) string { return number(wholeSeconds(d)) }

func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
