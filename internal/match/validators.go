package match

import (
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
)

// constantPatterns is an AST validator: the pattern of matches() has to be a
// literal of bounded size. A pattern taken from the request would let a client
// have regular expressions compiled, with a few characters that ask for
// megabytes.
type constantPatterns struct{}

// Name implements cel.ASTValidator.
func (constantPatterns) Name() string { return "tallyman.constantPatterns" }

// Validate implements cel.ASTValidator.
func (constantPatterns) Validate(_ *cel.Env, _ cel.ValidatorConfig, a *ast.AST, issues *cel.Issues) {
	for _, call := range ast.MatchDescendants(ast.NavigateAST(a), ast.FunctionMatcher(overloads.Matches)) {
		args := call.AsCall().Args()
		pattern := args[len(args)-1] // s.matches(p) and matches(s, p)
		if pattern.Kind() != ast.LiteralKind {
			issues.ReportErrorAtID(pattern.ID(), "the pattern of matches must be a literal, such as path.matches('^/v[0-9]+/')")
			continue
		}
		text, _ := pattern.AsLiteral().Value().(string)
		if _, err := parseRegexp(text); err != nil {
			issues.ReportErrorAtID(pattern.ID(), "the pattern of matches %s", err)
		}
	}
}

// noMapEquality is an AST validator: maps are not compared as a whole, which a
// stringMap cannot do.
type noMapEquality struct{}

// Name implements cel.ASTValidator.
func (noMapEquality) Name() string { return "tallyman.noMapEquality" }

// Validate implements cel.ASTValidator.
func (noMapEquality) Validate(_ *cel.Env, _ cel.ValidatorConfig, a *ast.AST, issues *cel.Issues) {
	root := ast.NavigateAST(a)
	for _, operator := range []string{operators.Equals, operators.NotEquals} {
		for _, call := range ast.MatchDescendants(root, ast.FunctionMatcher(operator)) {
			for _, arg := range call.AsCall().Args() {
				if a.GetType(arg.ID()).Kind() == types.MapKind {
					issues.ReportErrorAtID(call.ID(), "maps cannot be compared as a whole: compare values, such as request.query['dry'] == '1'")
					break
				}
			}
		}
	}
}
