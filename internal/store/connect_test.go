package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

func TestAURLThatIsWrongIsRefusedWithoutShowingItsSecrets(t *testing.T) {
	for name, url := range map[string]string{
		"no scheme":             "user:hunter2@localhost:6379",
		"unknown scheme":        "http://user:hunter2@localhost",
		"password with a slash": "redis://user:hunter2/x@localhost:6379",
		"password with percent": "redis://user:hunter2%zz@localhost",
		"password as port":      "redis://localhost:hunter2",
		"password as database":  "redis://localhost:6379/hunter2",
		"unknown parameter":     "redis://user:hunter2@localhost?pool=3",
		"bad parameter value":   "redis://user:hunter2@localhost?pool_size=hunter2",
		"sentinel, no master":   "redis+sentinel://user:hunter2@localhost:26379",
		"password with a query": "redis://user:12?hunter2@localhost:6379",
		"password with a hash":  "redis://user:12#hunter2@localhost:6379",
		"password with a path":  "redis://user:12/hunter2@localhost:6379",
		"password in an option": "redis+sentinel://localhost?master_name=m&addr=hunter2",
		"no slashes":            "redis:hunter2@localhost",
		"empty":                 "",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := store.Connect(store.ConnectOptions{URL: url, Password: "hunter2"})
			if err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error: %v", err)
			}
		})
	}
}

// Some of these would make go-redis panic, the others make it read from replicas
// or repeat what may have been done.
func TestAParameterThatWouldBreakAPromiseIsRefused(t *testing.T) {
	for _, url := range []string{
		"redis+sentinel://a?master_name=m&route_by_latency=true",
		"redis+sentinel://a?master_name=m&route_randomly=true",
		"redis+sentinel://a?master_name=m&replica_only=true",
		"redis+cluster://a?read_only=true",
		"redis+cluster://a?route_by_latency=true",
		"redis+cluster://a?route_randomly=true",
		"redis://a?max_retries=3",
	} {
		if client, err := store.Connect(store.ConnectOptions{URL: url}); err == nil {
			t.Errorf("%s was taken", url)
			_ = client.Close()
		}
	}
}

func TestEachFormOfURLGivesItsClient(t *testing.T) {
	for url, cluster := range map[string]bool{
		"redis://localhost:6379/3":                          false,
		"rediss://user:x@localhost":                         false,
		"unix:///run/redis.sock":                            false,
		"redis+cluster://a:6379?addr=b:6379":                true,
		"rediss+cluster://a:6379":                           true,
		"redis+sentinel://a:26379?master_name=m&addr=b:123": false,
	} {
		client, err := store.Connect(store.ConnectOptions{URL: url})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if _, isCluster := client.(*redis.ClusterClient); isCluster != cluster {
			t.Errorf("%s gave %T", url, client)
		}
		_ = client.Close()
	}
}

func TestCredentialsOverrideThoseOfTheURL(t *testing.T) {
	server := testredis.Start(t, "--requirepass", "hunter2")
	url := "redis://:wrong@" + server.Addr
	client, err := store.Connect(store.ConnectOptions{URL: url, Password: "hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := store.New(client, "p").Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestADeadServerIsNoticedAtOnceAndNotRetried(t *testing.T) {
	client, err := store.Connect(store.ConnectOptions{URL: "redis://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	began := time.Now()
	if err := store.New(client, "p").Ping(t.Context()); err == nil {
		t.Error("no error from a port that nobody listens on")
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}
