package sidecar

import (
	"context"
	_ "embed" // the description of the API
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/tallyman-dev/tallyman/internal/respond"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

// maxCheckBody bounds a check's body, in bytes.
const maxCheckBody = 64 << 10

// checkRequest describes a request that somebody else serves.
type checkRequest struct {
	Method string `json:"method"` // GET if empty
	Host   string `json:"host"`
	// Path with or without a query, escaped as it was sent; / if empty.
	Path    string         `json:"path"`
	Headers requestHeaders `json:"headers"`
	// ClientIP is believed: who may ask is trusted.
	ClientIP string `json:"clientIP"`
}

// requestHeaders are by name, in any case. The value of each is one string, or a list.
type requestHeaders map[string][]string

// UnmarshalJSON implements json.Unmarshaler.
func (h *requestHeaders) UnmarshalJSON(data []byte) error {
	var values map[string]json.RawMessage
	if json.Unmarshal(data, &values) != nil || values == nil {
		return errors.New("headers must be an object, or be left out")
	}
	*h = make(requestHeaders, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all, ok := stringsIn(values[name])
		if !ok {
			return fmt.Errorf("headers[%.80q] must be a string or a list of strings, or be left out", name)
		}
		(*h)[name] = all
	}
	return nil
}

// stringsIn reads a string, or a list of them. Pointers tell null from "".
func stringsIn(data []byte) (list []string, ok bool) {
	var one *string
	if json.Unmarshal(data, &one) == nil && one != nil {
		return []string{*one}, true
	}
	var all []*string
	if json.Unmarshal(data, &all) != nil || all == nil {
		return nil, false
	}
	for _, s := range all {
		if s == nil {
			return nil, false
		}
		list = append(list, *s)
	}
	return list, true
}

// checkResponse is a decision. Its status is 200 whatever was decided: the
// question was answered.
type checkResponse struct {
	Allowed bool            `json:"allowed"`
	Reason  tallyman.Reason `json:"reason,omitempty"`
	// Policy and Limit that refused.
	Policy string `json:"policy,omitempty"`
	Limit  string `json:"limit,omitempty"`
	// RetryAfterMs is when the same request can be admitted; absent when it was
	// admitted, and when that is not known or will never be.
	RetryAfterMs int64        `json:"retryAfterMs,omitempty"`
	Degraded     bool         `json:"degraded,omitempty"`
	Limits       []checkLimit `json:"limits"`
	// StatusCode is the one that the policy wants a refusal to have.
	StatusCode int `json:"statusCode,omitempty"`
	// Headers tell the client of its limits, in the style that the policies
	// want.
	Headers map[string]string `json:"headers,omitempty"`
}

// checkLimit is what one limit says.
type checkLimit struct {
	Policy   string          `json:"policy"`
	Limit    string          `json:"limit"`
	Allowed  bool            `json:"allowed"`
	Reason   tallyman.Reason `json:"reason,omitempty"`
	Shadow   bool            `json:"shadow,omitempty"`
	Requests int64           `json:"requests"`
	Capacity int64           `json:"capacity"`
	WindowMs int64           `json:"windowMs"`
	// Remaining and ResetAfterMs are absent when the store did not answer.
	Remaining    *int64 `json:"remaining,omitempty"`
	ResetAfterMs *int64 `json:"resetAfterMs,omitempty"`
}

// openAPI describes routes.
//
//go:embed openapi.yaml
var openAPI []byte

// newCheckAPI serves decisions to those who enforce them themselves.
func newCheckAPI(d doors, trustedHops int, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range routes(d, trustedHops, log) {
		mux.Handle(pattern, handler)
	}
	return mux
}

func routes(d doors, trustedHops int, log *slog.Logger) map[string]http.Handler {
	return map[string]http.Handler{
		"POST /v1/check":     checkHandler(d.check.Admit),
		"POST /v1/peek":      checkHandler(d.check.Peek),
		"POST /v1/reserve":   reserveHandler(d.check),
		"POST /v1/settle":    settleHandler(d.check.Limiter),
		"POST /v1/refund":    refundHandler(d.check.Limiter),
		"GET /v1/auth":       newForwardAuth(d.forwardAuth, trustedHops, false, log),
		"GET /v1/auth/nginx": newForwardAuth(d.forwardAuth, trustedHops, true, log),
		"GET /v1/openapi.yaml": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/yaml")
			_, _ = w.Write(openAPI) // an error means that the client has gone
		}),
	}
}

func checkHandler(decide func(context.Context, tallyman.Request) tallyman.Decision) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		request, ok := read(w, r, &checkRequest{})
		if !ok {
			return
		}
		d := decide(r.Context(), request)
		d.Release() // nobody tells when the request has ended
		respond.JSON(w, describe(d))
	}
}

// question is what a body is read into.
type question interface {
	// request is the one that the question is about, when all of it is valid.
	request() (tallyman.Request, error)
}

// read reads a question. What is none it answers, and ok is false.
func read(w http.ResponseWriter, r *http.Request, q question) (request tallyman.Request, ok bool) {
	request, err := parse(bounded(w, r), q)
	if err != nil {
		refuseBody(w, err)
	}
	return request, err == nil
}

// parse reads a question, all of which has to be valid.
func parse(body io.Reader, q question) (tallyman.Request, error) {
	if err := decode(body, q); err != nil {
		return tallyman.Request{}, err
	}
	return q.request()
}

// bounded is a request's body, as far as it is read.
func bounded(w http.ResponseWriter, r *http.Request) io.Reader {
	return http.MaxBytesReader(w, r.Body, maxCheckBody)
}

// decode reads one JSON object strictly: a misspelt field would be a request that
// the policies do not see.
func decode(body io.Reader, into any) error {
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&into); err != nil {
		return fmt.Errorf("the body is not understood: %w", err)
	}
	if into == nil { // which is what null makes of an interface
		return errors.New("the body is not understood: it is null, and must be an object")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one JSON document in the body")
	}
	return nil
}

// refuseBody tells what is wrong with a body.
func refuseBody(w http.ResponseWriter, err error) {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		respond.Problem(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than %d bytes", tooLarge.Limit))
		return
	}
	respond.Problem(w, http.StatusBadRequest, err.Error())
}

func (c *checkRequest) request() (tallyman.Request, error) {
	r := tallyman.Request{Method: c.Method, Host: c.Host, Header: http.Header{}}
	if r.Method == "" {
		r.Method = http.MethodGet
	}
	if c.Path == "" {
		c.Path = "/"
	}
	if c.Path[0] != '/' {
		return r, fmt.Errorf("path must start with a slash, such as /v1/orders?page=2, not %.80q", c.Path)
	}
	r.Path, r.RawQuery = tallyman.SplitTarget(c.Path)
	for name, values := range c.Headers {
		for _, value := range values {
			r.Header.Add(name, value)
		}
	}
	if c.ClientIP == "" {
		return r, nil
	}
	ip, err := netip.ParseAddr(c.ClientIP)
	if err != nil {
		return r, fmt.Errorf("clientIP must be an address without a port, such as 10.0.0.1, not %.80q", c.ClientIP)
	}
	r.ClientIP = ip
	return r, nil
}

func describe(d tallyman.Decision) checkResponse {
	out := checkResponse{
		Allowed: d.Allowed, Reason: d.Reason, Policy: d.Policy, Limit: d.Limit,
		RetryAfterMs: milliseconds(d.RetryAfter), Degraded: d.Degraded,
		Limits:     make([]checkLimit, len(d.Limits)),
		StatusCode: d.Response.StatusCode,
		Headers:    map[string]string{},
	}
	for i := range d.Limits {
		out.Limits[i] = describeLimit(&d.Limits[i])
	}
	headers := http.Header{}
	httplimit.SetHeaders(headers, d)
	for name := range headers {
		out.Headers[name] = headers.Get(name)
	}
	return out
}

func describeLimit(l *tallyman.LimitDecision) checkLimit {
	out := checkLimit{
		Policy: l.Policy, Limit: l.Limit, Allowed: l.Allowed, Reason: l.Reason, Shadow: l.Shadow,
		Requests: l.Requests, Capacity: l.Capacity, WindowMs: milliseconds(l.Window),
	}
	if l.Counted {
		out.Remaining, out.ResetAfterMs = new(l.Remaining), new(milliseconds(l.ResetAfter))
	}
	return out
}

// milliseconds rounds up, so that who waits so long has waited long enough.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
