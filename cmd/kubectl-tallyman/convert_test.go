package main

import (
	"os"
	"strings"
	"testing"
)

// block is what a page shows after a line, up to the end of a block.
func block(t *testing.T, page, after string) string {
	t.Helper()
	_, rest, found := strings.Cut(page, after)
	text, _, ended := strings.Cut(rest, "```\n")
	if !found || !ended {
		t.Fatalf("the page has no block after %q", after)
	}
	return text
}

func TestTheDocumentedRunOfConvert(t *testing.T) {
	data, err := os.ReadFile("../../docs/migration-envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	inDirectory(t, map[string]string{"ratelimit.yaml": block(t, page, "This is `ratelimit.yaml`:\n\n```yaml\n")})
	command, told, _ := strings.Cut(block(t, page, "```console\n$ kubectl tallyman "), "\n")
	stdout, stderr, code := run(t, "", strings.Fields(command)...)
	if code != 0 || stdout != "" || stderr != told {
		t.Errorf("exit code %d, %q on standard output, and on standard error:\n%s", code, stdout, stderr)
	}
	policies, err := os.ReadFile("policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if string(policies) != block(t, page, "and this `policies.yaml`:\n\n```yaml\n") {
		t.Errorf("the page does not have what is written:\n%s", policies)
	}
	if _, stderr, code := run(t, "", "lint", "--strict", "policies.yaml"); code != 0 {
		t.Errorf("lint says %s", stderr)
	}
}

func TestConvertsExitCode(t *testing.T) {
	const good = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 5}}]\n"
	lossy := strings.Replace(good, "key: user,", "key: user, detailed_metric: true,", 1)
	inDirectory(t, map[string]string{
		"good.yaml": good, "lossy.yaml": lossy, "bad.yaml": strings.Replace(good, "day", "fortnight", 1),
		"empty.yaml": "domain: shop\n", "other.yaml": strings.Replace(good, "shop", "blog", 1),
	})
	for name, tc := range map[string]struct {
		stdin, args, stdout, stderr string
		code                        int
	}{
		"a file":                   {"", "good.yaml", "metadata: {name: shop}", "1 policy, 1 limit: 0 things lost", 0},
		"a file of a flag":         {"", "-f good.yaml", "metadata: {name: shop}", "1 policy, 1 limit", 0},
		"standard input":           {good, "-", "# stdin:2", "1 policy", 0},
		"two files":                {"", "good.yaml other.yaml --name limits -n edge", "metadata: {name: limits-blog, namespace: edge}", "2 policies, 2 limits", 0},
		"pods":                     {"", "good.yaml -l app=gateway,tier=edge", "matchLabels: {app: gateway, tier: edge}", "1 policy", 0},
		"something lost":           {"", "lossy.yaml", "name: shop", "lossy.yaml:2: lost: detailed_metric", 0},
		"strictly, something lost": {"", "lossy.yaml --strict", "", "--strict", exitInvalid},
		"strictly, nothing lost":   {"", "good.yaml --strict", "name: shop", "0 things lost", 0},
		"not valid":                {"", "bad.yaml", "", `bad.yaml:2: unit is "fortnight"`, exitInvalid},
		"no limit":                 {"", "empty.yaml", "", "no limit", exitInvalid},
		"no file":                  {"", "", "", "no file to read", exitInvalid},
		"a file that is not there": {"", "missing.yaml", "", "missing.yaml", exitInvalid},
		"nowhere to write":         {"", "good.yaml -o missing/policies.yaml", "", "missing/policies.yaml", exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := run(t, tc.stdin, append([]string{"convert"}, strings.Fields(tc.args)...)...)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || (stdout == "") != (tc.stdout == "") || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
			}
		})
	}
}
