package match

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/interpreter"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// maxExpressionCost stops an evaluation, in CEL's cost units: about one for each
// step and each ten bytes compared. Most expressions take less than 50, one that
// goes through 100 headers less than 1000. The bound is a few milliseconds; the
// time grows with its square, since CEL searches a stack of steps.
const maxExpressionCost = 5000

const (
	// maxParserDepth bounds the parser's recursion.
	maxParserDepth = 64
	// maxComprehensions bounds the nesting of exists, all, map and filter.
	maxComprehensions = 2
)

// environment is what expressions may use. It is the same for all, takes
// milliseconds to make, and is immutable.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	stringMap := cel.MapType(cel.StringType, cel.StringType)
	return cel.NewEnv(
		cel.Variable("request.method", cel.StringType),
		cel.Variable("request.path", cel.StringType),
		cel.Variable("request.host", cel.StringType),
		cel.Variable("request.clientIP", cel.StringType),
		cel.Variable("request.headers", stringMap),
		cel.Variable("request.query", stringMap),
		cel.Variable("request.cookies", stringMap),
		stringFunctions(),
		cel.ParserRecursionLimit(maxParserDepth),
		cel.ASTValidators(
			cel.ValidateComprehensionNestingLimit(maxComprehensions),
			constantPatterns{},
			noMapEquality{},
		),
	)
})

// resultKind is what an expression has to result in.
type resultKind struct {
	celType *cel.Type
	remedy  string
}

var (
	boolResult   = resultKind{cel.BoolType, "compare it with something, such as request.method == 'POST'"}
	stringResult = resultKind{cel.StringType, "wrap it in string(...)"}
	intResult    = resultKind{cel.IntType, "wrap it in int(...), or use numbers without a fraction"}
)

// expression is a compiled CEL expression, safe for concurrent use.
type expression struct {
	path    string
	program cel.Program
	// seesWhatIsChosen says that it looks at what clients choose: at anything of
	// the request but the client's address.
	seesWhatIsChosen bool
}

// expression compiles a source, or adds what is wrong with it and returns nil.
func (c *compiler) expression(path, source string, want resultKind) *expression {
	e, err := compileExpression(source, want)
	if err != nil {
		c.errs.Add(path, "%s", err)
		return nil
	}
	e.path = path
	return e
}

func compileExpression(source string, want resultKind) (*expression, error) {
	if len(source) > policy.MaxExpressionLength {
		return nil, fmt.Errorf("has %d bytes, and %d are allowed: write it as several matches, or shorter", len(source), policy.MaxExpressionLength)
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("set up CEL: %w", err)
	}
	ast, issues := env.Compile(source)
	if len(issues.Errors()) > 0 {
		return nil, explain(issues.Errors())
	}
	// What is dyn is known at run time only, and checked there.
	if got := ast.OutputType(); !got.IsExactType(want.celType) && !got.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("results in %s and must result in %s: %s",
			cel.FormatCELType(got), cel.FormatCELType(want.celType), want.remedy)
	}
	program, err := env.Program(ast,
		cel.EvalOptions(cel.OptOptimize),
		cel.CostLimit(maxExpressionCost),
		functionCosts(),
		boundedMatches(),
	)
	if err != nil {
		return nil, fmt.Errorf("does not compile: %s", shorten(err.Error()))
	}
	return &expression{program: program, seesWhatIsChosen: seesWhatIsChosen(ast)}, nil
}

func seesWhatIsChosen(ast *cel.Ast) bool {
	for _, reference := range ast.NativeRep().ReferenceMap() {
		if strings.HasPrefix(reference.Name, "request.") && reference.Name != "request.clientIP" {
			return true
		}
	}
	return false
}

// evaluate runs an expression over a request. The fault says nothing that
// CEL's own errors say, since those quote values of the request.
func evaluate[T bool | string | int64](e *expression, r *Request) (T, *EvaluationError) {
	var none T
	out, _, err := e.program.Eval(activation{r})
	if err != nil {
		return none, e.fault(reason(err))
	}
	result, ok := out.Value().(T)
	if !ok {
		return none, e.fault("the result has the wrong type")
	}
	return result, nil
}

func (e *expression) fault(reason string) *EvaluationError {
	return &EvaluationError{Path: e.path, Reason: reason}
}

func reason(err error) string {
	if errors.Is(err, errTooLong) {
		return errTooLong.Error()
	}
	if cancelled, ok := errors.AsType[interpreter.EvalCancelledError](err); ok && cancelled.Cause == interpreter.CostLimitExceeded {
		return "the expression takes too long for this request"
	}
	return "the expression fails for this request"
}
