package match

import (
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
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

// stringFunctionCosts charges the functions for the length of their string,
// as CEL charges its own.
func stringFunctionCosts() []interpreter.CostTrackerOption {
	traversal := func(args []ref.Val, _ ref.Val) *uint64 {
		length := float64(args[0].(types.String).Size().(types.Int))
		return new(1 + uint64(length*common.StringTraversalCostFactor))
	}
	return []interpreter.CostTrackerOption{
		interpreter.OverloadCostTracker(lowerASCIIOverload, traversal),
		interpreter.OverloadCostTracker(splitOverload, traversal),
	}
}
