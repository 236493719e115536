package match

import (
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// everything is a limit that reads all of a request.
func everything(t testing.TB) *Limit {
	t.Helper()
	return compileLimit(t, policy.Limit{
		Match: []policy.Match{
			{
				Methods: []string{"GET", "POST"},
				Path:    &policy.PathMatch{Type: policy.PathTemplate, Value: "/v1/{a}/{b}"},
				Headers: []policy.HeaderMatch{{Name: "X-A", Type: policy.HeaderRegularExpression, Value: "(a|b)*c"}},
			},
			{Path: &policy.PathMatch{Type: policy.PathRegularExpression, Value: "/.*[a-z]{3}"}},
			expressionMatch("request.headers.exists(h, request.headers[h].contains(request.path)) || request.query.a == request.host"),
			expressionMatch("int(request.query['n']) > 3 || request.path.split('/').size() != 7"),
		},
		Except: []policy.Match{expressionMatch("request.cookies.a.matches('^x+$') && request.clientIP == ''")},
		Key: []policy.KeyPart{
			clientIPKey(24, 56), headerKey("X-A"), cookieKey("a"), queryKey("a"), pathKey, methodKey,
			expressionKey("request.path.split('/')[1].lowerAscii()"), expressionKey("string(int(request.headers['x-a']))"),
		},
		Cost: &policy.Cost{Expression: "int(request.query['n']) * 1000000007"},
	})
}

func FuzzEvaluate(f *testing.F) {
	l := everything(f)
	f.Add("GET", "shop.example:80", "/v1/a/b", "a=1&n=5", "abc", "a=xx; b", []byte{192, 0, 2, 7})
	f.Add("", "", "", "", "", "", []byte(nil))
	f.Add("\x00", "[::1", "%2e%2e//;%", "&&=&%=%zz&n=9223372036854775807", "\xff", ";;=;\"", []byte("0123456789abcdef"))
	f.Add("}", ":", "*", "a&n=-1", "{}", "a=\"", []byte{1})
	f.Fuzz(func(t *testing.T, method, host, path, query, header, cookie string, ip []byte) {
		address, _ := netip.AddrFromSlice(ip)
		got := l.Evaluate(&Request{
			Method: method, Host: host, Path: path, RawQuery: query, ClientIP: address,
			Header: http.Header{"X-A": {header, header}, "Cookie": {cookie}, "": {""}},
		})
		if got.Verdict == Count && (got.Key == "" || got.Key[0] == '}' || len(got.Key) > MaxKeyLength) {
			t.Errorf("key %q", got.Key)
		}
		if got.Cost < 0 || got.Cost > policy.MaxInteger {
			t.Errorf("cost %d", got.Cost)
		}
		if _, ok := errors.AsType[*EvaluationError](got.Err); got.Err != nil && !ok {
			t.Errorf("error %v", got.Err)
		}
	})
}

func TestLimitsAreEvaluatedConcurrently(t *testing.T) {
	l := everything(t)
	request := func() *Request {
		return &Request{Method: "GET", Path: "/v1/a/b", RawQuery: "a=1&n=5", Header: http.Header{"X-A": {"abc"}}}
	}
	want := l.Evaluate(request())
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if got := l.Evaluate(request()); got.Key != want.Key || got.Cost != want.Cost {
					t.Errorf("got %+v, want %+v", got, want)
				}
			}
		})
	}
	all.Wait()
}

// typical is what a policy without expressions asks for.
func typical(t testing.TB) *Limit {
	return compileLimit(t, policy.Limit{
		Match: []policy.Match{{Methods: []string{"POST"}, Path: &policy.PathMatch{Value: "/v1/orders"}}},
		Key:   []policy.KeyPart{clientIPKey(32, 64), headerKey("X-Api-Key")},
	})
}

func typicalRequest() Request {
	return Request{
		Method: "POST", Host: "shop.example", Path: "/v1/orders/17", RawQuery: "dry=1",
		Header:   http.Header{"X-Api-Key": {"0123456789abcdef0123456789abcdef"}, "Accept": {"*/*"}},
		ClientIP: netip.MustParseAddr("192.0.2.7"),
	}
}

func TestWithoutExpressionsOnlyTheKeyIsAllocated(t *testing.T) {
	l, r := typical(t), typicalRequest()
	if n := testing.AllocsPerRun(100, func() { l.Evaluate(new(r)) }); n > 2 {
		t.Errorf("%v allocations: one for the request and one for the key are expected", n)
	}
}

func BenchmarkEvaluate(b *testing.B) {
	for _, c := range []struct {
		name  string
		limit *Limit
	}{
		{"typical", typical(b)},
		{"regexp", limitWithMatch(b, policy.Match{Path: &policy.PathMatch{Type: policy.PathRegularExpression, Value: "/v[0-9]+/orders/[^/]+"}})},
		{"query", limitWithKey(b, queryKey("dry"))},
		{"expression", limitWithMatch(b, expressionMatch("request.method == 'POST' && request.query['dry'] != '1'"))},
		{"expression over headers", limitWithMatch(b, expressionMatch("request.headers.exists(h, h.startsWith('x-internal-'))"))},
	} {
		b.Run(c.name, func(b *testing.B) {
			request := typicalRequest()
			b.ReportAllocs()
			for b.Loop() {
				c.limit.Evaluate(new(request))
			}
		})
	}
}
