package match

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func TestExpressionsSeeTheRequest(t *testing.T) {
	r := &Request{
		Method: "POST", Host: "Shop.example:8080", Path: "/v1//orders", RawQuery: "page=2&dry",
		Header:   http.Header{"X-Plan": {"free", "gold"}, "Cookie": {`session="a1"; b=2`}},
		ClientIP: netip.MustParseAddr("::ffff:10.0.0.1"),
	}
	for source, want := range map[string]bool{
		"request.method == 'POST'":                                       true,
		"request.path == '/v1/orders'":                                   true,
		"request.host == 'shop.example'":                                 true,
		"request.clientIP.startsWith('10.')":                             true,
		"request.headers['x-plan'] == 'free'":                            true,
		"request.headers['host'] == 'shop.example'":                      true,
		"request.query['page'] == '2' && int(request.query['page']) > 1": true,
		"request.cookies['session'] == 'a1'":                             true,
		"request.query['absent'] != '1'":                                 true,
		"request.headers['x-absent'] == ''":                              true,
		"'absent' in request.query":                                      false,
		"'dry' in request.query":                                         true,
		"request.headers.exists(h, h == 'x-plan')":                       true,
		"size(request.cookies) == 2":                                     true,
	} {
		var c compiler
		e := c.expression("x", source, boolResult)
		if len(c.errs) > 0 {
			t.Errorf("%s: %v", source, c.errs)
			continue
		}
		got, fault := evaluate[bool](e, r)
		if fault != nil || got != want {
			t.Errorf("%s is %v, %v", source, got, fault)
		}
	}
}

func TestAnExpressionThatIsWrongIsExplained(t *testing.T) {
	for source, want := range map[string]string{
		"request.metod == 'GET'":               "undeclared reference",
		"request.method ==":                    "Syntax error",
		"request.method":                       "must result in a bool",
		"request.method == 1":                  "no matching overload",
		strings.Repeat("true||", 300) + "true": "more than the 1024 allowed",
	} {
		var c compiler
		c.expression("limits[0].match[0].expression", source, boolResult)
		if len(c.errs) != 1 {
			t.Errorf("%.40s gave %v", source, c.errs)
			continue
		}
		message := c.errs[0].Message
		if !strings.Contains(message, want) || strings.Contains(message, "\n") || len(message) > 400 {
			t.Errorf("%.40s is explained as %q", source, message)
		}
	}
}

func TestAnExpressionThatFailsLeavesTheSafeSide(t *testing.T) {
	r := &Request{Method: "GET", Path: "/", Header: http.Header{"X-Cost": {"many"}}}
	costly := &Request{Method: "GET", Path: "/", Header: http.Header{"X-Cost": {"1"}}}
	for i := range 250 {
		costly.Header["X-"+strings.Repeat("a", i)] = []string{"v"}
	}
	var c compiler
	number := c.expression("x", "int(request.headers['x-cost'])", intResult)
	loop := c.expression("x", "request.headers.all(a, request.headers.all(b, request.headers.all(c, a != b || b != c || true)))", boolResult)
	if len(c.errs) > 0 {
		t.Fatal(c.errs)
	}
	if _, fault := evaluate[int64](number, r); fault == nil {
		t.Error("no fault for a header that is no number")
	}
	if _, fault := evaluate[bool](loop, costly); fault == nil {
		t.Error("a loop over loops was not cut off")
	}
}
