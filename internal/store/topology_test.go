package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// recovery is how long after a failover the store may fail.
const recovery = 5 * time.Second

// serves publishes and loads, within the time that a fault may be felt.
func serves(t *testing.T, s *store.Store, generation int64) {
	t.Helper()
	deadline := time.Now().Add(recovery)
	for _, ns := range []string{"shop", "bank", "mail", "wiki", "pets"} { // slots of all masters
		for {
			_, err := s.Publish(t.Context(), ns, []policy.Definition{definition(ns, "orders", generation)})
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("publish %s: %v", ns, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if g := generations(load(t, s, ns)); g["orders"] != generation {
			t.Fatalf("loaded %v of %s, want generation %d", g, ns, generation)
		}
	}
}

func open(t *testing.T, o store.ConnectOptions) *store.Store {
	t.Helper()
	client, err := store.Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return store.New(client, store.DefaultPrefix)
}

func loadScripts(t *testing.T, s *store.Store, servers []*testredis.Server, gone *testredis.Server) {
	t.Helper()
	if err := s.LoadScripts(t.Context(), store.Scripts()); err != nil {
		t.Fatal(err)
	}
	for _, server := range servers {
		if server == gone {
			continue
		}
		for _, script := range store.Scripts() {
			if known, err := script.Exists(t.Context(), server.Client(t)).Result(); err != nil || !known[0] {
				t.Errorf("%s does not know a script, %v", server.Addr, err)
			}
		}
	}
}

func cut(t *testing.T, url, scheme string) string {
	t.Helper()
	_, rest, found := strings.Cut(url, "://")
	if !found {
		t.Fatalf("%s has no scheme", url)
	}
	return scheme + "://" + rest
}

func tlsOf(c *testredis.Certificates) store.TLSOptions {
	return store.TLSOptions{
		CAFile: c.CAFile, CertFile: c.ClientCertFile, KeyFile: c.ClientKeyFile,
		ServerName: testredis.ServerName,
	}
}

// read returns what a file has.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAUnixSocketServes(t *testing.T) {
	dir, err := os.MkdirTemp("", "redis") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "redis.sock")
	testredis.Start(t, "--unixsocket", path)
	serves(t, open(t, store.ConnectOptions{URL: "unix://" + path}), 1)
}

func TestMutualTLSServes(t *testing.T) {
	t.Parallel()
	certs := testredis.NewCertificates(t)
	server := testredis.Start(t, append(certs.Args(), "--requirepass", "hunter2")...)
	url := "rediss://" + server.Addr
	serves(t, open(t, store.ConnectOptions{URL: url, Password: "hunter2", TLS: tlsOf(certs)}), 1)

	// With TLS 1.3 a client has ended its handshake when the server refuses its certificate,
	// and may meet the closed connection before it has read why.
	const closed = "|connection reset|broken pipe"
	for name, tc := range map[string]struct {
		change func(*store.TLSOptions)
		want   string // a regular expression of the error; "" of none
	}{
		"the text of the CA": {func(o *store.TLSOptions) { o.CAFile, o.CA = "", read(t, o.CAFile) }, ""},
		"no CA":              {func(o *store.TLSOptions) { o.CAFile = "" }, "unknown authority"},
		"another CA":         {func(o *store.TLSOptions) { o.CAFile = testredis.NewCertificates(t).CAFile }, "unknown authority"},
		"no certificate":     {func(o *store.TLSOptions) { o.CertFile, o.KeyFile = "", "" }, "certificate required" + closed},
		"another CA's":       {func(o *store.TLSOptions) { *o = mixed(*o, testredis.NewCertificates(t)) }, "tls: " + closed},
		"another server":     {func(o *store.TLSOptions) { o.ServerName = "other.test" }, "other.test"},
		"the URL's own name": {func(o *store.TLSOptions) { o.ServerName = "" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := tlsOf(certs)
			tc.change(&o)
			err := open(t, store.ConnectOptions{URL: url, Password: "hunter2", TLS: o}).Ping(t.Context())
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !regexp.MustCompile(tc.want).MatchString(err.Error()) || strings.Contains(err.Error(), "hunter2")):
				t.Errorf("error %v, want one about %q", err, tc.want)
			}
		})
	}
}

// mixed has the client's identity from another authority.
func mixed(o store.TLSOptions, c *testredis.Certificates) store.TLSOptions {
	o.CertFile, o.KeyFile = c.ClientCertFile, c.ClientKeyFile
	return o
}

func TestARenewedCertificateNeedsNoRestart(t *testing.T) {
	certs, others := testredis.NewCertificates(t), testredis.NewCertificates(t)
	server := testredis.Start(t, certs.Args()...)
	o := mixed(tlsOf(certs), others) // which the server does not trust
	s := open(t, store.ConnectOptions{URL: "rediss://" + server.Addr, TLS: o})
	if err := s.Ping(t.Context()); err == nil {
		t.Fatal("the server took another authority's certificate")
	}
	copyFile(t, certs.ClientCertFile, o.CertFile)
	copyFile(t, certs.ClientKeyFile, o.KeyFile)
	serves(t, s, 1)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestSentinelServesThroughAFailover(t *testing.T) {
	t.Parallel()
	certs := testredis.NewCertificates(t)
	set := testredis.StartSentinel(t, append(certs.Args(), "--requirepass", "hunter2", "--masterauth", "hunter2")...)
	s := open(t, store.ConnectOptions{URL: cut(t, set.URL(), "rediss+sentinel"), TLS: tlsOf(certs)})
	serves(t, s, 1)

	set.Failover(t)
	serves(t, s, 2)
	loadScripts(t, s, []*testredis.Server{set.Master(t)}, nil)

	lost := set.Master(t)
	lost.Kill()
	set.AwaitFailover(t, lost)
	serves(t, s, 3)
}

func TestAClusterServesThroughFailoverAndResharding(t *testing.T) {
	t.Parallel()
	certs := testredis.NewCertificates(t)
	cluster := testredis.StartReplicatedCluster(t, 3, certs.Args()...)
	s := open(t, store.ConnectOptions{URL: cut(t, cluster.URL(), "rediss+cluster"), TLS: tlsOf(certs)})
	serves(t, s, 1)
	nodes := append(cluster.Servers, cluster.Replicas...)
	loadScripts(t, s, nodes, nil)

	from := cluster.Owner(t, "{shop}")
	to := cluster.Servers[0]
	if to == from {
		to = cluster.Servers[1]
	}
	cluster.Move(t, "{shop}", to)
	serves(t, s, 2)

	for _, node := range nodes {
		if err := node.Client(t).ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	to.Kill()
	cluster.AwaitFailover(t, to)
	serves(t, s, 3)
	loadScripts(t, s, nodes, to)
}

func TestOptionsOfTLSThatCannotWorkAreRefused(t *testing.T) {
	certs := testredis.NewCertificates(t)
	good := tlsOf(certs)
	pem := read(t, good.KeyFile)
	for name, tc := range map[string]struct {
		url    string
		change func(*store.TLSOptions)
		want   string
	}{
		"without TLS":            {"redis://localhost", func(*store.TLSOptions) {}, "rediss://"},
		"a unix socket":          {"unix:///run/redis.sock", func(*store.TLSOptions) {}, "rediss://"},
		"cluster without TLS":    {"redis+cluster://localhost", func(*store.TLSOptions) {}, "rediss+cluster://"},
		"sentinel without TLS":   {"redis+sentinel://localhost?master_name=m", func(*store.TLSOptions) {}, "rediss+sentinel://"},
		"only a name":            {"redis://localhost", func(o *store.TLSOptions) { *o = store.TLSOptions{ServerName: "a"} }, "server name"},
		"no such CA file":        {"", func(o *store.TLSOptions) { o.CAFile = "/no/such/ca.crt" }, "CA file: open /no/such/ca.crt"},
		"a text that is no CA":   {"", func(o *store.TLSOptions) { o.CAFile, o.CA = "", "Zm9v" }, "the store's CA has no certificate: give PEM text"},
		"a key for a CA's text":  {"", func(o *store.TLSOptions) { o.CAFile, o.CA = "", pem }, "BEGIN CERTIFICATE"},
		"a CA twice":             {"", func(o *store.TLSOptions) { o.CA = read(t, o.CAFile) }, "give one of them"},
		"a CA without TLS":       {"redis://localhost", func(o *store.TLSOptions) { *o = store.TLSOptions{CA: read(t, o.CAFile)} }, "rediss://"},
		"a key for a CA":         {"", func(o *store.TLSOptions) { o.CAFile = o.KeyFile }, "BEGIN CERTIFICATE"},
		"a certificate, no key":  {"", func(o *store.TLSOptions) { o.KeyFile = "" }, "without a key file"},
		"a key, no certificate":  {"", func(o *store.TLSOptions) { o.CertFile = "" }, "without a certificate file"},
		"no such certificate":    {"", func(o *store.TLSOptions) { o.CertFile = "/no/such/tls.crt" }, "/no/such/tls.crt"},
		"another's key":          {"", func(o *store.TLSOptions) { o.KeyFile = certs.ServerKeyFile }, "does not match"},
		"a key for a path":       {"", func(o *store.TLSOptions) { o.KeyFile = pem }, "path of the file"},
		"a key for a CA's path":  {"", func(o *store.TLSOptions) { o.CAFile = pem }, "path of the file"},
		"a CA and no comparison": {"rediss://localhost?skip_verify=true", func(*store.TLSOptions) {}, "skip_verify"},
	} {
		t.Run(name, func(t *testing.T) {
			o := store.ConnectOptions{URL: tc.url, TLS: good}
			if o.URL == "" {
				o.URL = "rediss://localhost"
			}
			tc.change(&o.TLS)
			client, err := store.Connect(o)
			if err == nil {
				_ = client.Close()
				t.Fatal("the options were taken")
			}
			if !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "PRIVATE KEY-") {
				t.Errorf("%q does not say %q, or says too much", err, tc.want)
			}
		})
	}
}

// R17, R19: what one client is told says nothing about another.
func TestTwoClientsHaveTheirOwnSettings(t *testing.T) {
	first, second := testredis.Start(t), testredis.Start(t, "--requirepass", "hunter2")
	settings := map[string]*redis.Options{}
	for name, url := range map[string]string{
		"first":  first.URL() + "?pool_size=3&read_timeout=7s",
		"second": second.URL() + "?pool_size=5&client_name=other",
	} {
		client, err := store.Connect(store.ConnectOptions{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if err := client.Set(t.Context(), "who", name, 0).Err(); err != nil {
			t.Fatal(err)
		}
		settings[name] = client.(*redis.Client).Options()
	}
	if a, b := settings["first"], settings["second"]; a.PoolSize != 3 || b.PoolSize != 5 ||
		a.ReadTimeout != 7*time.Second || b.ReadTimeout != 2*time.Second ||
		a.ClientName != "tallyman" || b.ClientName != "other" || a.Password != "" || b.Password != "hunter2" {
		t.Errorf("%+v\n%+v", a, b)
	}
	if who := first.Client(t).Get(t.Context(), "who").Val(); who != "first" {
		t.Errorf("%s wrote to the first server", who)
	}
}

func TestAPoolIsBounded(t *testing.T) {
	server := testredis.Start(t)
	client, err := store.Connect(store.ConnectOptions{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	size := client.(*redis.Client).Options().PoolSize
	if size < 1 || size > 40 {
		t.Errorf("%d connections without a pool_size", size)
	}
	done := make(chan error)
	const callers = 200
	for range callers {
		go func() { done <- client.Do(t.Context(), "BLPOP", "none", "0.05").Err() }()
	}
	for range callers {
		if err := <-done; !errors.Is(err, redis.Nil) {
			t.Error(err)
		}
	}
	if n := client.PoolStats().TotalConns; int(n) > size {
		t.Errorf("%d connections, more than %d", n, size)
	}
}
