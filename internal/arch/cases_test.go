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

// tellOfTests are the files that say where something is tested.
var tellOfTests = []string{
	"docs/cases.md", "docs/security.md", "docs/failures.md", "docs/redis.md", "docs/algorithms/*.md", "docs/distributions/*.md",
	"internal/limiter/vectors_test.go", "test/docs/elsewhere_test.go",
}

var testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)

// specsNamed are the specs of a suite that a text names, each in quotation marks:
//
//	`TestController` ("does this"; "does that")
//	spec of test/e2e, "does this"
var (
	specsNamed = regexp.MustCompile(`(?:TestController` + "`" + `|test/e2e\S*),? \(?("[^"]+"(?:[,;] "[^"]+")*)`)
	quoted     = regexp.MustCompile(`"([^"]+)"`)
)

func TestTestsThatAreReferredToExist(t *testing.T) {
	functions, specs := testFunctions(t)
	for _, pattern := range tellOfTests {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("find %s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			named := testName.FindAllString(string(text), -1)
			if len(named) == 0 {
				t.Errorf("%s names no test", file)
			}
			for _, test := range named {
				if !functions[test] {
					t.Errorf("%s names %s, which does not exist: name the test that took its place", file, test)
				}
			}
			for _, suite := range specsNamed.FindAllStringSubmatch(string(text), -1) {
				for _, spec := range quoted.FindAllStringSubmatch(suite[1], -1) {
					if !strings.Contains(specs, `It("`+spec[1]) {
						t.Errorf("%s names the spec %s, which does not exist: name the one that took its place", file, spec[0])
					}
				}
			}
		}
	}
}

// testFunctions are the names of all functions in the repository's test files, and the
// text of those that have specs.
func testFunctions(t *testing.T) (names map[string]bool, specs string) {
	names = map[string]bool{}
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.Contains(string(text), "It(\"") {
			specs += string(text)
		}
		file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
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
	return names, specs
}
