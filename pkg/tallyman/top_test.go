package tallyman

import (
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const counted = `{selector: {}, limits: [
	{name: per-client, requests: 2, window: 1h, algorithm: SlidingLog, key: [{clientIP: {}}, {path: {}}, {header: {name: X-Api-Key}}],
		except: [{path: {value: /free}}]},
	{name: all, requests: 1000, window: 1m},
	{name: writes, requests: 1, window: 1m, match: [{methods: [POST]}]}]}`

func from(ip, key string) Request {
	r := get("/v1")
	r.ClientIP = netip.MustParseAddr(ip)
	if key != "" {
		r.Header = http.Header{"X-Api-Key": {key}}
	}
	return r
}

func TestTopTellsWhoHasMostRequests(t *testing.T) {
	l := fromFile(t, doc("a", counted)+doc("b", `{selector: {}, enforcement: Shadow, limits: [{name: none, requests: 0, window: 1m}]}`), Options{})
	alice, bob := from("192.0.2.1", "alice"), from("2001:db8::7", "")
	l.Admit(t.Context(), alice) // nobody has asked yet
	if first := l.Top(time.Hour); len(first.Limits) != 4 || first.Limits[0].Admitted != 0 || first.Since > time.Second {
		t.Errorf("the first answer is %+v", first)
	}
	for range 3 {
		l.Admit(t.Context(), alice)
		l.Peek(t.Context(), alice)
		l.Explain(t.Context(), alice)
	}
	l.Admit(t.Context(), bob)
	l.Reserve(t.Context(), bob, "token", time.Minute)
	l.AdmitAll(t.Context(), []Request{get("/free"), get("/free")})
	l.PeekAll(t.Context(), []Request{get("/free"), get("/free")})
	want := []TopLimit{
		{Policy: "a", Limit: "per-client", Admitted: 3, Refused: 2, Keys: []TopKey{
			{Text: "192.0.2.1, /v1, #2bd806c97f0e00af1a1fc3328fa763a9", Values: "192.0.2.1, /v1, alice", Admitted: 1, Refused: 2},
			{Text: "2001:db8::, /v1, (missing)", Values: "2001:db8::/64, /v1, (missing)", Admitted: 2},
		}},
		{Policy: "a", Limit: "all", Admitted: 5, Keys: []TopKey{{Text: "(all)", Values: "(all)", Admitted: 5}}},
		{Policy: "a", Limit: "writes"},
		{Policy: "b", Limit: "none", Shadow: true, Refused: 6, Keys: []TopKey{{Text: "(all)", Values: "(all)", Refused: 6}}},
	}
	if diff := cmp.Diff(want, l.Top(time.Hour).Limits, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

func TestTopKeepsLittleOfLongValues(t *testing.T) {
	l := fromFile(t, doc("a", counted), Options{})
	l.Top(time.Hour)
	l.Admit(t.Context(), from("192.0.2.1", strings.Repeat("é", 10_000)))
	if got := l.Top(time.Hour).Limits[0].Keys[0].Values; len(got) > maxValues+len("…") || !strings.HasSuffix(got, "é…") {
		t.Errorf("kept %q", got)
	}
}

// Header values may have any bytes, and whoever sends them is answered all the same.
func TestTopTakesValuesThatAreNoText(t *testing.T) {
	l := fromFile(t, doc("a", counted), Options{})
	l.Top(time.Hour)
	r := get("/")
	r.Header = http.Header{"X-Api-Key": {strings.Repeat("\x80", 10_000)}}
	l.Admit(t.Context(), r)
	r.Path = "/" + strings.Repeat("\xff", 10_000)
	l.Admit(t.Context(), r)
	if got := l.Top(time.Hour).Limits[0]; got.Admitted != 2 || len(got.Keys) != 2 {
		t.Errorf("got %+v", got)
	}
}

func TestKeysAreCountedAsLongAsSomebodyAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fromFile(t, doc("a", counted), Options{})
		l.Top(15 * time.Second)
		for range 3 {
			time.Sleep(14 * time.Second)
			l.Admit(t.Context(), from("192.0.2.1", "alice"))
			l.Top(15 * time.Second)
		}
		if top := l.Top(15 * time.Second); top.Since != 42*time.Second || top.Limits[0].Admitted+top.Limits[0].Refused != 3 {
			t.Errorf("while somebody asks: %+v", top)
		}
		time.Sleep(16 * time.Second)
		if l.tops.counting.Load() != nil {
			t.Error("keys are counted for nobody")
		}
		if top := l.Top(15 * time.Second); top.Since != 0 || top.Limits[1].Admitted != 0 {
			t.Errorf("after a while: %+v", top)
		}
	})
}

func TestTopIsAskedWhileRequestsAreDecided(t *testing.T) {
	l := fromFile(t, doc("a", counted), Options{})
	l.Top(time.Hour)
	var deciding sync.WaitGroup
	const each, goroutines = 200, 8
	for range goroutines {
		deciding.Go(func() {
			for i := range each {
				l.Admit(t.Context(), from(netip.AddrFrom4([4]byte{10, 0, byte(i), byte(i)}).String(), "x"))
			}
		})
	}
	for range 50 {
		l.Top(time.Hour)
	}
	deciding.Wait()
	got := l.Top(time.Hour).Limits[0]
	if got.Admitted != 2*each || got.Admitted+got.Refused != each*goroutines || got.Others {
		t.Errorf("got %d admitted and %d refused, others: %v", got.Admitted, got.Refused, got.Others)
	}
}

func TestAPolicyThatChangesIsCountedAnew(t *testing.T) {
	l := fromFile(t, doc("a", counted), Options{})
	l.Top(time.Hour)
	l.Admit(t.Context(), get("/"))
	again := fromFile(t, doc("a", counted), Options{})
	l.current.Store(again.current.Load())
	if top := l.Top(time.Hour); len(top.Limits) != 3 || top.Limits[1].Admitted != 0 {
		t.Errorf("got %+v", top)
	}
	known := 0
	l.tops.counting.Load().limits.Range(func(any, any) bool { known++; return true })
	if known != 3 {
		t.Errorf("%d limits are counted, of 3 that are in force", known)
	}
}

// Leased requests are decided in memory, so that what else is done shows most.
func BenchmarkAdmitLeased(b *testing.B) {
	l := fromFile(b, doc("a", `{selector: {}, limits: [{name: x, requests: 1000000000, window: 1s, algorithm: TokenBucket,
		key: [{header: {name: X-Api-Key}}], distribution: {mode: Leased}}]}`), Options{})
	r := keyed("alice")
	for name, counting := range map[string]bool{"off": false, "on": true} {
		b.Run(name, func(b *testing.B) {
			l.tops.close()
			if counting {
				l.Top(time.Hour)
			}
			b.ReportAllocs()
			for b.Loop() {
				l.Admit(b.Context(), r)
			}
		})
	}
}
