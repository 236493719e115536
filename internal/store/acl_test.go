package store_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// documentedRules reads from the package's documentation the ACL rules of the
// indented block that follows a heading.
func documentedRules(t *testing.T, heading string) []any {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), heading)
	if !found {
		t.Fatalf("doc.go does not say %q", heading)
	}
	var rules []any
	for line := range strings.Lines(after) {
		switch rule, indented := strings.CutPrefix(line, "//\t"); {
		case indented:
			for field := range strings.FieldsSeq(strings.ReplaceAll(rule, "<ns>", "shop")) {
				rules = append(rules, field)
			}
		case rules != nil:
			return rules
		}
	}
	return rules
}

func user(t *testing.T, server *testredis.Server, admin redis.UniversalClient, name string, rules []any) (*store.Store, redis.UniversalClient) {
	t.Helper()
	setUser(t, admin, append([]any{name, "reset", "on", ">hunter2"}, rules...)...)
	client, err := store.Connect(store.ConnectOptions{URL: "redis://" + server.Addr, Username: name, Password: "hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return store.New(client, store.DefaultPrefix), client
}

func TestTheDocumentedACLsSuffice(t *testing.T) {
	server := testredis.Start(t)
	_, admin := connect(t, server.URL(), store.DefaultPrefix)
	manager, _ := user(t, server, admin, "manager", documentedRules(t, "The manager needs"))
	sidecar, client := user(t, server, admin, "sidecar", documentedRules(t, "A sidecar needs"))

	if err := manager.LoadScripts(t.Context(), store.Scripts()); err != nil {
		t.Error(err)
	}
	publish(t, manager, "shop", definition("shop", "orders", 1))
	publish(t, manager, "bank", definition("bank", "orders", 1))
	w := watch(t, sidecar, time.Hour)
	next(t, "a snapshot", w.snapshots)
	awaitSubscription(t, admin, "tallyman:events:shop")
	admin.ScriptFlush(t.Context())
	publish(t, manager, "shop")
	next(t, "the deletion", w.snapshots)
	beats := func(ns string, policies map[string]int64) error {
		_, err := sidecar.Beat(t.Context(), ns, store.Heartbeat{Pod: "a", Policies: policies})
		return err
	}
	for _, err := range []error{
		sidecar.Ping(t.Context()),
		beats("shop", map[string]int64{"orders": 1, "login": 1}),
		beats("shop", map[string]int64{"orders": 1}),
		manager.Ping(t.Context()),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := manager.Enforcers(t.Context(), "shop"); err != nil {
		t.Error(err)
	}
	if _, err := manager.Namespaces(t.Context()); err != nil {
		t.Error(err)
	}
	if err := sidecar.Leave(t.Context(), "shop", "a"); err != nil {
		t.Error(err)
	}
	if denied := admin.Do(t.Context(), "ACL", "LOG").Val(); len(denied.([]any)) != 0 {
		t.Errorf("denied: %v", denied)
	}

	t.Run("and a sidecar is kept to its namespace", func(t *testing.T) {
		if _, err := sidecar.Load(t.Context(), "bank"); err == nil {
			t.Error("read another namespace's definitions")
		}
		if beats("bank", nil) == nil {
			t.Error("reported in another namespace")
		}
		if _, err := sidecar.Publish(t.Context(), "shop", nil); err == nil {
			t.Error("published")
		}
		if err := client.Set(t.Context(), "tallyman:revision:{shop}", "1-1", 0).Err(); err == nil {
			t.Error("wrote a revision")
		}
	})
}
