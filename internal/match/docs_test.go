package match

import (
	"os"
	"strings"
	"testing"
)

// TestTheExamplesOfTheDocumentationCompile takes the blocks of code that are
// marked "cel" and a kind, where each line is an expression.
func TestTheExamplesOfTheDocumentationCompile(t *testing.T) {
	page, err := os.ReadFile("../../docs/expressions.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]resultKind{"match": boolResult, "key": stringResult, "cost": intResult}
	seen := map[string]int{}
	blocks := strings.Split(string(page), "```cel")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		name, source, _ := strings.Cut(block, "\n")
		name = strings.TrimSpace(name)
		kind, known := kinds[name]
		if !known {
			t.Errorf("a block is marked %q: write match, key or cost after cel", name)
			continue
		}
		for line := range strings.Lines(source) {
			seen[name]++
			if _, err := compileExpression(strings.TrimSpace(line), kind); err != nil {
				t.Errorf("%s: %s: %v", name, strings.TrimSpace(line), err)
			}
		}
	}
	for name := range kinds {
		if seen[name] == 0 {
			t.Errorf("no example of a %s", name)
		}
	}
}

func TestTheDocumentedPathIsNormalisedAsDocumented(t *testing.T) {
	if got := normalizePath("/v1//x/%2e%2e/%6frders/;a=b"); got != "/v1/orders" {
		t.Errorf("got %q", got)
	}
}
