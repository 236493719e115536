package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// Documents that say where something is tested.
var tellOfTests = []string{"docs/cases.md", "docs/security.md", "internal/limiter/vectors_test.go"}

var testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)

func TestTestsThatAreReferredToExist(t *testing.T) {
	exists := testFunctions(t)
	for _, name := range tellOfTests {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		named := testName.FindAllString(string(text), -1)
		if len(named) == 0 {
			t.Errorf("%s names no test", name)
		}
		for _, test := range named {
			if !exists[test] {
				t.Errorf("%s names %s, which does not exist: name the test that took its place", name, test)
			}
		}
	}
}

// testFunctions are the names of all functions in the repository's test files.
func testFunctions(t *testing.T) map[string]bool {
	names := map[string]bool{}
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if function, ok := decl.(*ast.FuncDecl); ok && function.Recv == nil {
				names[function.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
