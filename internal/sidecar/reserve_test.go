package sidecar

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

const tokensPerDay = `storeTimeout: 10s, limits: [{name: tokens, requests: 100, window: 24h, algorithm: SlidingLog, cost: {requests: 40}}]`

// remaining is what is left of the only limit.
func remaining(t *testing.T, api http.Handler) int64 {
	t.Helper()
	var got checkResponse
	if err := json.Unmarshal(ask(api, "/v1/peek", `{}`).Body.Bytes(), &got); err != nil || len(got.Limits) != 1 || got.Limits[0].Remaining == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	return *got.Limits[0].Remaining
}

func TestReservationsAndRefundsOverTheAPI(t *testing.T) {
	inProcess, _ := inMemory(t, tokensPerDay)
	redis, err := tallyman.New(t.Context(), tallyman.Options{Store: testredis.Start(t).URL(), PolicyFile: policyFile(t, tokensPerDay)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = redis.Close(t.Context()) })
	for name, l := range map[string]*tallyman.Limiter{"in the process": inProcess, "in Redis": redis} {
		t.Run(name, func(t *testing.T) {
			api := newCheckAPI(doorsTo(l), 0, silent)
			for i, step := range []struct {
				path, body string
				code       int
				says       string
				left       int64
			}{
				{"/v1/reserve", `{"token":"a","ttlMs":60000}`, 200, `"allowed":true`, 60},
				{"/v1/reserve", `{"token":"b"}`, 200, `"allowed":true`, 20},
				{"/v1/reserve", `{"token":"c"}`, 200, `"allowed":false`, 20},
				{"/v1/settle", `{"token":"a","cost":15}`, 204, "", 45},
				{"/v1/settle", `{"token":"a","cost":1}`, 404, "no such reservation", 45},
				{"/v1/settle", `{"token":"c","cost":1}`, 404, "no such reservation", 45},
				{"/v1/settle", `{"token":"b","cost":0}`, 204, "", 85},
				{"/v1/check", `{}`, 200, `"allowed":true`, 45},
				{"/v1/refund", `{"token":"d"}`, 204, "", 85},
				{"/v1/refund", `{"token":"d"}`, 204, "", 85},
				{"/v1/refund", `{"token":"e"}`, 204, "", 100},
			} {
				w := ask(api, step.path, step.body)
				if left := remaining(t, api); w.Code != step.code || !strings.Contains(w.Body.String(), step.says) || left != step.left {
					t.Fatalf("step %d, %s %s: got %d %s, and %d are left, want %d with %q and %d",
						i, step.path, step.body, w.Code, w.Body, left, step.code, step.says, step.left)
				}
			}
		})
	}
}

func TestReservationsThatCannotBeUnderstoodChangeNothing(t *testing.T) {
	l, _ := inMemory(t, tokensPerDay)
	api := newCheckAPI(doorsTo(l), 0, silent)
	ask(api, "/v1/reserve", `{"token":"a"}`)
	long := strings.Repeat("x", maxToken+1)
	for body, tc := range map[string]struct{ path, says string }{
		`{}`:                             {"/v1/reserve", "token"},
		`{"token":"` + long + `"}`:       {"/v1/reserve", "200"},
		`{"token":"b","ttlMs":-1}`:       {"/v1/reserve", "ttlMs"},
		`{"token":"b","ttlMs":86400001}`: {"/v1/reserve", "86400000"},
		`{"token":"b","path":"v1"}`:      {"/v1/reserve", "slash"},
		`{"token":"b","cost":1}`:         {"/v1/reserve", `\"cost\"`},
		`{"token":"a"}`:                  {"/v1/settle", "cost"},
		`{"token":"a","cost":-1}`:        {"/v1/settle", "cost"},
		`{"token":"a","cost":1.5}`:       {"/v1/settle", "cost"},
		`{"cost":1}`:                     {"/v1/settle", "token"},
		`{"path":"/"}`:                   {"/v1/refund", "token"},
		`null`:                           {"/v1/refund", "null"},
		`{"token":"a","ttlMs":1}`:        {"/v1/refund", `\"ttlMs\"`},
	} {
		if w := ask(api, tc.path, body); w.Code != 400 || !strings.Contains(w.Body.String(), tc.says) {
			t.Errorf("%s %.80s got %d %s, want 400 with %q", tc.path, body, w.Code, w.Body, tc.says)
		}
	}
	if left := remaining(t, api); left != 60 {
		t.Errorf("%d are left, want 60", left)
	}
}

func TestWhatTheStoreDidNotDoIsAnErrorOfTheAPI(t *testing.T) {
	redis := testredis.Start(t)
	l, err := tallyman.New(t.Context(), tallyman.Options{Store: redis.URL(), PolicyFile: policyFile(t, tokensPerDay)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(t.Context()) })
	redis.Kill()
	api := newCheckAPI(doorsTo(l), 0, silent)
	for path, body := range map[string]string{"/v1/settle": `{"token":"a","cost":1}`, "/v1/refund": `{"token":"a"}`} {
		w := ask(api, path, body)
		if w.Code != 503 || !strings.Contains(w.Body.String(), "again") || strings.Contains(w.Body.String(), redis.Addr) {
			t.Errorf("%s without a store got %d %s", path, w.Code, w.Body)
		}
	}
	if w := ask(api, "/v1/reserve", `{"token":"a"}`); w.Code != 200 || !strings.Contains(w.Body.String(), `"degraded":true`) {
		t.Errorf("a reservation without a store got %d %s", w.Code, w.Body)
	}
}

func TestReservationsHoldSlotsUntilTheyAreRefunded(t *testing.T) {
	l, _ := inMemory(t, `limits: [{name: slots, requests: 1, window: 1m, algorithm: Concurrency}]`)
	api := newCheckAPI(doorsTo(l), 0, silent)
	for i, step := range []struct{ path, token, says string }{
		{"/v1/reserve", "a", `"allowed":true`},
		{"/v1/reserve", "b", `"allowed":false`},
		{"/v1/refund", "a", ""},
		{"/v1/reserve", "b", `"allowed":true`},
	} {
		if w := ask(api, step.path, `{"token":"`+step.token+`"}`); !strings.Contains(w.Body.String(), step.says) {
			t.Fatalf("step %d got %d %s, want %s", i, w.Code, w.Body, step.says)
		}
	}
}
