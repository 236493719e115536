package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

func TestTheStoresHealthIsTold(t *testing.T) {
	nodes := []store.NodeHealth{
		{Address: "a:6379", Latency: 250 * time.Microsecond, Missing: []string{"decide.lua"}},
		{Address: "b:6379", Err: errors.New("connection refused")},
	}
	want := operator.StoreHealth{Nodes: []operator.NodeHealth{
		{Address: "a:6379", LatencyMicros: 250, Scripts: 4, MissingScripts: []string{"decide.lua"}},
		{Address: "b:6379", Error: "connection refused"},
	}}
	if diff := cmp.Diff(want, storeHealth(nodes, nil, 5)); diff != "" {
		t.Errorf("health (-want +got):\n%s", diff)
	}
	if got := storeHealth(nil, errors.New("no masters"), 5); got.Error != "no masters" || got.Nodes == nil {
		t.Errorf("without nodes: %+v", got)
	}
}

func TestTheOperatorAPIHasAGuard(t *testing.T) {
	server := testredis.Start(t)
	api := newOperatorAPI(store.New(server.Client(t), store.DefaultPrefix), store.Scripts())
	for host, code := range map[string]int{"127.0.0.1:8082": http.StatusOK, "evil.example": http.StatusForbidden} {
		r := httptest.NewRequest("GET", operator.PathStore, nil)
		r.Host = host
		r.Header.Set(operator.Header, "1")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		var health operator.StoreHealth
		if err := json.Unmarshal(w.Body.Bytes(), &health); err != nil || w.Code != code {
			t.Errorf("%s: got %d %s", host, w.Code, w.Body)
		}
		if code == http.StatusOK && (len(health.Nodes) != 1 || len(health.Nodes[0].MissingScripts) != len(store.Scripts())) {
			t.Errorf("%s: got %+v", host, health)
		}
	}
}
