package httplimit

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// Types of problems, as draft-ietf-httpapi-ratelimit-headers-10 registers them.
const (
	quotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	reducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// problem is a problem document (RFC 9457).
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies,omitempty"`
}

// Refuse answers a request that was not admitted, with the headers of
// SetHeaders. It repeats nothing that the client has sent.
//
//   - The answer is as the policy says: its status, and its body or a problem
//     document (RFC 9457).
//   - When the store did not answer, it is 503, whatever the policy says, since
//     the client has done nothing wrong.
//   - A gRPC call gets a trailers-only answer: RESOURCE_EXHAUSTED, or
//     UNAVAILABLE when the store did not answer.
//
// A body of the request that is too long to be read for nothing is not: the
// connection is closed after the answer, in a way that lets the client read it.
func Refuse(w http.ResponseWriter, r *http.Request, d tallyman.Decision) {
	defer prepareLinger(w, r)()
	SetHeaders(w.Header(), d)
	switch {
	case IsGRPC(r):
		refuseGRPC(w, d)
	case isOutage(d):
		writeProblem(w, problem{
			Type: reducedCapacity, Title: "The request cannot be counted at the moment",
			Status: http.StatusServiceUnavailable, Detail: detail(d),
		})
	case d.Response.Body != "":
		write(w, d.Response.StatusCode, d.Response.ContentType, []byte(d.Response.Body))
	default:
		writeProblem(w, problem{
			Type: quotaExceeded, Title: "The request exceeds a limit",
			Status: d.Response.StatusCode, Detail: detail(d), Violated: violated(d.Limits),
		})
	}
}

// isOutage says whether a request was refused since it cannot be counted, which
// is no fault of the client's.
func isOutage(d tallyman.Decision) bool {
	return d.Reason == tallyman.StoreUnavailable || d.Reason == tallyman.BackstopFull
}

// violated are the titles of the limits that refused.
func violated(limits []tallyman.LimitDecision) []string {
	var titles []string
	for i := range limits {
		if l := &limits[i]; !l.Allowed && !l.Shadow {
			titles = append(titles, l.Title)
		}
	}
	return titles
}

// detail is a sentence about a refusal.
func detail(d tallyman.Decision) string {
	switch d.Reason {
	case tallyman.StoreUnavailable:
		return fmt.Sprintf("Limit %q refuses requests that cannot be counted.", d.Limit)
	case tallyman.BackstopFull:
		return fmt.Sprintf("Limit %q cannot count more clients at the moment.", d.Limit)
	case tallyman.KeyDenied:
		return fmt.Sprintf("Limit %q denies this client.", d.Limit)
	case tallyman.KeyMissing:
		return fmt.Sprintf("The request lacks what limit %q counts by.", d.Limit)
	case tallyman.CostExceedsLimit:
		return fmt.Sprintf("The request costs more than limit %q ever admits.", d.Limit)
	default:
		return fmt.Sprintf("Limit %q admits no further request for now.", d.Limit)
	}
}

// refuseGRPC is a trailers-only answer. Its HTTP status is 200: that of the call
// is in Grpc-Status.
func refuseGRPC(w http.ResponseWriter, d tallyman.Decision) {
	const resourceExhausted, unavailable = "8", "14"
	status := resourceExhausted
	if isOutage(d) {
		status = unavailable
	}
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", status)
	h.Set("Grpc-Message", detail(d))
	w.WriteHeader(http.StatusOK)
}

func writeProblem(w http.ResponseWriter, p problem) {
	body, err := json.Marshal(p)
	if err != nil {
		body = nil // not possible: strings and numbers
	}
	write(w, p.Status, "application/problem+json", body)
}

func write(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error means that the client has gone
}
