package match

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

const (
	// maxRegexpSize bounds a regular expression, counted in characters and
	// classes after its repetitions are written out. A few characters can ask
	// for a million.
	maxRegexpSize = 1024
	// maxRegexpWork bounds an expression's size times its input's length. RE2
	// takes time in proportion to it, at worst 50 ns for one: 13 ms. Ordinary
	// expressions take a tenth of that.
	maxRegexpWork = 1 << 18
)

// pattern is a regular expression of bounded size with the longest input, in
// bytes, that it is tried on.
type pattern struct {
	re      *regexp.Regexp
	longest int
}

// find says whether s matches, or fails with errTooLong.
func (p pattern) find(s string) (bool, error) {
	if len(s) > p.longest {
		return false, errTooLong
	}
	return p.re.MatchString(s), nil
}

// anywhere compiles an expression that is found anywhere in a value.
func anywhere(expression string) (pattern, error) {
	parsed, err := parseRegexp(expression)
	if err != nil {
		return pattern{}, err
	}
	return newPattern(parsed, parsed.String())
}

// whole compiles an expression that has to match a whole value.
func whole(expression string) (pattern, error) {
	parsed, err := parseRegexp(expression)
	if err != nil {
		return pattern{}, err
	}
	// The parsed form is wrapped, not the text: a text such as "a)|(b" or
	// "\Qa" would reach out of the group.
	return newPattern(parsed, `\A(?:`+parsed.String()+`)\z`)
}

func newPattern(parsed *syntax.Regexp, text string) (pattern, error) {
	re, err := regexp.Compile(text)
	return pattern{re, min(MaxInput, maxRegexpWork/max(1, regexpSize(parsed)))}, err
}

// parseRegexp checks that an expression is RE2 and not too large; its errors
// read well after "the regular expression".
func parseRegexp(expression string) (*syntax.Regexp, error) {
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if fault, ok := errors.AsType[*syntax.Error](err); ok {
		return nil, fmt.Errorf("is not valid RE2: %s: `%s`", fault.Code, fault.Expr)
	}
	if err != nil {
		return nil, fmt.Errorf("is not valid RE2: %w", err)
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
