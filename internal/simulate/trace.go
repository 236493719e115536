package simulate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	strict "sigs.k8s.io/json"

	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// maxLine bounds a line of a trace, in bytes with its end.
const maxLine = 1 << 20

// maxSince is 50 years: with it, times of counters stay far below 2^53 µs.
const maxSince = 50 * 365 * 24 * time.Hour

// Op is what a line of a trace asks for.
type Op string

const (
	// Take asks for all units or none.
	Take Op = "take"
	// Peek answers as Take would and takes nothing.
	Peek Op = "peek"
	// Refund gives units back, at most those that are counted.
	Refund Op = "refund"
	// TakeUpTo takes as many units as there are, up to the cost.
	TakeUpTo Op = "takeUpTo"
)

var ops = []Op{Take, Peek, Refund, TakeUpTo}

// Request is one line of a trace.
type Request struct {
	// At is the time as the trace has it, and Since what it means: a whole
	// number of microseconds since the start, from 0 to 50 years.
	At    string
	Since time.Duration
	Op    Op
	// Cost in units, 0..policy.MaxInteger, for all limits; nil leaves it to
	// each limit.
	Cost *int64
	// Match is the request as limits look at it.
	Match match.Request
}

// LineError is a fault of a trace.
type LineError struct {
	// Name of the trace and number of the line, from 1.
	Name string
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("%s:%d: %v", e.Name, e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// Trace reads requests, one JSON object a line. Empty lines say nothing.
type Trace struct {
	name  string
	lines *bufio.Reader
	line  int
	end   error
}

// NewTrace reads from in. The name is for errors.
func NewTrace(name string, in io.Reader) *Trace {
	return &Trace{name: name, lines: bufio.NewReaderSize(in, maxLine)}
}

// Next is the next request, or io.EOF after the last. A line that is not valid
// is a *LineError; it ends the trace.
func (t *Trace) Next() (*Request, error) {
	for t.end == nil {
		var line []byte
		line, t.end = t.lines.ReadSlice('\n')
		t.line++
		if errors.Is(t.end, bufio.ErrBufferFull) {
			t.end = t.fault(fmt.Errorf("the line is longer than %d bytes: one request is one line", maxLine))
			break
		}
		if t.end != nil && !errors.Is(t.end, io.EOF) {
			t.end = fmt.Errorf("read %s: %w", t.name, t.end)
			break
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		r, err := parseLine(line)
		if err != nil {
			t.end = t.fault(err)
			break
		}
		return r, nil
	}
	return nil, t.end
}

func (t *Trace) fault(err error) error { return &LineError{t.name, t.line, err} }

// waits says that the next request may have to be waited for.
func (t *Trace) waits() bool { return t.lines.Buffered() == 0 }

// line is a request as it is written.
type line struct {
	At       *string        `json:"at"`
	Method   string         `json:"method"`
	Host     string         `json:"host"`
	Path     string         `json:"path"`
	Query    *string        `json:"query"`
	Headers  map[string]any `json:"headers"`
	ClientIP string         `json:"clientIP"`
	Cost     *int64         `json:"cost"`
	Op       Op             `json:"op"`
}

// forms say how each field is written, for errors about its type.
var forms = map[string]string{
	"at":       `a string with a duration since the start, such as "1.5s"`,
	"method":   `a string such as "GET"`,
	"host":     `a string such as "shop.example"`,
	"path":     `a string such as "/v1/orders"`,
	"query":    `a string such as "page=2"`,
	"headers":  `an object such as {"X-Api-Key": "a"}`,
	"clientIP": `a string such as "10.0.0.1"`,
	"cost":     "an integer of 0 or more",
	"op":       "one of the strings " + listOps(),
}

func listOps() string {
	names := make([]string, len(ops))
	for i, op := range ops {
		names[i] = string(op)
	}
	return strings.Join(names, ", ")
}

func parseLine(text []byte) (*Request, error) {
	var l line
	if err := decode(text, &l); err != nil {
		return nil, err
	}
	r := &Request{Op: Take, Cost: l.Cost}
	for _, read := range []func(*line) error{r.readTime, r.readOp, r.readTarget, r.readHeaders, r.readClientIP} {
		if err := read(&l); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// decode is strict: names have to be known, in their own case, and only once.
func decode(text []byte, l *line) error {
	faults, err := strict.UnmarshalStrict(text, l)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		form, known := forms[wrong.Field]
		if !known {
			return fmt.Errorf("the line must be a JSON object, not %s", shorten(wrong.Value))
		}
		return fmt.Errorf("%s must be %s, not %s", wrong.Field, form, shorten(wrong.Value))
	}
	if err != nil {
		return fmt.Errorf("the line is not a JSON object: %w", err)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%s; the fields are %s, each once", shorten(faults[0].Error()),
			strings.Join(slices.Sorted(maps.Keys(forms)), ", "))
	}
	return nil
}

func (r *Request) readTime(l *line) error {
	if l.At == nil {
		return fmt.Errorf("at is not set: write %s", forms["at"])
	}
	since, err := time.ParseDuration(*l.At)
	if err != nil {
		return fmt.Errorf("at is %q: write %s", shorten(*l.At), forms["at"])
	}
	if since < 0 {
		return fmt.Errorf("at is %q, before the start: write 0s or more", shorten(*l.At))
	}
	if since > maxSince {
		return fmt.Errorf("at is %q: write at most %.0fh, which is 50 years", shorten(*l.At), maxSince.Hours())
	}
	r.At, r.Since = *l.At, since.Truncate(time.Microsecond)
	return nil
}

func (r *Request) readOp(l *line) error {
	if l.Op != "" {
		r.Op = l.Op
	}
	if !slices.Contains(ops, r.Op) {
		return fmt.Errorf("op is %q: write %s", shorten(string(r.Op)), forms["op"])
	}
	if r.Cost != nil && (*r.Cost < 0 || *r.Cost > policy.MaxInteger) {
		return fmt.Errorf("cost is %d: write %s and at most %d; to give units back, write \"op\":\"refund\"",
			*r.Cost, forms["cost"], int64(policy.MaxInteger))
	}
	return nil
}

// readTarget takes a query in the path as well, as a URL has it.
func (r *Request) readTarget(l *line) error {
	r.Match.Method, r.Match.Host, r.Match.Path = "GET", l.Host, "/"
	if l.Method != "" {
		r.Match.Method = l.Method
	}
	path, query := match.SplitTarget(l.Path)
	if path != "" {
		r.Match.Path = path
	}
	if !strings.HasPrefix(r.Match.Path, "/") && r.Match.Path != "*" {
		return fmt.Errorf("path is %q: it begins with a slash; the host goes into host", shorten(l.Path))
	}
	if l.Query != nil {
		if query != "" {
			return errors.New("path has a query, and query is set too: write it once")
		}
		query = strings.TrimPrefix(*l.Query, "?")
	}
	r.Match.RawQuery = query
	return nil
}

func (r *Request) readHeaders(l *line) error {
	r.Match.Header = make(http.Header, len(l.Headers))
	for _, name := range slices.Sorted(maps.Keys(l.Headers)) {
		values, ok := headerValues(l.Headers[name])
		if !ok {
			return fmt.Errorf("headers.%s must be a string or a list of strings", shorten(name))
		}
		canonical := http.CanonicalHeaderKey(name)
		if _, taken := r.Match.Header[canonical]; taken {
			return fmt.Errorf("headers has %s twice: write its values as one list", shorten(canonical))
		}
		r.Match.Header[canonical] = values
	}
	return r.moveHost()
}

// headerValues are a string or strings.
func headerValues(value any) (values []string, ok bool) {
	if one, ok := value.(string); ok {
		return []string{one}, true
	}
	list, ok := value.([]any)
	if !ok || len(list) == 0 {
		return nil, false
	}
	for _, v := range list {
		text, ok := v.(string)
		if !ok {
			return nil, false
		}
		values = append(values, text)
	}
	return values, true
}

// moveHost puts a Host header where servers put it.
func (r *Request) moveHost() error {
	hosts := r.Match.Header["Host"]
	if len(hosts) == 0 {
		return nil
	}
	if r.Match.Host != "" || len(hosts) > 1 {
		return errors.New("there is more than one host: write either host or headers.Host")
	}
	r.Match.Host = hosts[0]
	delete(r.Match.Header, "Host")
	return nil
}

func (r *Request) readClientIP(l *line) error {
	if l.ClientIP == "" {
		return nil
	}
	addr, err := netip.ParseAddr(l.ClientIP)
	if err != nil {
		return fmt.Errorf("clientIP is %q: write an IPv4 or IPv6 address without a port", shorten(l.ClientIP))
	}
	r.Match.ClientIP = addr
	return nil
}

// shorten cuts what users wrote to a length fit for a message.
func shorten(s string) string {
	const limit = 64
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
