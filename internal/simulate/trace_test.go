package simulate

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tallyman-dev/tallyman/internal/match"
)

// read returns all requests of a trace, and the error that ended it.
func read(text string) ([]*Request, error) {
	trace := NewTrace("trace.jsonl", strings.NewReader(text))
	var all []*Request
	for {
		r, err := trace.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, r)
	}
}

func TestTraceLines(t *testing.T) {
	defaults := match.Request{Method: "GET", Path: "/", Header: http.Header{}}
	with := func(change func(*match.Request)) match.Request {
		r := defaults
		change(&r)
		return r
	}
	for name, tc := range map[string]struct {
		line string
		want Request
	}{
		"defaults": {`{"at":"0s"}`, Request{At: "0s", Op: Take, Match: defaults}},
		"everything": {`{"at":"1m1.5s","method":"POST","host":"shop.example","path":"/v1/x","query":"a=1",` +
			`"headers":{"x-api-key":"a","X-Plan":["free","pro"]},"clientIP":"10.0.0.1","cost":2,"op":"takeUpTo"}`,
			Request{At: "1m1.5s", Since: 61500 * time.Millisecond, Op: TakeUpTo, Cost: new(int64(2)), Match: match.Request{
				Method: "POST", Host: "shop.example", Path: "/v1/x", RawQuery: "a=1",
				Header:   http.Header{"X-Api-Key": {"a"}, "X-Plan": {"free", "pro"}},
				ClientIP: netip.MustParseAddr("10.0.0.1"),
			}}},
		"cost of nothing": {`{"at":"0s","cost":0,"op":"peek"}`,
			Request{At: "0s", Op: Peek, Cost: new(int64(0)), Match: defaults}},
		"below a microsecond": {`{"at":"1.0000019s"}`,
			Request{At: "1.0000019s", Since: time.Second + time.Microsecond, Op: Take, Match: defaults}},
		"query in the path": {`{"at":"0s","path":"/a?b=c?d"}`, Request{At: "0s", Op: Take,
			Match: with(func(r *match.Request) { r.Path, r.RawQuery = "/a", "b=c?d" })}},
		"query with its mark": {`{"at":"0s","query":"?b=c"}`, Request{At: "0s", Op: Take,
			Match: with(func(r *match.Request) { r.RawQuery = "b=c" })}},
		"host in a header": {`{"at":"0s","headers":{"host":"shop.example"}}`, Request{At: "0s", Op: Take,
			Match: with(func(r *match.Request) { r.Host = "shop.example" })}},
		"50 years":         {`{"at":"438000h"}`, Request{At: "438000h", Since: 438000 * time.Hour, Op: Take, Match: defaults}},
		"null is left out": {`{"at":"0s","method":null,"cost":null,"headers":null}`, Request{At: "0s", Op: Take, Match: defaults}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := read(tc.line)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]*Request{&tc.want}, got,
				cmpopts.IgnoreUnexported(match.Request{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTraceMayHaveEmptyLinesAndNoLastNewline(t *testing.T) {
	all, err := read("\n{\"at\":\"0s\"}\r\n  \n{\"at\":\"2s\"}\n{\"at\":\"1s\"}")
	if err != nil {
		t.Fatal(err)
	}
	var times []string
	for _, r := range all {
		times = append(times, r.At)
	}
	if diff := cmp.Diff([]string{"0s", "2s", "1s"}, times); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
}

func TestInvalidLinesAreNamedWithTheRemedy(t *testing.T) {
	for name, tc := range map[string]struct {
		line string
		want []string
	}{
		"not JSON":            {`at: 1s`, []string{"not a JSON object"}},
		"cut off":             {`{"at":"1s"`, []string{"not a JSON object"}},
		"two objects":         {`{"at":"1s"} {"at":"2s"}`, []string{"not a JSON object"}},
		"a list":              {`["at"]`, []string{"must be a JSON object", "array"}},
		"null":                {`null`, []string{"at is not set"}},
		"unknown field":       {`{"at":"1s","pth":"/"}`, []string{`"pth"`, "path"}},
		"field in other case": {`{"at":"1s","Path":"/"}`, []string{`"Path"`, "path"}},
		"field twice":         {`{"at":"1s","cost":1,"cost":2}`, []string{`"cost"`, "once"}},
		"no time":             {`{"path":"/"}`, []string{"at is not set", `"1.5s"`}},
		"time without unit":   {`{"at":"15"}`, []string{`at is "15"`, `"1.5s"`}},
		"time as a number":    {`{"at":1.5}`, []string{"at must be a string", "number"}},
		"time before start":   {`{"at":"-1s"}`, []string{"before the start"}},
		"time too late":       {`{"at":"438000h0.000001s"}`, []string{"at is", "at most 438000h"}},
		"time beyond numbers": {`{"at":"9999999h"}`, []string{"at is"}},
		"unknown op":          {`{"at":"1s","op":"give"}`, []string{`"give"`, "takeUpTo"}},
		"op in other case":    {`{"at":"1s","op":"Take"}`, []string{`"Take"`, "take"}},
		"negative cost":       {`{"at":"1s","cost":-1}`, []string{"cost is -1", "refund"}},
		"cost above 2^53-1":   {`{"at":"1s","cost":9007199254740992}`, []string{"cost is", "9007199254740991"}},
		"cost above 2^63":     {`{"at":"1s","cost":99999999999999999999}`, []string{"cost must be an integer"}},
		"fraction":            {`{"at":"1s","cost":1.5}`, []string{"cost must be an integer", "1.5"}},
		"cost as a string":    {`{"at":"1s","cost":"1"}`, []string{"cost must be an integer", "string"}},
		"header of a number":  {`{"at":"1s","headers":{"X-A":1}}`, []string{"headers.X-A", "list of strings"}},
		"header of mixed":     {`{"at":"1s","headers":{"X-A":["a",1]}}`, []string{"headers.X-A", "list of strings"}},
		"header of nothing":   {`{"at":"1s","headers":{"X-A":[]}}`, []string{"headers.X-A", "list of strings"}},
		"header twice":        {`{"at":"1s","headers":{"X-A":"a","x-a":"b"}}`, []string{"X-A twice"}},
		"headers as a list":   {`{"at":"1s","headers":["a"]}`, []string{"headers must be an object"}},
		"host twice":          {`{"at":"1s","host":"a","headers":{"Host":"a"}}`, []string{"more than one host"}},
		"query twice":         {`{"at":"1s","path":"/?a=1","query":"a=1"}`, []string{"write it once"}},
		"relative path":       {`{"at":"1s","path":"v1"}`, []string{`path is "v1"`, "slash"}},
		"address with port":   {`{"at":"1s","clientIP":"10.0.0.1:80"}`, []string{"clientIP", "without a port"}},
		"too long":            {`{"at":"1s","path":"/` + strings.Repeat("a", maxLine) + `"}`, []string{"longer than 1048576 bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := read("{\"at\":\"0s\"}\n\n" + tc.line + "\n{\"at\":\"9s\"}\n")
			var fault *LineError
			if !errors.As(err, &fault) || fault.Line != 3 {
				t.Fatalf("the trace ended with %v, want a fault of line 3", err)
			}
			for _, want := range append(tc.want, "trace.jsonl:3: ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if len(err.Error()) > 300 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
			if len(all) != 1 {
				t.Errorf("read %d requests, want the one before the fault", len(all))
			}
		})
	}
}

func TestTraceStaysEndedAfterAFault(t *testing.T) {
	trace := NewTrace("t", strings.NewReader("x\n{\"at\":\"0s\"}\n"))
	_, first := trace.Next()
	if r, err := trace.Next(); r != nil || !errors.Is(err, first) {
		t.Errorf("after %v came %v, %v", first, r, err)
	}
}

// failing is a source that breaks.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestTraceThatCannotBeReadIsNoFaultOfALine(t *testing.T) {
	_, err := NewTrace("t", failing{}).Next()
	var fault *LineError
	if err == nil || errors.As(err, &fault) || !strings.Contains(err.Error(), "broken pipe") {
		t.Errorf("got %v", err)
	}
}

func FuzzTrace(f *testing.F) {
	f.Add([]byte(`{"at":"1.5s","method":"GET","path":"/","headers":{"X-Api-Key":"a"},"clientIP":"10.0.0.1","cost":2,"op":"take"}`))
	f.Add([]byte("\n\n{\"at\":\"0s\",\"headers\":{\"a\":[\"b\"],\"Host\":\"c\"}}\n{"))
	f.Add([]byte("{\"at\":null}\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := read(string(data))
		var fault *LineError
		if err != nil && !errors.As(err, &fault) {
			t.Fatalf("ended with %v", err)
		}
		for _, r := range all {
			if r.Since < 0 || r.Since > maxSince || r.Since%time.Microsecond != 0 || r.Match.Method == "" || r.Match.Path == "" ||
				r.Cost != nil && *r.Cost < 0 {
				t.Errorf("took %+v", r)
			}
		}
		if lines := strings.Count(string(data), "\n") + 1; len(all) > lines {
			t.Errorf("%d requests in %d lines", len(all), lines)
		}
	})
}
