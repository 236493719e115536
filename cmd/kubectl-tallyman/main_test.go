package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// asProgram has the test's binary be the program itself.
const asProgram = "TALLYMAN_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	code := m.Run()
	if err := stopCluster(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const policyText = `apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: orders}
spec:
  selector: {}
  limits:
  - {name: per-client, algorithm: FixedWindow, requests: 2, window: 1m, key: [{header: {name: X-Api-Key}}]}
  - {name: total, algorithm: TokenBucket, requests: 10, window: 1m}
`

const traceText = `{"at":"0s","headers":{"X-Api-Key":"a"}}
{"at":"1s","headers":{"X-Api-Key":"a"}}
{"at":"2s","headers":{"X-Api-Key":"a"}}
{"at":"2s","headers":{"X-Api-Key":"b"},"cost":9,"op":"takeUpTo"}
`

const outputText = `{"at":"0s","allowed":true,"granted":1,"limit":"per-client","remaining":1,"retryAfterMs":0,"resetAfterMs":60000,"reason":""}
{"at":"1s","allowed":true,"granted":1,"limit":"per-client","remaining":0,"retryAfterMs":0,"resetAfterMs":59000,"reason":""}
{"at":"2s","allowed":false,"granted":0,"limit":"per-client","remaining":0,"retryAfterMs":58000,"resetAfterMs":58000,"reason":"LimitExceeded"}
{"at":"2s","allowed":true,"granted":2,"limit":"per-client","remaining":0,"retryAfterMs":0,"resetAfterMs":58000,"reason":""}
`

// file writes a file of the test's own.
func file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func program(ctx context.Context, args ...string) (c *exec.Cmd, stdout, stderr *bytes.Buffer) {
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	c = exec.CommandContext(ctx, os.Args[0], args...)
	c.Env = append(os.Environ(), asProgram+"=1")
	c.Stdout, c.Stderr = stdout, stderr
	return c, stdout, stderr
}

// run returns what a run of the program printed and its exit code.
func run(t testing.TB, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	c, out, errs := program(t.Context(), args...)
	c.Stdin = strings.NewReader(stdin)
	if err := c.Run(); c.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

func TestSimulateIsTheSameOnEveryStore(t *testing.T) {
	policies, trace := file(t, "policy.yaml", policyText), file(t, "trace.jsonl", traceText)
	cluster := testredis.StartCluster(t, 3)
	server := testredis.Start(t)
	for name, args := range map[string][]string{
		"by default": nil,
		"memory":     {"--store", "memory:"},
		"Redis":      {"--store", server.URL()},
		"Cluster":    {"--store", strings.Replace(cluster.URL(), "redis://", "redis+cluster://", 1)},
		"at a start": {"--start", "2024-02-29T23:59:00+01:00"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := run(t, "", append([]string{"simulate", "-f", policies, "--trace", trace}, args...)...)
			if code != 0 || stdout != outputText {
				t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
			}
			for _, want := range []string{"4 requests: 3 admitted, 1 refused", "2s simulated", "per-client"} {
				if !strings.Contains(stderr, want) {
					t.Errorf("the summary does not say %q:\n%s", want, stderr)
				}
			}
		})
	}
	for _, server := range append(cluster.Servers, server) {
		if all := keys(t, server.Client(t)); len(all) > 0 {
			t.Errorf("a master is left with %q", all)
		}
	}
}

func TestSimulateReadsStandardInput(t *testing.T) {
	stdout, stderr, code := run(t, traceText, "simulate", "-f", file(t, "policy.yaml", policyText), "--trace", "-")
	if code != 0 || stdout != outputText {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
}

func TestWhatIsNotValidIsSaidWithExitCode2(t *testing.T) {
	policies, trace := file(t, "policy.yaml", policyText), file(t, "trace.jsonl", traceText)
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"no such command": {[]string{"simulat"}, []string{"simulat"}},
		"no policy":       {[]string{"simulate", "--trace", trace}, []string{"filename"}},
		"no trace":        {[]string{"simulate", "-f", policies}, []string{"trace"}},
		"argument":        {[]string{"simulate", "-f", policies, "--trace", trace, "x"}, []string{`"x"`}},
		"unknown flag":    {[]string{"simulate", "--polcy", policies}, []string{"--polcy", "--help"}},
		"start":           {[]string{"simulate", "-f", policies, "--trace", trace, "--start", "today"}, []string{"--start", `"today"`, "2024-01-01T00:00:00Z"}},
		"start too early": {[]string{"simulate", "-f", policies, "--trace", trace, "--start", "1969-12-31T23:59:59Z"}, []string{"--start", "1970"}},
		"scheme":          {[]string{"simulate", "-f", policies, "--trace", trace, "--store", "ftp://localhost"}, []string{"--store", "redis://"}},
		"missing trace":   {[]string{"simulate", "-f", policies, "--trace", "/does/not/exist"}, []string{"open the trace", "/does/not/exist"}},
		"missing policy":  {[]string{"simulate", "-f", "/does/not/exist", "--trace", trace}, []string{"read the policy file"}},
		"invalid policy": {[]string{"simulate", "-f", file(t, "bad.yaml", strings.Replace(policyText, "1m", "1d", 1)), "--trace", trace},
			[]string{"bad.yaml:7: ", "spec.limits[0].window", "24h"}},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := run(t, "", tc.args...)
			if code != exitInvalid || stdout != "" {
				t.Errorf("exit code %d, output:\n%s", code, stdout)
			}
			for _, want := range tc.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("%q does not say %q", stderr, want)
				}
			}
		})
	}
}

func TestAnInvalidLineEndsTheSimulationWithExitCode2(t *testing.T) {
	trace := file(t, "trace.jsonl", traceText+"{\"at\":\"3s\",\"op\":\"tak\"}\n"+traceText)
	stdout, stderr, code := run(t, "", "simulate", "-f", file(t, "policy.yaml", policyText), "--trace", trace)
	if code != exitInvalid || stdout != outputText || !strings.Contains(stderr, trace+`:5: op is "tak"`) {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
}

func TestAStoreThatFailsIsSaidWithExitCode1(t *testing.T) {
	policies, trace := file(t, "policy.yaml", policyText), file(t, "trace.jsonl", traceText)
	dead := testredis.Start(t)
	dead.Kill()
	full := testredis.Start(t, "--maxmemory", "1")
	for name, tc := range map[string]struct{ url, want string }{
		"down": {dead.URL(), "reach the store"},
		"full": {full.URL(), "trace.jsonl:1: "},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := run(t, "", "simulate", "-f", policies, "--trace", trace, "--store", tc.url)
			if code != exitFailed || stdout != "" || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
			}
		})
	}
}

// keys lists all keys of a server.
func keys(t testing.TB, client redis.Cmdable) []string {
	t.Helper()
	all, err := client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestSimulateLeavesARedisAsItWas(t *testing.T) {
	policies := file(t, "policy.yaml", policyText)
	for name, trace := range map[string]string{"valid": traceText, "invalid": traceText + "x\n"} {
		t.Run(name, func(t *testing.T) {
			server := testredis.Start(t)
			client := server.Client(t)
			const others = "tallyman:c:shop:orders:total:f60000000:{}"
			if err := client.Set(t.Context(), others, "1", 0).Err(); err != nil {
				t.Fatal(err)
			}
			stdout, stderr, _ := run(t, "", "simulate", "-f", policies, "--trace", file(t, "trace.jsonl", trace), "--store", server.URL())
			if stdout != outputText {
				t.Fatalf("output:\n%s%s", stdout, stderr)
			}
			if all := keys(t, client); len(all) != 1 || all[0] != others {
				t.Errorf("the store has %q, want the key that was there before", all)
			}
		})
	}
}

// A simulation can end before its trace does: whatever ends it, its counters go.
func TestASimulationThatIsCutShortCleansUp(t *testing.T) {
	for name, tc := range map[string]struct {
		cut  func(c *exec.Cmd, stdin io.Writer, stdout io.Closer) error
		want string
	}{
		"by an interrupt": {func(c *exec.Cmd, _ io.Writer, _ io.Closer) error {
			return c.Process.Signal(os.Interrupt)
		}, "interrupted"},
		"by nobody reading any more": {func(_ *exec.Cmd, stdin io.Writer, stdout io.Closer) error {
			err := stdout.Close()
			_, writing := stdin.Write([]byte(traceText))
			return errors.Join(err, writing)
		}, "broken pipe"},
	} {
		t.Run(name, func(t *testing.T) {
			server := testredis.Start(t)
			c, _, stderr := program(t.Context(), "simulate", "-f", file(t, "policy.yaml", policyText), "--trace", "-", "--store", server.URL())
			c.Stdout = nil
			stdout, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdin, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := stdin.Write([]byte(traceText)); err != nil {
				t.Fatal(err)
			}
			// With the answers read, the counters are there, and more of the trace is waited for.
			if _, err := io.ReadFull(stdout, make([]byte, len(outputText))); err != nil {
				t.Fatal(err)
			}
			if all := keys(t, server.Client(t)); len(all) == 0 {
				t.Error("there are no counters to clean up")
			}
			if err := tc.cut(c, stdin, stdout); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait()
			if code := c.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(stderr.String(), tc.want) {
				t.Errorf("exit code %d: %s", code, stderr)
			}
			if all := keys(t, server.Client(t)); len(all) > 0 {
				t.Errorf("the store is left with %q", all)
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	for args, want := range map[string]string{
		"--help":          "simulate",
		"simulate --help": "--trace",
		"--version":       "kubectl tallyman version",
		"":                "simulate",
	} {
		stdout, stderr, code := run(t, "", strings.Fields(args)...)
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%q: exit code %d, output:\n%s%s", args, code, stdout, stderr)
		}
	}
}

func TestTheGuideShowsWhatHappens(t *testing.T) {
	guide, err := os.ReadFile("../../docs/simulator.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{policyText, traceText, outputText} {
		if !strings.Contains(string(guide), want) {
			t.Errorf("docs/simulator.md does not show\n%s", want)
		}
	}
}
