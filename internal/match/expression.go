package match

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// costLimit bounds the work of one evaluation, in CEL's units: about one for
// each step and each ten bytes compared. It is some milliseconds at most.
const costLimit = 20_000

// maxMessage bounds what CEL says about an expression, in bytes.
const maxMessage = 300

// resultType is what an expression has to result in.
type resultType struct {
	typ  *cel.Type
	name string
}

var (
	boolResult   = resultType{cel.BoolType, "a bool, such as request.method == 'POST'"}
	stringResult = resultType{cel.StringType, "a string, such as request.headers['x-tenant']"}
	intResult    = resultType{cel.IntType, "an int, such as int(request.headers['x-cost'])"}
)

// expression is a compiled CEL expression. It is immutable.
type expression struct {
	path    string
	program cel.Program
}

func (e *expression) fault(reason string) *EvaluationError {
	return &EvaluationError{Path: e.path, Reason: reason}
}

// expression compiles CEL and checks what it results in.
func (c *compiler) expression(path, source string, want resultType) *expression {
	program, err := compileExpression(source, want)
	if err != nil {
		c.errs.Add(path, "%s", err)
		return nil
	}
	return &expression{path: path, program: program}
}

// environment declares what expressions can see. The names have dots, so that a
// misspelt field is found when the expression is compiled, and only those that
// an expression uses are made for a request.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	texts := cel.MapType(cel.StringType, cel.StringType)
	return cel.NewEnv(
		cel.Variable("request.method", cel.StringType),
		cel.Variable("request.path", cel.StringType),
		cel.Variable("request.host", cel.StringType),
		cel.Variable("request.clientIP", cel.StringType),
		cel.Variable("request.headers", texts),
		cel.Variable("request.query", texts),
		cel.Variable("request.cookies", texts),
	)
})

func compileExpression(source string, want resultType) (cel.Program, error) {
	if len(source) > policy.MaxExpressionLength {
		return nil, fmt.Errorf("has %d characters, more than the %d allowed", len(source), policy.MaxExpressionLength)
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("set up CEL: %w", err)
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		return nil, errors.New(describeIssues(issues))
	}
	if out := ast.OutputType(); !out.IsExactType(want.typ) && !out.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("results in %s, and must result in %s", cel.FormatCELType(out), want.name)
	}
	return env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(costLimit))
}

// describeIssues is the first fault in one line, with its position.
func describeIssues(issues *cel.Issues) string {
	all := issues.Errors()
	if len(all) == 0 {
		return "does not compile: " + bounded(issues.Err().Error())
	}
	first := all[0]
	message := strings.Join(strings.Fields(first.Message), " ")
	text := fmt.Sprintf("does not compile: line %d, column %d: %s", first.Location.Line(), first.Location.Column()+1, message)
	if len(all) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(all)-1)
	}
	return bounded(text)
}

// bounded cuts a message to what fits into a status.
func bounded(s string) string {
	if len(s) > maxMessage {
		return s[:maxMessage] + "…"
	}
	return s
}

// evaluate asks an expression about a request.
func evaluate[T bool | int64 | string](e *expression, r *Request) (T, *EvaluationError) {
	var none T
	value, _, err := e.program.Eval(activation{r})
	if err != nil {
		return none, e.fault("the expression failed")
	}
	result, ok := value.Value().(T)
	if !ok {
		return none, e.fault(fmt.Sprintf("the expression resulted in %s", value.Type().TypeName()))
	}
	return result, nil
}
