package httplimit

import (
	"encoding/json"
	"maps"
	"net/http"
	"strconv"

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

// Refuse answers a request that was not admitted, as Refusal has it.
//
// A body of the request that is too long to be read for nothing is not: the
// connection is closed after the answer, in a way that lets the client read it.
func Refuse(w http.ResponseWriter, r *http.Request, d tallyman.Decision) {
	defer prepareLinger(w, r)()
	answer := Refusal(d, IsGRPC(r))
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(answer.Body) // an error means that the client has gone
}

// Answer is a response.
type Answer struct {
	StatusCode int
	Header     http.Header
	Body       []byte
}

// Refusal is the answer to a request that was not admitted, with the headers of
// SetHeaders. It repeats nothing that the client has sent.
//
//   - The answer is as the policy says: its status, and its body or a problem
//     document (RFC 9457).
//   - When the store did not answer, it is 503, whatever the policy says, since
//     the client has done nothing wrong.
//   - A gRPC call gets a trailers-only answer: RESOURCE_EXHAUSTED, with a
//     RetryInfo where there is a Retry-After, or UNAVAILABLE when the store did not
//     answer. Its HTTP status is 200: that of the call is in Grpc-Status.
func Refusal(d tallyman.Decision, isGRPC bool) Answer {
	a := Answer{StatusCode: d.Response.StatusCode, Header: http.Header{}}
	SetHeaders(a.Header, d)
	switch {
	case isGRPC:
		a.refuseGRPC(d)
	case d.IsOutage():
		a.StatusCode = http.StatusServiceUnavailable
		a.setProblem(problem{
			Type: reducedCapacity, Title: "The request cannot be counted at the moment",
			Status: a.StatusCode, Detail: d.Detail(),
		})
	case d.Response.Body != "":
		a.setBody(d.Response.ContentType, []byte(d.Response.Body))
	default:
		a.setProblem(problem{
			Type: quotaExceeded, Title: "The request exceeds a limit",
			Status: a.StatusCode, Detail: d.Detail(), Violated: violated(d.Limits),
		})
	}
	return a
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

// Codes of gRPC.
const (
	resourceExhausted = 8
	unavailable       = 14
)

func (a *Answer) refuseGRPC(d tallyman.Decision) {
	code := uint64(resourceExhausted)
	if d.IsOutage() {
		code = unavailable
	}
	a.StatusCode = http.StatusOK
	a.Header.Set("Content-Type", "application/grpc")
	a.Header.Set("Grpc-Status", strconv.FormatUint(code, 10))
	a.Header.Set("Grpc-Message", d.Detail())
	if d.RetryAfter > 0 && d.Response.Headers != tallyman.HeadersNone {
		a.Header.Set("Grpc-Status-Details-Bin", statusDetails(code, d.Detail(), d.RetryAfter))
	}
}

func (a *Answer) setProblem(p problem) {
	body, err := json.Marshal(p)
	if err != nil {
		body = nil // not possible: strings and numbers
	}
	a.setBody("application/problem+json", body)
}

func (a *Answer) setBody(contentType string, body []byte) {
	a.Header.Set("Content-Type", contentType)
	a.Header.Set("X-Content-Type-Options", "nosniff")
	a.Body = body
}
