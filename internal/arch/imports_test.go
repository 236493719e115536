package arch

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tallyman-dev/tallyman/"

// The parts of other people's trees that the rules speak of.
const (
	apimachinery = "k8s.io/apimachinery/..."
	gjson        = "github.com/tidwall/gjson"
	cel          = "github.com/google/cel-go/..."
	grpc         = "google.golang.org/grpc/..."
	otel         = "go.opentelemetry.io/otel/..."
	logr         = "github.com/go-logr/logr"
	prometheus   = "github.com/prometheus/client_golang/..."
	protobuf     = "google.golang.org/protobuf/..."
	rpc          = "google.golang.org/genproto/googleapis/rpc/..."
	redis        = "github.com/redis/go-redis/v9/..."
	roots        = "golang.org/x/crypto/x509roots/fallback"
	yaml         = "sigs.k8s.io/yaml"
	yamlLines    = "go.yaml.in/yaml/v3"
)

type rule struct {
	pattern string
	allowed []string
	why     string
}

// mayImport says what the packages of a pattern may import besides the standard
// library and each other. Patterns are like the go command's; without a host
// they are of this module. The first row that matches a package is its row; one
// without a row is held by the rules further down only. Tests import what they like.
var mayImport = []rule{
	{"api/...", []string{apimachinery},
		"whoever uses our types takes over what they import"},
	{"internal/operator", nil,
		"the messages of the plugin and the sidecar: both import it"},
	{"internal/operator/guard", []string{"internal/operator", "internal/respond"},
		"the manager and the sidecar keep the API to the same people"},
	{"internal/respond", nil,
		"whoever answers with JSON does it alike"},
	{"internal/calendar", nil,
		"calendar windows are pure: checked where definitions are read, found where requests are counted"},
	{"internal/breaker", nil,
		"it knows nothing of what it guards"},
	{"internal/policy", []string{"internal/calendar"},
		"it is the contract between manager and sidecar, and both must be able to read it"},
	{"internal/match", []string{"internal/policy", cel},
		"matching is pure, and runs in the manager (to check) and in the sidecar (to decide)"},
	{"internal/lint", []string{"internal/policy", "internal/match"},
		"what is probably not meant is told by the manager and, offline, by the plugin"},
	{"internal/policyfile", []string{"internal/policy", yaml, yamlLines},
		"it reads files for the library and for tools, and only they know what to do with a policy"},
	{"internal/convert", []string{"internal/policy", "internal/match", yamlLines},
		"converting is pure: text goes in and policies come out"},
	{"internal/compile", []string{"api/...", "internal/policy", "internal/match", "internal/lint", apimachinery},
		"compiling is pure: it must be testable without an API server and without Redis"},
	{"internal/ban", []string{"internal/policy"},
		"an edit of a policy is a pure function of the policy"},
	{"internal/target", []string{"internal/policy", "k8s.io/api/...", apimachinery, "sigs.k8s.io/controller-runtime/pkg/client"},
		"what policies refer to is found alike by the manager and the plugin"},
	{"internal/view", []string{"internal/operator", "internal/policy", "api/...", apimachinery},
		"what the plugin shows is a function of messages and objects, without a cluster"},
	{"internal/reach", []string{"internal/operator", "k8s.io/api/core/v1", "k8s.io/client-go/...", "k8s.io/streaming/pkg/httpstream"},
		"it is a way to sidecars, and does not know what is asked there and why"},
	{"internal/inject", []string{"k8s.io/api/core/v1", apimachinery},
		"injecting is pure: a pod goes in and a pod comes out, without an API server"},
	{"internal/limiter/...", []string{"internal/policy", "internal/calendar", "internal/breaker", redis},
		"counting knows neither HTTP nor Kubernetes"},
	{"internal/simulate", []string{"internal/limiter", "internal/match", "internal/policy", "sigs.k8s.io/json"},
		"a simulation is what it simulates and a clock, without Kubernetes and without connections"},
	{"internal/accesslog", []string{"internal/match", gjson},
		"logs are read into requests, and who decides these does not matter"},
	{"internal/replay", []string{"internal/accesslog", "internal/simulate", "internal/match", "internal/policy"},
		"what a log would have come to is told without files, flags and terminals"},
	{"internal/store/...", []string{"internal/policy", redis},
		"definitions in Redis are read in the sidecar, which must stay small"},
	{"pkg/tallyman", []string{"internal/limiter", "internal/store", "internal/policy", "internal/policyfile", "internal/match"},
		"the library is a façade, and applications link all that it imports"},
	{"pkg/tallyman/grpclimit", []string{"pkg/tallyman/...", grpc, protobuf, rpc},
		"applications that serve gRPC have its libraries already"},
	{"pkg/tallyman/...", []string{"pkg/tallyman"},
		"adapters use what any application could use"},
	{"internal/sidecar/envoy", []string{"pkg/tallyman/...", grpc, protobuf, rpc, "github.com/envoyproxy/go-control-plane/envoy/..."},
		"Envoy's protocols, and the large library of their messages, are in one place"},
	{"internal/sidecar/upstream", nil,
		"it is a proxy's way to the app, and knows nothing of limits"},
	{"internal/sidecar/tracing", []string{"pkg/tallyman", grpc, otel, logr},
		"OpenTelemetry is in one place: the library's users choose their own"},
	{"internal/sidecar/...", []string{"pkg/tallyman/...", "internal/operator/...", "internal/respond", prometheus},
		"the sidecar is an application of the public library, which thereby proves sufficient"},
	{"cmd/sidecar", []string{"internal/sidecar/...", "pkg/tallyman/...", prometheus, "github.com/redis/go-redis/v9/logging", roots},
		"a main package wires, nothing more; where libraries log, and whom they trust, is a program's choice"},
}

// mayKnowKubernetes are the packages that may import Kubernetes' libraries as
// such; those that may import a part of them have a row above.
var mayKnowKubernetes = []string{
	"cmd/manager", "cmd/kubectl-tallyman",
	"internal/controller/...", "internal/webhook/...", "internal/webhookcert",
	"internal/testenv", "hack/...", "test/...",
}

var kubernetes = []string{"k8s.io/...", "sigs.k8s.io/controller-runtime/..."}

// forTests are the packages that only tests and what stands in for one may import.
var (
	forTests           = []string{"internal/testredis", "internal/testenv", "internal/golden", "internal/metricsdoc"}
	mayUseTestPackages = []string{"hack/...", "test/...", "internal/metricsdoc"}
)

// linkNone are the packages that must not depend on others by any way.
var linkNone = []struct {
	what     string
	packages []string
	of       []string
}{
	{"Kubernetes", []string{"cmd/sidecar", "pkg/tallyman"}, kubernetes},
	{"OpenTelemetry", []string{"pkg/tallyman", "pkg/tallyman/httplimit", "pkg/tallyman/grpclimit"}, []string{otel}},
}

func TestImports(t *testing.T) {
	graph := load(t)

	for pkg, imports := range graph {
		if !matches("...", pkg) {
			continue
		}
		row := slices.IndexFunc(mayImport, func(r rule) bool { return matches(r.pattern, pkg) })
		for _, imported := range imports {
			if row >= 0 {
				r := mayImport[row]
				if !matchesAny(r.allowed, imported) && !matches(r.pattern, imported) {
					t.Errorf("%s imports %s, but may import only %q: %s", pkg, imported, r.allowed, r.why)
				}
			} else if matchesAny(kubernetes, imported) && !matchesAny(mayKnowKubernetes, pkg) {
				t.Errorf("%s imports %s, which only %q may", pkg, imported, mayKnowKubernetes)
			}
			if matchesAny(forTests, imported) && !matchesAny(mayUseTestPackages, pkg) {
				t.Errorf("%s imports %s outside its tests", pkg, imported)
			}
		}
	}

	// What a program links is more than what our own packages import.
	for _, rule := range linkNone {
		for _, root := range rule.packages {
			for _, way := range waysTo(graph, module+root, rule.of) {
				t.Errorf("%s links %s: %s", root, rule.what, way)
			}
		}
	}
}

// waysTo returns for each package of the patterns that root depends on how it
// comes to do so.
func waysTo(graph map[string][]string, root string, patterns []string) (ways []string) {
	way := map[string]string{root: root}
	for queue := []string{root}; len(queue) > 0; queue = queue[1:] {
		for _, imported := range graph[queue[0]] {
			if way[imported] != "" {
				continue
			}
			way[imported] = way[queue[0]] + " → " + imported
			if matchesAny(patterns, imported) {
				ways = append(ways, way[imported])
				continue // one line for each way in, not for all that is behind it
			}
			queue = append(queue, imported)
		}
	}
	return ways
}

// load returns what every package of the module, and every one that it depends
// on, imports outside the standard library.
func load(t *testing.T) map[string][]string {
	t.Helper()
	// With -e, that a package does not compile is left to others to tell.
	list := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps",
		"-f", `{{if not .Standard}}{{.ImportPath}} {{join .Imports " "}}{{end}}`, module+"...")
	list.Dir = "../.."
	var stderr strings.Builder
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("list packages: %v\n%s", err, &stderr)
	}

	graph := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		graph[fields[0]] = slices.DeleteFunc(fields[1:], standard)
	}
	if _, ok := graph[module+"internal/policy"]; !ok {
		t.Fatal("found none of our packages: the rules would hold for nothing")
	}
	return graph
}

// standard tells packages of the standard library by the missing dot in the
// first part of their path, as the go command does.
func standard(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return !strings.Contains(first, ".")
}

func matchesAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, pkg) })
}

func matches(pattern, pkg string) bool {
	if pattern == "..." || standard(pattern) {
		pattern = module + pattern
	}
	parent, tree := strings.CutSuffix(pattern, "/...")
	return pkg == parent || tree && strings.HasPrefix(pkg, parent+"/")
}
