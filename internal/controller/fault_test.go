package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// faultOf is the fault of a publish to a URL.
func faultOf(t *testing.T, url string) (reason, message string) {
	t.Helper()
	client, err := store.Connect(store.ConnectOptions{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = store.New(client, "tallyman").Publish(ctx, "shop", nil)
	if err == nil {
		t.Fatal("the publish succeeded")
	}
	f := fault(err)
	return f.Reason, f.Message
}

func TestFaultsAreToldByWhatTheStoreDoes(t *testing.T) {
	down := testredis.Start(t)
	down.Kill()
	hanging := testredis.Start(t)
	hanging.Pause()
	defer hanging.Resume()
	locked := testredis.Start(t, "--requirepass", "hunter2")
	limited := testredis.Start(t)
	acl := limited.Client(t).Do(t.Context(), "ACL", "SETUSER", "reader", "on", ">hunter2", "~*", "&*", "+@all", "-@scripting")
	if err := acl.Err(); err != nil {
		t.Fatal(err)
	}
	replica := testredis.Start(t, "--replicaof", "127.0.0.1", "1")

	for name, test := range map[string]struct{ url, reason, message string }{
		"down":           {down.URL(), v1alpha1.ReasonStoreUnavailable, "connection refused"},
		"hanging":        {hanging.URL(), v1alpha1.ReasonStoreUnavailable, "timeout"},
		"unknown host":   {"redis://redis.invalid:6379", v1alpha1.ReasonStoreUnavailable, "cannot be resolved"},
		"no password":    {"redis://" + locked.Addr, v1alpha1.ReasonStoreUnauthorized, "credentials"},
		"wrong password": {"redis://:hunter3@" + locked.Addr, v1alpha1.ReasonStoreUnauthorized, "credentials"},
		"no permission":  {"redis://reader:hunter2@" + limited.Addr, v1alpha1.ReasonStoreUnauthorized, "permission"},
		"read only":      {replica.URL(), v1alpha1.ReasonStoreUnavailable, "the error READONLY"},
	} {
		t.Run(name, func(t *testing.T) {
			reason, message := faultOf(t, test.url)
			if reason != test.reason || !strings.Contains(message, test.message) {
				t.Errorf("the fault is %s: %q, not %s: …%s…", reason, message, test.reason, test.message)
			}
			if strings.Contains(message, "hunter") || strings.Contains(message, "reader") {
				t.Errorf("the message holds credentials: %q", message)
			}
			if _, again := faultOf(t, test.url); again != message {
				t.Errorf("the message changes from %q to %q: every retry would write a status", message, again)
			}
		})
	}
}
