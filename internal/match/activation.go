package match

import (
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// activation gives an expression the request, each field when it is asked for.
type activation struct{ r *Request }

// ResolveName implements cel.Activation.
func (a activation) ResolveName(name string) (any, bool) {
	switch name {
	case "request.method":
		return text(a.r.method()), true
	case "request.path":
		return text(a.r.path()), true
	case "request.host":
		return text(a.r.host()), true
	case "request.clientIP":
		return a.clientIP(), true
	case "request.headers":
		return a.headers(), true
	case "request.query":
		return parameters(a.r.query()), true
	case "request.cookies":
		return parameters(a.r.cookies()), true
	default:
		return nil, false
	}
}

// Parent implements cel.Activation.
func (activation) Parent() cel.Activation { return nil }

func (a activation) clientIP() ref.Val {
	addr := a.r.clientIP()
	if !addr.IsValid() {
		return types.String("")
	}
	return types.String(addr.String())
}

func (a activation) headers() ref.Val {
	if len(a.r.Header) > maxHeaders {
		return types.WrapErr(errTooLong)
	}
	return stringMap{headerLookup(a)}
}

func parameters(v *values) ref.Val {
	if v.err != nil {
		return types.WrapErr(v.err)
	}
	return stringMap{v}
}

// text is a CEL string, or an error for one that is too long to look into.
func text(s string) ref.Val {
	if len(s) > MaxInput {
		return types.WrapErr(errTooLong)
	}
	return types.String(s)
}
