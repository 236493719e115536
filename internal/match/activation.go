package match

import (
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// activation shows a request to an expression.
type activation struct{ r *Request }

// ResolveName implements interpreter.Activation.
func (a activation) ResolveName(name string) (any, bool) {
	switch name {
	case "request.method":
		return text(a.r.Method), true
	case "request.path":
		return text(a.r.path()), true
	case "request.host":
		return text(a.r.host()), true
	case "request.clientIP":
		if ip := a.r.clientIP(); ip.IsValid() {
			return types.String(ip.String()), true
		}
		return types.String(""), true
	case "request.headers":
		return texts(a.r.headers()), true
	case "request.query":
		return texts(a.r.query()), true
	case "request.cookies":
		return texts(a.r.cookies()), true
	default:
		return nil, false
	}
}

// Parent implements interpreter.Activation.
func (activation) Parent() interpreter.Activation { return nil }

// text is a value of bounded length; a longer one fails the expression.
func text(s string) ref.Val {
	if len(s) > MaxInput {
		return types.WrapErr(errTooLong)
	}
	return types.String(s)
}

// texts are values by name, or an error that fails the expression.
func texts(v *values) ref.Val {
	if v.err != nil {
		return types.WrapErr(v.err)
	}
	return lenientMap{types.NewStringStringMap(types.DefaultTypeAdapter, v.first)}
}

// lenientMap gives "" for a name that is not there, so that
// request.query['dry'] != '1' holds for a request without the parameter and does
// not fail. The operator `in` still tells what is there.
type lenientMap struct{ traits.Mapper }

// Find implements traits.Mapper.
func (m lenientMap) Find(name ref.Val) (ref.Val, bool) {
	if value, found := m.Mapper.Find(name); found {
		return value, true
	}
	return types.String(""), true
}

// Get implements traits.Indexer.
func (m lenientMap) Get(name ref.Val) ref.Val {
	value, _ := m.Find(name)
	return value
}

// headers holds the first value of each header, under its name in lower case.
func (r *Request) headers() *values {
	if r.cachedHeaders == nil {
		r.cachedHeaders = r.collectHeaders()
	}
	return r.cachedHeaders
}

func (r *Request) collectHeaders() *values {
	if len(r.Header) > maxHeaders {
		return &values{err: errTooLong}
	}
	first := make(map[string]string, len(r.Header)+1)
	total := 0
	for name, all := range r.Header {
		if len(all) == 0 {
			continue
		}
		if total += len(name) + len(all[0]); total > MaxInput {
			return &values{err: errTooLong}
		}
		first[strings.ToLower(name)] = all[0]
	}
	if r.Host != "" {
		first["host"] = r.host()
	}
	return &values{first: first}
}
