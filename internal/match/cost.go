package match

import "github.com/tallyman-dev/tallyman/internal/policy"

// cost is what a request takes: a number, or an expression's result.
type cost struct {
	fixed      int64
	expression *expression
}

func (c *compiler) cost(path string, from *policy.Cost) cost {
	switch {
	case from == nil:
		return cost{fixed: 1}
	case from.Expression != "":
		return cost{expression: c.expression(path+".expression", from.Expression, intResult)}
	case from.Requests != nil:
		return cost{fixed: *from.Requests}
	default:
		c.errs.Add(path, "is empty: set requests or expression")
		return cost{}
	}
}

// of is 0..policy.MaxInteger. A cost that cannot be told is that of an
// ordinary request, and one below 0 never gives units back.
func (c cost) of(r *Request, o *Outcome) int64 {
	if c.expression == nil {
		return c.fixed
	}
	value, fault := evaluate[int64](c.expression, r)
	if fault == nil && value < 0 {
		fault = c.expression.fault("the cost is below 0")
	}
	if fault != nil {
		o.record(fault)
		return 1
	}
	return min(value, policy.MaxInteger) // more than any limit has, and refused
}
