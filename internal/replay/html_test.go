package replay_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/golden"
	"github.com/tallyman-dev/tallyman/internal/replay"
)

func htmlOf(t testing.TB, r *replay.Report) string {
	t.Helper()
	var out strings.Builder
	if err := r.WriteHTML(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestPages(t *testing.T) {
	r := report(t, mixed, policyOf(perClient), policyOf(strings.Replace(perClient, "requests: 2", "requests: 1", 1), noPosts))
	golden.Compare(t, "testdata/two.html", htmlOf(t, r))
}

// A page is opened in a browser, and what is in it was sent by anyone.
func TestPagesEscapeWhatWasLoggedAndNeedNothingElse(t *testing.T) {
	const attack = `</td><script>alert(1)</script><img src=x onerror=alert(1)>`
	log := strings.ReplaceAll(logOf("0 10.0.0.1 GET /a", "0 10.0.0.1 GET /a"), "curl/8.5", attack)
	r := report(t, log, policyOf("name: by-agent, requests: 1, window: 1h, key: [{header: {name: User-Agent}}]"))
	r.Log.Name, r.Results[0].Policies, r.Warnings = attack, attack, []string{attack}
	r.Log.Unreadable = append(r.Log.Unreadable, replay.Unreadable{Line: 1, Reason: attack})
	page := htmlOf(t, r)
	if strings.Contains(page, "<script") || strings.Contains(page, "<img") || !strings.Contains(page, "&lt;script&gt;") {
		t.Errorf("the page has what was logged as it is:\n%s", page)
	}
	if found := regexp.MustCompile(`https?:|\b(src|href)="|url\(|@import|<link`).FindString(page); found != "" {
		t.Errorf("the page asks for something else: %q", found)
	}
	if !strings.Contains(page, `content="default-src 'none'; style-src 'unsafe-inline'"`) {
		t.Error("the page does not forbid scripts")
	}
}
