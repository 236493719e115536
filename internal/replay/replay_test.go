package replay_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/accesslog"
	"github.com/tallyman-dev/tallyman/internal/golden"
	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/policyfile"
	"github.com/tallyman-dev/tallyman/internal/replay"
	"github.com/tallyman-dev/tallyman/internal/simulate"
)

// policyOf is a policy file with these limits.
func policyOf(limits ...string) string {
	return "apiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: orders}\nspec:\n  selector: {}\n  limits:\n" +
		"  - {" + strings.Join(limits, "}\n  - {") + "}\n"
}

const (
	perClient = "name: per-client, algorithm: FixedWindow, requests: 2, window: 1m, key: [{clientIP: {}}]"
	perMethod = "name: per-method, algorithm: FixedWindow, requests: 3, window: 1h, key: [{method: {}}, {path: {}}]"
	noPosts   = "name: no-posts, algorithm: FixedWindow, requests: 0, window: 1m, match: [{methods: [POST]}]"
)

// logOf is a log with a line for each "seconds client method path".
func logOf(requests ...string) string {
	start := time.Date(2026, time.November, 29, 12, 0, 0, 0, time.UTC)
	var log strings.Builder
	for _, r := range requests {
		var seconds int
		var client, method, path string
		if _, err := fmt.Sscan(r, &seconds, &client, &method, &path); err != nil {
			panic(err)
		}
		at := start.Add(time.Duration(seconds) * time.Second).Format("02/Jan/2006:15:04:05 -0700")
		fmt.Fprintf(&log, "%s - - [%s] \"%s %s HTTP/1.1\" 200 5 \"-\" \"curl/8.5\"\n", client, at, method, path)
	}
	return log.String()
}

// report replays a log against a policy, or two.
func report(t testing.TB, log string, policies ...string) *replay.Report {
	t.Helper()
	reader, err := accesslog.NewReader(strings.NewReader(log), accesslog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := replayOf(t, policies...)
	for entries, err := range reader.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Decide(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
	}
	return r.Report("access.log", reader, nil)
}

func replayOf(t testing.TB, policies ...string) *replay.Replay {
	t.Helper()
	clock := simulate.NewClock(time.Unix(0, 0))
	store := limiter.NewSimulatedMemory(clock.Now)
	var sides []replay.Side
	for i, text := range policies {
		var p simulate.Policies
		if err := policyfile.Parse("policy.yaml", []byte(text), "default", p.Add); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("policy-%d.yaml", i+1)
		sides = append(sides, replay.Side{Name: name, Engine: simulate.NewEngine(&p, clock, store, name)})
	}
	return replay.New(sides...)
}

func textOf(t testing.TB, r *replay.Report) string {
	t.Helper()
	var out strings.Builder
	if err := r.WriteText(&out, 72); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

var mixed = logOf(
	"0 10.0.0.1 GET /a", "1 10.0.0.1 GET /a", "2 10.0.0.1 GET /a", "3 10.0.0.1 GET /b", "3 10.0.0.2 POST /a",
	"59 10.0.0.2 GET /c?x=1", "61 10.0.0.1 GET /a", "60 10.0.0.2 GET /a", "90 spider.example GET /robots.txt", "91 - GET /health",
	"120 10.0.0.3 POST /a", "150 10.0.0.1 GET /a", "151 10.0.0.1 GET /b", "152 10.0.0.1 GET /b", "500 2001:db8::1 GET /a") + "junk\n"

func TestReports(t *testing.T) {
	shadow := strings.Replace(policyOf(noPosts), "spec:", "spec:\n  enforcement: Shadow", 1)
	shadow = strings.Replace(shadow, "name: orders", "name: trial", 1)
	for name, policies := range map[string][]string{
		"one":     {policyOf(perClient, perMethod) + "---\n" + shadow},
		"two":     {policyOf(perClient), policyOf(strings.Replace(perClient, "requests: 2", "requests: 1", 1), noPosts)},
		"back":    {policyOf(perClient, noPosts), policyOf(perClient)},
		"nothing": {policyOf("name: never, requests: 1, window: 1h, match: [{path: {type: Exact, value: /none}}]")},
	} {
		t.Run(name, func(t *testing.T) {
			r := report(t, mixed, policies...)
			golden.Compare(t, "testdata/"+name+".txt", textOf(t, r))
			data, err := json.MarshalIndent(r, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, "testdata/"+name+".json", string(data)+"\n")
		})
	}
}

// What was logged must not steer the terminal.
func TestKeysArePrintedWithoutControlCharacters(t *testing.T) {
	log := strings.ReplaceAll(logOf("0 10.0.0.1 GET /a", "0 10.0.0.1 GET /a"), "curl/8.5", `\x1b[2Jx`)
	text := textOf(t, report(t, log, policyOf("name: by-agent, requests: 1, window: 1h, key: [{header: {name: User-Agent}}]")))
	if strings.Contains(text, "\x1b") || !strings.Contains(text, `"\x1b[2Jx"`) {
		t.Errorf("printed %q", text)
	}
}

func TestRequestsThatAreDeniedForTheirKeyAreReported(t *testing.T) {
	limits := []string{
		"name: denied, requests: 9, window: 1h, key: [{clientIP: {}}], overrides: [{keys: [10.0.0.1], action: Deny}]",
		"name: keyless, requests: 9, window: 1h, key: [{header: {name: X-Api-Key}}], onMissingKey: Deny",
	}
	r := report(t, logOf("0 10.0.0.1 GET /a", "0 10.0.0.2 GET /a"), policyOf(limits...))
	for i, want := range []string{"{ 10.0.0.1 1}", "{ (missing) 2}"} {
		l := r.Results[0].Limits[i]
		if len(l.MostRefused) != 1 || fmt.Sprint(l.MostRefused[0]) != want {
			t.Errorf("%s refused %v, want %s", l.Name, l.MostRefused, want)
		}
	}
	if r.Results[0].Refused != 2 {
		t.Errorf("refused %d requests", r.Results[0].Refused)
	}
}

func TestRefusedKeysAreCountedBeyondThoseThatAreShown(t *testing.T) {
	var lines []string
	for i := range 12 {
		lines = append(lines, fmt.Sprintf("0 10.0.0.%d GET /a", i))
	}
	r := report(t, logOf(lines...), policyOf("name: none, requests: 0, window: 1h, key: [{clientIP: {}}]"))
	if l := r.Results[0].Limits[0]; l.RefusedKeys != 12 || len(l.MostRefused) != 10 {
		t.Errorf("%d keys were refused, %d are shown", l.RefusedKeys, len(l.MostRefused))
	}
	if text := textOf(t, r); !strings.Contains(text, "\n       1  10.0.0.2\nand of 7 more\n") {
		t.Errorf("the report is:\n%s", text)
	}
}

// Of a long key only the beginning is shown.
func TestKeysWithTheSameBeginningAreTwo(t *testing.T) {
	log := logOf("0 10.0.0.1 GET /"+strings.Repeat("a", 200)+"/1", "0 10.0.0.1 GET /"+strings.Repeat("a", 200)+"/2")
	const refusing = "name: paths, algorithm: FixedWindow, requests: 0, window: 1h, key: [{path: {}}]"
	r := report(t, log, policyOf(perClient), policyOf(refusing))
	for _, keys := range [][]replay.KeyResult{r.Results[1].Limits[0].MostRefused, r.Changes.NewlyRefusedKeys} {
		if len(keys) != 2 || keys[0].Refused != 1 || keys[1].Refused != 1 {
			t.Errorf("%v are reported", keys)
		}
	}
}

// A line is logged when its request ends: a window that has begun does not end
// because of a line from before.
func TestTimesThatGoBackALittleOpenNoWindowAgain(t *testing.T) {
	r := report(t, logOf("58 10.0.0.1 GET /", "60 10.0.0.1 GET /", "59 10.0.0.1 GET /", "61 10.0.0.1 GET /"), policyOf(perClient))
	if c := r.Results[0].Counts; c.Admitted != 3 || c.Refused != 1 || r.Log.StepsBack != 1 || r.Log.LargestStepSeconds != 1 || len(r.Warnings) > 0 {
		t.Errorf("%+v of %+v", c, r.Log)
	}
}

func TestPartsOfALogInTheWrongOrderAreWarnedOf(t *testing.T) {
	r := report(t, logOf("7200 10.0.0.1 GET /", "0 10.0.0.1 GET /"), policyOf(perClient))
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "2h0m0s") {
		t.Errorf("warnings are %q", r.Warnings)
	}
}

func TestWhatALogDoesNotHaveIsWarnedOf(t *testing.T) {
	combined := accesslog.Fields{Method: true, Path: true, ClientIP: true, Headers: []string{"Referer", "User-Agent"}}
	warnsOf(t, accesslog.Fields{}, map[string]string{
		"name: a, requests: 1, window: 1h, match: [{methods: [GET]}], key: [{path: {}}, {clientIP: {}}]":                                   "method, path, clientIP",
		"name: a, requests: 1, window: 1h, key: [{expression: 'request.method + request.path + request.clientIP + request.query[\"q\"]'}]": "method, path, clientIP",
	})
	warnsOf(t, combined, map[string]string{
		perClient: "",
		"name: a, requests: 1, window: 1h, key: [{header: {name: user-agent}}]":                                             "",
		"name: a, requests: 1, window: 1h, key: [{header: {name: x-api-key}}]":                                              `limit "a" of policy "orders" looks at what the log does not have, and finds it missing in all requests: header X-Api-Key`,
		"name: a, requests: 1, window: 1h, match: [{headers: [{name: X-Plan, value: free}]}]":                               "header X-Plan",
		"name: a, requests: 1, window: 1h, except: [{headers: [{name: Host, value: a}]}]":                                   "header Host",
		"name: a, requests: 1, window: 1h, key: [{cookie: {name: sid}}, {queryParameter: {name: q}}]":                       "cookie sid",
		"name: a, requests: 1, window: 1h, key: [{expression: 'request.host + request.headers[\"x-a\"]'}]":                  "host, header X-A",
		"name: a, requests: 1, window: 1h, match: [{expression: 'request.headers[\"referer\"] != \"\"'}]":                   "",
		"name: a, requests: 1, window: 1h, match: [{expression: 'request.headers.exists(n, n == request.cookies[\"h\"])'}]": "headers other than Referer, User-Agent, cookies",
		"name: a, requests: 1, window: 1h, cost: {expression: 'size(request.cookies)'}":                                     "cookies",
		"name: a, requests: 1, window: 1h, algorithm: Concurrency":                                                          "in progress",
	})
}

// warnsOf checks what the warnings about each limit say; empty if there is to be none.
func warnsOf(t *testing.T, fields accesslog.Fields, limits map[string]string) {
	t.Helper()
	for limit, want := range limits {
		var definitions []policy.Definition
		err := policyfile.Parse("p", []byte(policyOf(limit)), "default", func(d policy.Definition) error {
			definitions = append(definitions, d)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(replay.Warnings(definitions, fields), "; ")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("of %s it is warned %q, want %q", limit, got, want)
		}
	}
}

// What differs is where requests come from.
func TestALogIsDecidedAsTheSameTraceIs(t *testing.T) {
	requests := []string{"0 10.0.0.1 GET /a", "1 10.0.0.1 GET /a", "2 10.0.0.1 GET /a", "59 10.0.0.2 POST /b", "60 10.0.0.1 GET /a"}
	var trace strings.Builder
	for _, r := range requests {
		f := strings.Fields(r)
		fmt.Fprintf(&trace, "{\"at\":\"%ss\",\"clientIP\":%q,\"method\":%q,\"path\":%q}\n", f[0], f[1], f[2], f[3])
	}
	var p simulate.Policies
	text := policyOf(perClient, perMethod, noPosts)
	if err := policyfile.Parse("p", []byte(text), "default", p.Add); err != nil {
		t.Fatal(err)
	}
	clock := simulate.NewClock(time.Date(2026, time.November, 29, 12, 0, 0, 0, time.UTC))
	engine := simulate.NewEngine(&p, clock, limiter.NewSimulatedMemory(clock.Now), "p")
	summary := simulate.NewSummary(engine.Limits())
	if err := simulate.Run(t.Context(), simulate.NewTrace("trace", strings.NewReader(trace.String())), engine, io.Discard, summary); err != nil {
		t.Fatal(err)
	}
	got := report(t, logOf(requests...), text)
	if got.Results[0].Admitted != summary.Admitted || got.Log.Requests != summary.Requests || summary.Admitted != 3 {
		t.Errorf("the log: %+v; the trace: %+v", got.Results[0].Counts, summary)
	}
}

// BenchmarkReplay is the whole way from text to tallies, for one limit by client.
func BenchmarkReplay(b *testing.B) {
	const block = 100_000
	var requests []string
	for i := range block {
		requests = append(requests, fmt.Sprintf("%d 10.0.%d.%d GET /v1/orders/%d", i/50, i%256, i*7%256, i))
	}
	text := logOf(requests...)
	b.ReportAllocs()
	var in []io.Reader
	for n := b.N; n > 0; n -= block {
		in = append(in, strings.NewReader(text))
	}
	reader, err := accesslog.NewReader(io.MultiReader(in...), accesslog.Options{})
	if err != nil {
		b.Fatal(err)
	}
	r := replayOf(b, policyOf("name: per-client, requests: 60, window: 1m, key: [{clientIP: {}}]"))
	b.ResetTimer()
	for entries, err := range reader.Batches(b.Context()) {
		if err != nil {
			b.Fatal(err)
		}
		if err := r.Decide(b.Context(), entries); err != nil {
			b.Fatal(err)
		}
		if reader.Stats().Requests >= int64(b.N) {
			break
		}
	}
	b.ReportMetric(float64(reader.Stats().Requests)/b.Elapsed().Seconds(), "lines/s")
}
