package match

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

// maxRegexpSize bounds a regular expression, counted in characters and classes
// after its repetitions are written out. RE2 takes time in proportion to this
// size times the input's, and a few characters can ask for a million.
const maxRegexpSize = 1024

// compileWhole compiles an RE2 expression that has to match a whole value.
func compileWhole(expression string) (*regexp.Regexp, error) {
	parsed, err := parseRegexp(expression)
	if err != nil {
		return nil, err
	}
	// The parsed form is wrapped, not the text: a text such as "a)|(b" or
	// "\Qa" would reach out of the group.
	return regexp.Compile(`\A(?:` + parsed.String() + `)\z`)
}

// parseRegexp checks that an expression is RE2 and not too large; its errors
// read well after "the regular expression".
func parseRegexp(expression string) (*syntax.Regexp, error) {
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		var fault *syntax.Error
		errors.As(err, &fault)
		return nil, fmt.Errorf("is not valid RE2: %s: `%s`", fault.Code, fault.Expr)
	}
	if size := regexpSize(parsed); size > maxRegexpSize {
		return nil, fmt.Errorf("is too large: repetitions written out it has %d parts, and %d are allowed; use + or * for long repetitions", size, maxRegexpSize)
	}
	return parsed, nil
}

// regexpSize counts the leaves of the expression's tree. It does not overflow:
// the parser allows 1000 repetitions in all, at any depth.
func regexpSize(re *syntax.Regexp) int {
	if re.Op == syntax.OpLiteral {
		return len(re.Rune)
	}
	if len(re.Sub) == 0 {
		return 1
	}
	size := 0
	for _, sub := range re.Sub {
		size += regexpSize(sub)
	}
	if re.Op == syntax.OpRepeat {
		size *= max(1, re.Min, re.Max)
	}
	return size
}
