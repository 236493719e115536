package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// directory writes files of the test's own into a directory.
func directory(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const looseLimit = "  - {name: loose, requests: 20, window: 1m, algorithm: TokenBucket}\n"

func TestLintTellsWhereAndWhat(t *testing.T) {
	root := directory(t, map[string]string{
		"good.yaml":     policyText,
		"loose.yml":     policyText + looseLimit,
		"a/bad.yaml":    "kind: Service\napiVersion: v1\nspec: {}\n---\n" + strings.Replace(policyText, "1m", "1d", 1),
		"values.yaml":   "replicas: 3\n",
		"notes.txt":     "RateLimitPolicy: not a manifest\n",
		"policies.json": `{"apiVersion": "tallyman.dev/v1alpha1", "kind": "RateLimitPolicy"}`,
	})
	stdout, stderr, code := run(t, "", "lint", root)
	want := []string{
		root + `/a/bad.yaml:11: error: policy "orders": spec.limits[0].window: "1d" is not a duration: write up to four`,
		root + `/loose.yml:9: warning: policy "orders": spec.limits[2]: never refuses a request, since limits[1] (total)`,
		root + `/policies.json:1: error: spec is not set`,
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	for i := range lines {
		if i < len(want) {
			lines[i] = lines[i][:min(len(want[i]), len(lines[i]))]
		}
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if code != exitInvalid || !strings.Contains(stderr, "4 files, 2 valid policies: 2 errors, 1 warning") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestLintsExitCode(t *testing.T) {
	root := directory(t, map[string]string{
		"broken/policy.yaml": policyText + "  - {name: broken, requests: 1, window: 1m, match: [{expression: '('}]}\n",
		"good.yaml":          policyText, "loose.yaml": policyText + looseLimit, "other.yaml": "apiVersion: v1\nkind: Pod\nspec: {}\n",
	})
	for name, c := range map[string]struct {
		args []string
		code int
		say  string
	}{
		"valid":                {[]string{"good.yaml"}, 0, "1 file, 1 valid policy: 0 errors, 0 warnings"},
		"no expression":        {[]string{"broken/policy.yaml"}, exitInvalid, "1 file, 0 valid policies: 1 error, 0 warnings"},
		"a warning":            {[]string{"loose.yaml"}, 0, "0 errors, 1 warning"},
		"strictly a warning":   {[]string{"--strict", "loose.yaml"}, exitInvalid, "--strict"},
		"no policy":            {[]string{"other.yaml"}, exitInvalid, "no RateLimitPolicy was found"},
		"no file":              {nil, exitInvalid, "no file to read"},
		"files of a flag":      {[]string{"-f", "good.yaml", "--filename", "loose.yaml", "other.yaml"}, 0, "3 files, 2 valid policies"},
		"a file that is not":   {[]string{"missing.yaml"}, exitInvalid, "missing.yaml"},
		"an unknown format":    {[]string{"-o", "xml", "good.yaml"}, exitInvalid, "write table, json or yaml"},
		"a file and all of it": {[]string{"broken/policy.yaml", "broken"}, exitInvalid, "1 file, "},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"lint"}
			for _, arg := range c.args {
				if strings.HasSuffix(arg, ".yaml") || arg == "broken" {
					arg = filepath.Join(root, arg)
				}
				args = append(args, arg)
			}
			if _, stderr, code := run(t, "", args...); code != c.code || !strings.Contains(stderr, c.say) {
				t.Errorf("exit code %d: %s", code, stderr)
			}
		})
	}
}

// Editors leave links to nothing, and sockets and pipes cannot be told by their names.
func TestLintReadsTheFilesOfADirectoryOnly(t *testing.T) {
	root := directory(t, map[string]string{"real/a.yaml": policyText, "elsewhere/b.yaml": policyText})
	for name, to := range map[string]string{
		"link":                 "real",                // a directory that is named
		"real/linked.yaml":     "../elsewhere/b.yaml", // a file
		"real/.#a.yaml":        "somebody@host.1234",  // nothing
		"real/directory.yaml":  "../elsewhere",
		"real/round-and-round": ".",
	} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(root, "real/pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"real", "link"} {
		_, stderr, code := run(t, "", "lint", filepath.Join(root, name))
		if code != 0 || !strings.Contains(stderr, "2 files, 2 valid policies: 0 errors, 0 warnings") {
			t.Errorf("%s: exit code %d: %s", name, code, stderr)
		}
	}
}

func TestLintWritesForPrograms(t *testing.T) {
	bad := strings.Replace(policyText, "requests: 2", "requests: -2", 1)
	const yaml = `- file: stdin
  line: 7
  message: 'spec.limits[0].requests: must be between 0 and 9007199254740991, not -2'
  policy: orders
  severity: error
`
	if stdout, stderr, code := run(t, bad, "lint", "-o", "yaml", "-"); code != exitInvalid || stdout != yaml {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	if stdout, stderr, code := run(t, policyText, "lint", "-o", "json", "-"); code != 0 || stdout != "[]\n" {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

func TestTheDocumentedRunOfLint(t *testing.T) {
	t.Chdir("../..")
	doc, err := os.ReadFile("docs/lint.md")
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, _ := run(t, "", "lint", "config/samples/quota.yaml")
	want := "$ go run ./cmd/kubectl-tallyman lint config/samples/quota.yaml\n" + stdout + stderr + "```\n"
	if !strings.Contains(string(doc), want) {
		t.Errorf("docs/lint.md does not have what comes out:\n%s", want)
	}
}
