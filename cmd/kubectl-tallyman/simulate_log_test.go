package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// The guide's example.
const (
	clientsText = `apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: web}
spec:
  selector: {}
  limits:
  - {name: per-client, algorithm: FixedWindow, requests: 3, window: 1m, key: [{clientIP: {}}]}
  - {name: logins, algorithm: SlidingWindow, requests: 2, window: 1h, match: [{methods: [POST], path: {type: Exact, value: /login}}], key: [{clientIP: {}}]}
`
	newText = `apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: web}
spec:
  selector: {}
  limits:
  - {name: per-client, algorithm: TokenBucket, requests: 6, window: 1m, burst: 5, key: [{clientIP: {}}]}
  - {name: logins, algorithm: SlidingWindow, requests: 1, window: 1h, match: [{methods: [POST], path: {type: Exact, value: /login}}], key: [{clientIP: {}}]}
`
	accessText = `203.0.113.9 - - [29/Nov/2026:10:00:02 +0000] "GET / HTTP/1.1" 200 5316 "-" "Mozilla/5.0"
203.0.113.9 - - [29/Nov/2026:10:00:03 +0000] "GET /style.css HTTP/1.1" 200 812 "https://shop.example/" "Mozilla/5.0"
203.0.113.9 - - [29/Nov/2026:10:00:03 +0000] "GET /logo.svg HTTP/1.1" 200 2201 "https://shop.example/" "Mozilla/5.0"
203.0.113.9 - - [29/Nov/2026:10:00:04 +0000] "GET /favicon.ico HTTP/1.1" 404 153 "https://shop.example/" "Mozilla/5.0"
198.51.100.4 - - [29/Nov/2026:10:02:10 +0000] "POST /login HTTP/1.1" 401 98 "-" "curl/8.5.0"
198.51.100.4 - - [29/Nov/2026:10:02:11 +0000] "POST /login HTTP/1.1" 401 98 "-" "curl/8.5.0"
198.51.100.4 - - [29/Nov/2026:10:02:12 +0000] "POST /login HTTP/1.1" 401 98 "-" "curl/8.5.0"
198.51.100.4 - - [29/Nov/2026:10:02:13 +0000] "POST /login HTTP/1.1" 401 98 "-" "curl/8.5.0"
192.0.2.77 - - [29/Nov/2026:10:02:20 +0000] "-" 408 0 "-" "-"
203.0.113.9 - - [29/Nov/2026:10:05:30 +0000] "GET /v1/orders?page=2 HTTP/1.1" 200 733 "-" "Mozilla/5.0"
`
	reportText = `access.log: format combined, 10 lines, 9 requests from 2026-11-29 10:00:02Z to 2026-11-29 10:05:30Z
lines that are no requests and were passed over: 1, such as
  access.log:9: there is no HTTP request on the line

LIMIT         ADMITTED  REFUSED  %      FIRST REFUSAL         WORST MINUTE
per-client    8         1        11.11  2026-11-29 10:00:04Z  2026-11-29 10:00Z: 1
logins        2         2        50.00  2026-11-29 10:02:12Z  2026-11-29 10:02Z: 2
all together  6         3        33.33  2026-11-29 10:00:04Z  2026-11-29 10:02Z: 2

Most refused by per-client:
       1  203.0.113.9

Most refused by logins:
       2  198.51.100.4

clients.yaml: # admitted, x refused, each column is 10s
       4 |x            x
         |x            x
         |#            x
         |#            x
         |#            #
         |#            #
         |#            #                   #
         |#            #                   #
       0 +----------------------------------
          2026-11-29 10:00:00Z  2026-11-29 10:05:40Z
`
	decisionText = `{"line":4,"at":"2026-11-29T10:00:04Z","allowed":false,"granted":0,"limit":"per-client","remaining":0,"retryAfterMs":56000,"resetAfterMs":56000,"reason":"LimitExceeded"}`
	versusText   = `access.log: format combined, 10 lines, 9 requests from 2026-11-29 10:00:02Z to 2026-11-29 10:05:30Z
lines that are no requests and were passed over: 1, such as
  access.log:9: there is no HTTP request on the line

              clients.yaml                  new.yaml
LIMIT         ADMITTED      REFUSED  %      ADMITTED  REFUSED  %
per-client    8             1        11.11  9         0        0.00
logins        2             2        50.00  1         3        75.00
all together  6             3        33.33  6         3        33.33

Most refused by per-client of clients.yaml:
       1  203.0.113.9

Most refused by logins of clients.yaml:
       2  198.51.100.4

Most refused by logins of new.yaml:
       3  198.51.100.4

Admitted by clients.yaml and refused by new.yaml: 1, most of them of these keys:
       1  198.51.100.4  by logins
Refused by clients.yaml and admitted by new.yaml: 1, most of them of these keys:
       1  203.0.113.9  by per-client
`
)

// inDirectory has the test run among these files, so that reports have short names.
func inDirectory(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func compressed(t testing.TB, text string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func guideFiles(t testing.TB) map[string]string {
	return map[string]string{
		"clients.yaml": clientsText, "new.yaml": newText, "access.log": accessText, "access.log.gz": compressed(t, accessText),
	}
}

func TestSimulateReportsALog(t *testing.T) {
	inDirectory(t, guideFiles(t))
	server := testredis.Start(t)
	for name, tc := range map[string]struct {
		stdin, args, logName string
	}{
		"file":             {"", "--log access.log", "access.log"},
		"format":           {"", "--log access.log --format combined", "access.log"},
		"gzip":             {"", "--log access.log.gz", "access.log.gz"},
		"stdin":            {accessText, "--log -", "stdin"},
		"gzip of stdin":    {compressed(t, accessText), "--log -", "stdin"},
		"counted in Redis": {"", "--log access.log --store " + server.URL(), "access.log"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := run(t, tc.stdin, append([]string{"simulate", "-f", "clients.yaml"}, strings.Fields(tc.args)...)...)
			if want := strings.ReplaceAll(reportText, "access.log", tc.logName); code != 0 || stdout != want || stderr != "" {
				t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
			}
		})
	}
	if all := keys(t, server.Client(t)); len(all) > 0 {
		t.Errorf("the store is left with %q", all)
	}
}

func TestSimulateComparesPolicies(t *testing.T) {
	inDirectory(t, guideFiles(t))
	stdout, stderr, code := run(t, "", "simulate", "-f", "clients.yaml", "--versus", "new.yaml", "--log", "access.log")
	if code != 0 || !strings.HasPrefix(stdout, versusText) || stderr != "" {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
}

func TestSimulateWritesAPage(t *testing.T) {
	inDirectory(t, guideFiles(t))
	stdout, stderr, code := run(t, "", "simulate", "-f", "clients.yaml", "--log", "access.log", "--html", "report.html")
	page, err := os.ReadFile("report.html")
	if err != nil || code != 0 || stdout != reportText || !strings.Contains(string(page), "<td>203.0.113.9</td>") {
		t.Errorf("exit code %d, %v, output:\n%s%s\npage:\n%s", code, err, stdout, stderr, page)
	}
	_, stderr, code = run(t, "", "simulate", "-f", "clients.yaml", "--log", "access.log", "--html", "no/such/directory")
	if code != exitFailed || !strings.Contains(stderr, "write the report") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestSimulateWritesDecisionsOfALog(t *testing.T) {
	inDirectory(t, guideFiles(t))
	stdout, stderr, code := run(t, "", "simulate", "-f", "clients.yaml", "--versus", "new.yaml", "--log", "access.log", "--decisions", "decisions.jsonl")
	decisions, err := os.ReadFile("decisions.jsonl")
	if err != nil || code != 0 || !strings.HasPrefix(stdout, versusText) {
		t.Fatalf("exit code %d, %v, output:\n%s%s", code, err, stdout, stderr)
	}
	lines := strings.Split(string(decisions), "\n")
	if len(lines) != 10 || lines[3] != decisionText || !strings.HasPrefix(lines[8], `{"line":10,`) {
		t.Errorf("decisions are\n%s", decisions)
	}
	_, stderr, code = run(t, "", "simulate", "-f", "clients.yaml", "--log", "access.log", "--decisions", "no/such/directory")
	if code != exitInvalid || !strings.Contains(stderr, "--decisions") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestSimulateReportsALogToPrograms(t *testing.T) {
	inDirectory(t, guideFiles(t))
	for format, read := range map[string]func([]byte, any) error{
		"json": json.Unmarshal,
		"yaml": func(data []byte, to any) error { return yaml.Unmarshal(data, to) },
	} {
		stdout, stderr, code := run(t, "", "simulate", "-f", "clients.yaml", "--log", "access.log", "-o", format)
		var report struct {
			Log     struct{ Requests int }
			Results []struct {
				Admitted, Refused int
				Limits            []struct{ MostRefused []struct{ Key string } }
			}
		}
		if err := read([]byte(stdout), &report); err != nil || code != 0 {
			t.Fatalf("%s: exit code %d, %v:\n%s%s", format, code, err, stdout, stderr)
		}
		if r := report.Results[0]; report.Log.Requests != 9 || r.Admitted != 6 || r.Refused != 3 || r.Limits[1].MostRefused[0].Key != "198.51.100.4" {
			t.Errorf("%s: %+v", format, report)
		}
	}
}

func TestSimulateReadsLogsOfJSON(t *testing.T) {
	inDirectory(t, map[string]string{"policy.yaml": policyText})
	const line = `{"ts":1795946400,"req":{"verb":"GET"},"to":"/a","key":"s3cret"}` + "\n"
	log := strings.Repeat(line, 3)
	args := []string{"simulate", "-f", "policy.yaml", "--log", "-"}
	if _, stderr, code := run(t, log, args...); code != exitInvalid || !strings.Contains(stderr, "--map") || !strings.Contains(stderr, "ts, req.…, to, key") {
		t.Errorf("without a mapping: exit code %d, %s", code, stderr)
	}
	stdout, stderr, code := run(t, log, append(args, "--map", "time=ts,method=req.verb,path=to,header.X-Api-Key=key")...)
	if code != 0 || !strings.Contains(stdout, "per-client    2         1 ") || !strings.Contains(stdout, "1  s3cret\n") || strings.Contains(stdout, "warning") {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
	stdout, _, _ = run(t, log, append(args, "--map", "time=ts,method=req.verb,path=to")...)
	if !strings.Contains(stdout, `warning: limit "per-client" of policy "orders"`) || !strings.Contains(stdout, "X-Api-Key") {
		t.Errorf("it is not warned of a header that the log does not have:\n%s", stdout)
	}
}

func TestWhatIsNotValidOfALogIsSaidWithExitCode2(t *testing.T) {
	files := guideFiles(t)
	files["junk.log"] = "one\ntwo\n"
	files["empty.log"] = ""
	inDirectory(t, files)
	for args, want := range map[string]string{
		"--log access.log --trace access.log":        "none of the others can be",
		"--log access.log --start 2024-01-01T00:00Z": "--start does not go with --log",
		"--trace access.log --html report.html":      "--html does not go with --trace",
		"--trace access.log --versus new.yaml":       "--versus does not go with --trace",
		"--log access.log --format clf":              "combined, common, envoy, json",
		"--log access.log --format json":             "JSON",
		"--log access.log --format combined --map x": "--map",
		"--log access.log --map time=ts":             "is a request in the format json",
		"--log access.log --trusted-hops -1":         "--trusted-hops",
		"--log access.log --versus /does/not/exist":  "/does/not/exist",
		"--trace access.log --decisions d":           "--decisions does not go with --trace",
		"--log access.log --decisions ./access.log":  "--decisions would overwrite the file of --log",
		"--log access.log --html clients.yaml":       "--html would overwrite the file of --filename",
		"--log access.log -o xml":                    "json or yaml",
		"--log /does/not/exist":                      "open the log",
		"--log junk.log":                             `the first line is "one"`,
		"--log junk.log --format combined":           "none of the 2 lines of junk.log is a request in the format combined, such as junk.log:1: ",
		"--log empty.log":                            "there is no line in it",
	} {
		t.Run(args, func(t *testing.T) {
			stdout, stderr, code := run(t, "", append([]string{"simulate", "-f", "clients.yaml"}, strings.Fields(args)...)...)
			if code != exitInvalid || stdout != "" || !strings.Contains(stderr, want) {
				t.Errorf("exit code %d, want %q in:\n%s%s", code, want, stdout, stderr)
			}
		})
	}
}

func TestALogThatIsCutIsReportedWithExitCode1(t *testing.T) {
	files := guideFiles(t)
	files["cut.gz"] = compressed(t, strings.Repeat(accessText, 10_000))
	files["cut.gz"] = files["cut.gz"][:len(files["cut.gz"])-50]
	inDirectory(t, files)
	stdout, stderr, code := run(t, "", "simulate", "-f", "clients.yaml", "--log", "cut.gz")
	if code != exitFailed || !strings.Contains(stdout, "all together") || !strings.Contains(stderr, "read the log: unexpected EOF") {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
}

func TestInputThatIsWaitedForCanBeInterrupted(t *testing.T) {
	for name, args := range map[string][]string{
		"a log":    {"simulate", "-f", file(t, "clients.yaml", clientsText), "--log", "-"},
		"policies": {"lint", "-"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, stderr := program(t.Context(), args...)
			stdin, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			// More than a pipe holds: it is being read.
			if _, err := io.WriteString(stdin, strings.Repeat(accessText, 1000)); err != nil {
				t.Fatal(err)
			}
			if err := c.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait()
			if code := c.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(stderr.String(), "interrupted") {
				t.Errorf("exit code %d: %s", code, stderr)
			}
		})
	}
}

func TestTheGuideShowsReports(t *testing.T) {
	guide, err := os.ReadFile("../../docs/simulator.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(versusText, "\n\n")
	for _, want := range []string{clientsText, newText, accessText, reportText, table, decisionText} {
		if !strings.Contains(string(guide), want) {
			t.Errorf("docs/simulator.md does not show\n%s", want)
		}
	}
}
