package tallyman

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

const aclPassword = "hunter2"

// documentedUsers are the lines of an aclfile that docs/redis.md shows, each with
// a user, by name.
func documentedUsers(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	users := map[string]string{}
	for _, block := range regexp.MustCompile(`(?m)^    user (?:.*\n)+?\n`).FindAllString(string(text), -1) {
		fields := strings.Fields(strings.ReplaceAll(block, "PASSWORD", aclPassword))
		users[fields[1]] = strings.Join(fields, " ")
	}
	return users
}

// aclServer is a Redis with the documented users, shop's once more for the
// namespace bank, and a user admin for the test. It takes what a server of the
// documentation's readers would: one aclfile.
type aclServer struct {
	*testredis.Server
	admin redis.UniversalClient
}

func startWithUsers(t *testing.T) *aclServer {
	users := documentedUsers(t)
	for _, name := range []string{"default", "manager", "shop"} {
		if users[name] == "" {
			t.Fatalf("docs/redis.md shows no user %s", name)
		}
	}
	lines := []string{
		users["default"], users["manager"], users["shop"],
		strings.ReplaceAll(users["shop"], "shop", "bank"),
		"user admin on >" + aclPassword + " ~* &* +@all",
	}
	file := filepath.Join(t.TempDir(), "users.acl")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &aclServer{Server: testredis.Start(t, "--aclfile", file, "--enable-debug-command", "yes")}
	s.admin = s.as(t, "admin")
	return s
}

func (s *aclServer) as(t *testing.T, user string) redis.UniversalClient {
	t.Helper()
	client, err := store.Connect(store.ConnectOptions{URL: "redis://" + s.Addr, Username: user, Password: aclPassword})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// denied is what the server has refused so far.
func (s *aclServer) denied(t *testing.T) []any {
	t.Helper()
	log, err := s.admin.Do(t.Context(), "ACL", "LOG").Slice()
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// called are the commands that the server has been asked for.
func (s *aclServer) called(t *testing.T) map[string]bool {
	t.Helper()
	called := map[string]bool{}
	for name := range s.admin.InfoMap(t.Context(), "commandstats").Val()["Commandstats"] {
		called[strings.TrimPrefix(name, "cmdstat_")] = true
	}
	return called
}

// everyWay is a policy with all algorithms, each in all distributions that it can
// have.
func everyWay() string {
	var limits []string
	for _, algorithm := range []string{"FixedWindow", "SlidingWindow", "SlidingLog", "TokenBucket", "Concurrency"} {
		for _, mode := range []string{"Exact", "Leased", "Synced", "Split"} {
			if algorithm == "Concurrency" && mode != "Exact" || algorithm == "SlidingLog" && mode == "Synced" {
				continue
			}
			window := "1h"
			if algorithm == "Concurrency" {
				window = "1s" // after a third of it slots are renewed
			}
			limits = append(limits, fmt.Sprintf(`{"name":%q,"requests":1000,"window":%q,"algorithm":%q,"distribution":{"mode":%q}}`,
				strings.ToLower(algorithm+"-"+mode), window, algorithm, mode))
		}
	}
	return `{"selector":{},"storeTimeout":"10s","limits":[` + strings.Join(limits, ",") + `]}`
}

// The users of docs/redis.md can do all that the manager and the pods do, and have
// no command that neither needs.
func TestTheDocumentedUsersOfRedisSuffice(t *testing.T) {
	server := startWithUsers(t)
	manager := store.New(server.as(t, "manager"), store.DefaultPrefix)
	publish := func(definitions ...policy.Definition) {
		t.Helper()
		if _, err := manager.Publish(t.Context(), "shop", definitions); err != nil {
			t.Fatal(err)
		}
	}
	if err := manager.LoadScripts(t.Context(), allScripts()); err != nil {
		t.Error(err)
	}
	publish(definition(t, "orders", 1, everyWay()))
	pod := open(t, Options{Store: "redis://" + server.Addr, Username: "shop", Password: aclPassword, Namespace: "shop", Pod: "orders-1"})
	<-pod.Ready()
	for round := range 3 {
		if n := admitted(t, pod, 20); n != 20 {
			t.Errorf("round %d: %d of 20 requests were admitted", round, n)
		}
		token := fmt.Sprintf("token-%d", round)
		if d := pod.Reserve(t.Context(), get("/"), token, time.Minute); !d.Allowed || d.Degraded {
			t.Errorf("reserve: %+v", d)
		}
		if err := pod.Settle(t.Context(), get("/"), token, 2); err != nil {
			t.Error(err)
		}
		if err := pod.Refund(t.Context(), get("/"), "refund-"+token); err != nil {
			t.Error(err)
		}
		if d := pod.Peek(t.Context(), get("/")); !d.Allowed || d.Degraded {
			t.Errorf("peek: %+v", d)
		}
		for _, limit := range pod.Explain(t.Context(), get("/")).Limits {
			if _, err := pod.Reset(t.Context(), limit.Counter); err != nil {
				t.Error(err)
			}
		}
		server.admin.ScriptFlush(t.Context()) // what then comes is sent whole
	}
	eventually(t, "the pod's heartbeat", func() bool {
		alive, err := manager.Enforcers(t.Context(), "shop")
		return err == nil && len(alive) == 1 && alive[0].Policies["orders"] == 1
	})
	eventually(t, "slots to be renewed", func() bool { return server.called(t)["zscore"] })
	if namespaces, err := manager.Namespaces(t.Context()); err != nil || !slices.Equal(namespaces, []string{"shop"}) {
		t.Errorf("namespaces: %v, %v", namespaces, err)
	}
	publish()
	eventually(t, "the deletion", func() bool { return len(pod.current.Load().generations()) == 0 })
	if err := manager.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if nodes, err := manager.Health(t.Context(), store.Scripts()); err != nil || nodes[0].Err != nil {
		t.Errorf("health: %+v, %v", nodes, err)
	}
	if err := pod.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if denied := server.denied(t); len(denied) != 0 {
		t.Errorf("denied: %v", denied)
	}
	called := server.called(t)
	for name, user := range documentedUsers(t) {
		for command := range strings.FieldsSeq(user) {
			if command, allowed := strings.CutPrefix(command, "+"); allowed && !called[command] {
				t.Errorf("%s may %s, and nobody needs it", name, command)
			}
		}
	}
}

// Without the right to send scripts, pods use those that the manager has loaded, and
// wait for it when they are gone.
func TestPodsThatMaySendNoScriptsUseTheManagers(t *testing.T) {
	server := startWithUsers(t)
	if err := server.admin.Do(t.Context(), words("ACL SETUSER shop -eval -eval_ro")...).Err(); err != nil {
		t.Fatal(err)
	}
	endless := server.as(t, "shop").Eval(t.Context(), "while true do end", nil).Err()
	refused(t, "shop", "run a script that never ends", endless)

	manager := store.New(server.as(t, "manager"), store.DefaultPrefix)
	load := func() {
		t.Helper()
		if err := manager.LoadScripts(t.Context(), allScripts()); err != nil {
			t.Fatal(err)
		}
	}
	load()
	if _, err := manager.Publish(t.Context(), "shop", []policy.Definition{definition(t, "orders", 1, everyWay())}); err != nil {
		t.Fatal(err)
	}
	pod := open(t, Options{Store: "redis://" + server.Addr, Username: "shop", Password: aclPassword, Namespace: "shop", Pod: "orders-1"})
	<-pod.Ready()
	if n := admitted(t, pod, 20); n != 20 {
		t.Errorf("%d of 20 requests were admitted", n)
	}
	server.admin.ScriptFlush(t.Context())
	if d := pod.Admit(t.Context(), get("/")); !d.Allowed || !d.Degraded {
		t.Errorf("without the scripts: %+v", d)
	}
	load()
	eventually(t, "requests to be decided by the store again", func() bool { return !pod.Admit(t.Context(), get("/")).Degraded })
}

// On a Redis Cluster users need a few commands more, on each node.
func TestTheDocumentedUsersSufficeOnACluster(t *testing.T) {
	text, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile("on a Cluster (`.*`)\\.").FindSubmatch(text)
	if said == nil {
		t.Fatal("docs/redis.md does not say what users need on a Cluster")
	}
	more := strings.NewReplacer("`", "", ",", "", " and", "").Replace(string(said[1]))
	cluster := testredis.StartCluster(t, 2)
	for name, user := range documentedUsers(t) {
		if name == "default" { // the test's own, by which it administers the nodes
			continue
		}
		for _, node := range cluster.Servers {
			rules := strings.TrimPrefix(user, "user ") + " " + more
			if err := node.Client(t).Do(t.Context(), append([]any{"ACL", "SETUSER"}, words(rules)...)...).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	url := strings.Replace(cluster.URL(), "redis:", "redis+cluster:", 1)
	client, err := store.Connect(store.ConnectOptions{URL: url, Username: "manager", Password: aclPassword})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	manager := store.New(client, store.DefaultPrefix)
	if err := manager.LoadScripts(t.Context(), allScripts()); err != nil {
		t.Error(err)
	}
	if _, err := manager.Publish(t.Context(), "shop", []policy.Definition{definition(t, "orders", 1, everyWay())}); err != nil {
		t.Fatal(err)
	}
	pod := open(t, Options{Store: url, Username: "shop", Password: aclPassword, Namespace: "shop", Pod: "orders-1"})
	<-pod.Ready()
	if n := admitted(t, pod, 20); n != 20 {
		t.Errorf("%d of 20 requests were admitted", n)
	}
	eventually(t, "the pod's heartbeat", func() bool {
		alive, err := manager.Enforcers(t.Context(), "shop")
		return err == nil && len(alive) == 1
	})
	for _, limit := range pod.Explain(t.Context(), get("/")).Limits {
		if _, err := pod.Reset(t.Context(), limit.Counter); err != nil {
			t.Error(err)
		}
	}
	if nodes, err := manager.Health(t.Context(), store.Scripts()); err != nil || len(nodes) != 2 || nodes[0].Err != nil {
		t.Errorf("health: %+v, %v", nodes, err)
	}
	for _, node := range cluster.Servers {
		if denied := node.Client(t).Do(t.Context(), "ACL", "LOG").Val(); len(denied.([]any)) != 0 {
			t.Errorf("denied: %v", denied)
		}
	}
}

// What a pod of the namespace shop holds when it is in the wrong hands.
func TestTheUserOfANamespaceIsKeptToIt(t *testing.T) {
	server := startWithUsers(t)
	ctx := t.Context()
	const foreign, own = "tallyman:c:bank:orders:x", "tallyman:c:shop:orders:x"
	for _, key := range []string{foreign, own, "tallyman:policies:{bank}", "tallyman:policies:{shop}", "other"} {
		server.admin.HSet(ctx, key, "field", "value")
	}
	server.admin.Set(ctx, "tallyman:revision:{shop}", "1-1", 0)
	server.admin.SAdd(ctx, "tallyman:namespaces", "bank")
	before := server.contents(t)

	pod := server.as(t, "shop")
	for _, command := range []string{
		// Another namespace's counters, definitions and heartbeats, and other keys.
		"get " + foreign, "set " + foreign + " 1", "del " + foreign, "pexpire " + foreign + " 1", "exists " + foreign,
		"mget " + own + " " + foreign, "hget " + foreign + " field", "type " + foreign,
		"hget tallyman:policies:{bank} orders", "hkeys tallyman:policies:{bank}", "get tallyman:revision:{bank}",
		"hset tallyman:enforcers:{bank} pod x", "hkeys tallyman:enforcers:{bank}",
		"zadd tallyman:places:{bank} 0 x", "zadd tallyman:seen:{bank} 0 x",
		"sismember tallyman:namespaces bank", "subscribe tallyman:events:bank", "psubscribe tallyman:events:*",
		"get other", "set tallyman:c:shop-2:x 1", "set tallyman:c:shop 1", "hkeys tallyman:policies:{shop-2}",
		// Its own policies can be read only, and nobody can be told of others.
		"hset tallyman:policies:{shop} orders x", "hdel tallyman:policies:{shop} field", "del tallyman:policies:{shop}",
		"set tallyman:revision:{shop} 9-9", "pexpire tallyman:policies:{shop} 1", "publish tallyman:events:shop x",
		// Administration, and all that looks at, or touches, the whole server.
		"flushall", "flushdb", "swapdb 0 1", "config get *", "config set maxmemory 1", "keys *", "scan 0", "randomkey", "dbsize",
		"script flush", "script load x", "script kill", "function load x", "function flush", "fcall x 0",
		"debug sleep 0", "acl list", "acl setuser shop +@all", "acl getuser manager", "acl whoami", "acl log",
		"client list", "client kill id 1", "client pause 1", "client no-evict on", "monitor", "info", "latency doctor", "slowlog get",
		"memory doctor", "module list", "shutdown nosave", "save", "bgsave", "bgrewriteaof", "replicaof no one",
		"failover", "cluster reset", "sync", "psync ? -1", "migrate 127.0.0.1 1 x 0 1", "select 1",
		"object encoding " + own, "dump " + own, "restore " + own + " 0 x", "rename " + own + " " + foreign,
		"copy " + foreign + " " + own, "sort " + own, "blpop " + own + " 0", "wait 1 0", "multi",
	} {
		refused(t, "shop", command, pod.Do(ctx, words(command)...).Err())
	}
	// A script can do no more than its caller.
	for _, script := range []string{
		`return redis.call('flushall')`, `return redis.call('keys', '*')`, `return redis.call('config', 'get', '*')`,
		`return redis.call('hget', 'tallyman:policies:{bank}', 'field')`, `return redis.call('set', 'tallyman:c:bank:x', 1)`,
		`return redis.call('hset', 'tallyman:policies:{shop}', 'a', 'b')`, `return redis.call('acl', 'list')`,
	} {
		if err := pod.Eval(ctx, script, nil).Err(); !refusedWithin(err) {
			t.Errorf("a script of shop may %s: %v", script, err)
		}
	}
	if after := server.contents(t); after != before {
		t.Errorf("the server's contents were\n%s\nand are\n%s", before, after)
	}
	if err := pod.Set(ctx, "tallyman:c:shop:y", 1, 0).Err(); err != nil {
		t.Errorf("its own counter: %v", err)
	}
}

// The manager publishes policies; it neither counts nor administers.
func TestTheManagersUserIsNoAdministrator(t *testing.T) {
	server := startWithUsers(t)
	manager := server.as(t, "manager")
	for _, command := range []string{
		"get tallyman:c:shop:x", "set tallyman:c:shop:x 1", "get other", "set other 1",
		"flushall", "flushdb", "config get *", "config set maxmemory 1", "keys *", "scan 0", "script flush", "function load x",
		"debug sleep 0", "acl list", "acl setuser manager +@all", "client list", "client kill id 1", "monitor", "info",
		"module list", "shutdown nosave", "save", "replicaof no one", "subscribe tallyman:events:shop",
	} {
		refused(t, "manager", command, manager.Do(t.Context(), words(command)...).Err())
	}
}

// Who has no password has nothing.
func TestTheDefaultUserIsOff(t *testing.T) {
	server := startWithUsers(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Ping(t.Context()).Err(); !redis.IsAuthError(err) {
		t.Errorf("a client without a password: %v", err)
	}
}

func refused(t *testing.T, user, what string, err error) {
	t.Helper()
	if !redis.IsPermissionError(err) {
		t.Errorf("%s may %s: %v", user, what, err)
	}
}

// refusedWithin tells an error of a script whose caller lacks a right, or of a
// command that no script may call.
func refusedWithin(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "The user executing the script can't") ||
		strings.Contains(err.Error(), "not allowed from script"))
}

func words(command string) []any {
	var all []any
	for word := range strings.FieldsSeq(command) {
		all = append(all, word)
	}
	return all
}

// contents are all keys with what they hold, as the administrator sees them.
func (s *aclServer) contents(t *testing.T) string {
	t.Helper()
	keys, err := s.admin.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	var text strings.Builder
	for _, key := range keys {
		fmt.Fprintf(&text, "%s %q\n", key, s.admin.Dump(t.Context(), key).Val())
	}
	return text.String()
}

// allScripts are those that the manager loads.
func allScripts() map[string]*redis.Script {
	all := store.Scripts()
	maps.Copy(all, limiter.Scripts())
	return all
}
