package match

import (
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// The two functions beyond CEL's standard ones have the names and the meaning
// of cel-go's string extension. The whole extension is not there: its replace
// and join can build strings out of all proportion to the request.
const (
	lowerASCIIOverload = "string_lower_ascii"
	splitOverload      = "string_split_string"
)

func stringFunctions() cel.EnvOption {
	lower := cel.Function("lowerAscii", cel.MemberOverload(lowerASCIIOverload,
		[]*cel.Type{cel.StringType}, cel.StringType,
		cel.UnaryBinding(func(s ref.Val) ref.Val {
			return types.String(strings.Map(lowerASCII, string(s.(types.String))))
		})))
	split := cel.Function("split", cel.MemberOverload(splitOverload,
		[]*cel.Type{cel.StringType, cel.StringType}, cel.ListType(cel.StringType),
		cel.BinaryBinding(func(s, separator ref.Val) ref.Val {
			parts := strings.Split(string(s.(types.String)), string(separator.(types.String)))
			return types.NewStringList(types.DefaultTypeAdapter, parts)
		})))
	return cel.Lib(library{lower, split})
}

func lowerASCII(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		return r + ('a' - 'A')
	}
	return r
}

// library is a set of environment options.
type library []cel.EnvOption

func (l library) CompileOptions() []cel.EnvOption     { return l }
func (l library) ProgramOptions() []cel.ProgramOption { return nil }

// boundedMatches runs matches() under the bounds of a pattern, for both ways to
// call it. The pattern is a literal (constantPatterns), so it is compiled once.
func boundedMatches() cel.ProgramOption {
	var both []*interpreter.RegexOptimization
	for _, overload := range []string{overloads.Matches, overloads.MatchesString} {
		both = append(both, &interpreter.RegexOptimization{
			Function: overloads.Matches, OverloadID: overload, RegexIndex: 1, Factory: matchesCall,
		})
	}
	return cel.OptimizeRegex(both...)
}

func matchesCall(call interpreter.InterpretableCall, expression string) (interpreter.InterpretableCall, error) {
	p, err := anywhere(expression)
	if err != nil {
		return nil, err
	}
	find := func(args ...ref.Val) ref.Val {
		s, ok := args[0].(types.String)
		if !ok {
			return types.MaybeNoSuchOverloadErr(args[0])
		}
		found, err := p.find(string(s))
		if err != nil {
			return types.WrapErr(err)
		}
		return types.Bool(found)
	}
	return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), find), nil
}

// functionCosts charges lowerAscii for the length of its string, and split for
// the parts that it makes as well.
func functionCosts() cel.ProgramOption {
	traversal := func(s ref.Val) uint64 {
		return 1 + uint64(float64(s.(types.String).Size().(types.Int))*common.StringTraversalCostFactor)
	}
	lower := func(args []ref.Val, _ ref.Val) *uint64 { return new(traversal(args[0])) }
	split := func(args []ref.Val, parts ref.Val) *uint64 {
		cost := traversal(args[0])
		if list, ok := parts.(traits.Sizer); ok {
			cost += uint64(list.Size().(types.Int))
		}
		return &cost
	}
	return cel.CostTrackerOptions(
		interpreter.OverloadCostTracker(lowerASCIIOverload, lower),
		interpreter.OverloadCostTracker(splitOverload, split),
	)
}
