package sidecar

import (
	"errors"
	"flag"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

func noEnvironment(string) string { return "" }

// file writes a text and returns its path.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigOfAPod(t *testing.T) {
	environment := map[string]string{
		"TALLYMAN_STORE_PASSWORD": "sesame", "TALLYMAN_STORE_USERNAME": "sidecar", "POD_NAMESPACE": "shop", "POD_NAME": "orders-1",
		"TALLYMAN_STORE_CA": "-----BEGIN",
	}
	c, err := ParseConfig([]string{
		"--store-file", file(t, "redis://redis:6379\n"), "--pod-labels-file", file(t, "app=\"orders\"\nquote=\"a\\\"b\"\n"),
		"--listen", ":8081", "--upstream", "http://127.0.0.1:8080/", "--probe-from", "10.0.0.1, fd00::/8", "--trusted-hops=2",
		"--drain-timeout=5s", "--log-level=debug",
	}, func(name string) string { return environment[name] }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o := c.Limiter
	if o.Store != "redis://redis:6379" || o.Username != "sidecar" || o.Password != "sesame" || o.Namespace != "shop" || o.Pod != "orders-1" ||
		o.TLS.CA != "-----BEGIN" {
		t.Errorf("options are %+v", o)
	}
	if diff := cmp.Diff(map[string]string{"app": "orders", "quote": `a"b`}, o.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	sources := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("fd00::/8")}
	if diff := cmp.Diff(sources, o.ProbeSources, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("sources of probes (-want +got):\n%s", diff)
	}
	if c.Upstream.String() != "http://127.0.0.1:8080" || o.TrustedHops != 2 || c.DrainTimeout != 5*time.Second {
		t.Errorf("config is %+v", c)
	}
}

func TestFlagsTakePrecedenceOverTheEnvironment(t *testing.T) {
	c, err := ParseConfig([]string{"--store", "redis://flag", "--namespace", "flag", "--pod", "flag", "--pod-labels", "a=b,c=", "--check-listen", ":1",
		"--store-ca-file", "flag"},
		func(string) string { return "environment" }, io.Discard)
	if err != nil || c.Limiter.Store != "redis://flag" || c.Limiter.Namespace != "flag" || c.Limiter.Pod != "flag" ||
		c.Limiter.TLS != (tallyman.TLSOptions{CAFile: "flag"}) {
		t.Errorf("got %+v, %v", c.Limiter, err)
	}
	if diff := cmp.Diff(map[string]string{"a": "b", "c": ""}, c.Limiter.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}

func TestMisuseNamesTheFlagAndTheRemedy(t *testing.T) {
	const proxy = " --listen :1 --upstream http://a"
	for name, tc := range map[string]struct{ args, flag, remedy string }{
		"no store":             {"--policy-file f" + proxy, "--store", "memory:"},
		"no definitions":       {"--store memory:" + proxy, "--policy-file", "memory:"},
		"no namespace":         {"--store redis://a" + proxy, "--namespace", "--policy-file"},
		"no labels":            {"--store redis://a --namespace shop" + proxy, "--pod-labels-file", "--policy-file"},
		"no app":               {"--store memory: --policy-file f --listen :1", "--upstream", "http://"},
		"no proxy":             {"--store memory: --policy-file f --upstream http://a", "--listen", "127.0.0.1:"},
		"nothing to serve":     {"--store memory: --policy-file f", "--listen", "--check-listen"},
		"address without port": {"--store memory: --policy-file f --check-listen localhost", "--check-listen", "127.0.0.1:"},
		"open to others":       {"--store memory: --policy-file f --operator-listen :12082" + proxy, "--operator-listen", "127.0.0.1:"},
		"port alone":           {"--store memory: --policy-file f --grpc-listen 8082", "--grpc-listen", "127.0.0.1:"},
		"app with a path":      {"--store memory: --policy-file f --listen :1 --upstream http://a/b", "--upstream", "http://"},
		"app with TLS":         {"--store memory: --policy-file f --listen :1 --upstream https://a", "--upstream", "http://"},
		"app without scheme":   {"--store memory: --policy-file f --listen :1 --upstream 127.0.0.1:8080", "--upstream", "http://"},
		"two stores":           {"--store memory: --store-file f" + proxy, "--store-file", "one of"},
		"store file":           {"--store-file /does/not/exist" + proxy, "--store-file", "/does/not/exist"},
		"two label sets":       {"--store redis://a --pod-labels a=b --pod-labels-file f" + proxy, "--pod-labels-file", "one of"},
		"labels":               {"--store redis://a --pod-labels app" + proxy, "--pod-labels", "app=orders"},
		"probes":               {"--store memory: --policy-file f --probe-from node-1" + proxy, "--probe-from", "10.0.0.1"},
		"hops":                 {"--store memory: --policy-file f --trusted-hops -1" + proxy, "--trusted-hops", "0"},
		"drain":                {"--store memory: --policy-file f --drain-timeout -1s" + proxy, "--drain-timeout", "0s"},
		"stray argument":       {"--store memory: --policy-file f" + proxy + " hunter2", "argument 9", "flag"},
		"unknown flag":         {"--polcy-file f", "polcy-file", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseConfig(strings.Fields(tc.args), noEnvironment, io.Discard)
			if err == nil || !strings.Contains(err.Error(), tc.flag) || !strings.Contains(err.Error(), tc.remedy) {
				t.Errorf("got %v, want an error with %q and %q", err, tc.flag, tc.remedy)
			}
		})
	}
}

func TestHelpShowsEveryFlagAndNoSecret(t *testing.T) {
	var help strings.Builder
	_, err := ParseConfig([]string{"--help"}, func(string) string { return "sesame" }, &help)
	if !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"policy-file", "store", "store-file", "namespace", "pod", "pod-labels", "pod-labels-file", "prefix",
		"upstream", "listen", "check-listen", "grpc-listen", "admin-listen", "operator-listen", "trusted-hops", "probe-from", "drain-timeout", "log-level", "version"} {
		if !strings.Contains(help.String(), "  -"+name) {
			t.Errorf("the help does not show --%s", name)
		}
	}
	if strings.Contains(help.String(), "sesame") {
		t.Error("the help shows what is in the environment")
	}
}

func TestDownwardLabelsThatCannotBeReadAreAnError(t *testing.T) {
	for _, text := range []string{"app", "app=orders", `app="orders`, `="orders"`} {
		if labels, err := parseDownwardLabels(text); err == nil {
			t.Errorf("%q was read as %v", text, labels)
		}
	}
	if labels, err := parseDownwardLabels(""); err != nil || labels == nil || len(labels) != 0 {
		t.Errorf("a pod without labels was read as %v, %v", labels, err)
	}
}
