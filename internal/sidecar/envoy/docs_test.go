package envoy

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	authpb "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// documented are the blocks of docs/envoy.md of a kind.
func documented(t *testing.T, kind string) (blocks []string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)\n```yaml "+kind+"\n(.*?)```").FindAllSubmatch(page, -1) {
		blocks = append(blocks, string(block[1]))
	}
	if len(blocks) == 0 {
		t.Fatalf("the page has no %s", kind)
	}
	return blocks
}

// What the page has for Envoy is what Envoy takes, by its own definitions and
// constraints, down to the configuration of the filters.
func TestDocumentedConfigurationIsEnvoys(t *testing.T) {
	for kind, message := range map[string]proto.Message{
		"bootstrap": &bootstrappb.Bootstrap{}, "filter": &hcmpb.HttpFilter{}, "route": &routepb.RouteAction{},
	} {
		for _, block := range documented(t, kind) {
			document, err := yaml.YAMLToJSONStrict([]byte(block))
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			if err := protojson.Unmarshal(document, message); err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			if route, ok := message.(*routepb.RouteAction); ok {
				route.ClusterSpecifier = &routepb.RouteAction_Cluster{Cluster: "orders"} // which the page says is beside
			}
			validateAll(t, kind, message)
		}
	}
}

// validateAll checks a message's constraints, and those of all that it wraps in Any.
func validateAll(t *testing.T, kind string, m proto.Message) {
	t.Helper()
	if err := m.(interface{ ValidateAll() error }).ValidateAll(); err != nil {
		t.Errorf("%s: %v", kind, err)
	}
	visit(m.ProtoReflect(), func(wrapped *anypb.Any) {
		inner, err := wrapped.UnmarshalNew()
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			return
		}
		validateAll(t, kind, inner)
	})
}

// visit calls f for each Any in a message.
func visit(m protoreflect.Message, f func(*anypb.Any)) {
	if wrapped, ok := m.Interface().(*anypb.Any); ok {
		f(wrapped)
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsList() && field.Message() != nil:
			for i := range value.List().Len() {
				visit(value.List().Get(i).Message(), f)
			}
		case field.IsMap() && field.MapValue().Message() != nil:
			value.Map().Range(func(_ protoreflect.MapKey, value protoreflect.Value) bool {
				visit(value.Message(), f)
				return true
			})
		case !field.IsMap() && field.Message() != nil:
			visit(value.Message(), f)
		}
		return true
	})
}

// The policies of the page do by either protocol what the page says.
func TestDocumentedPoliciesWork(t *testing.T) {
	policies := documented(t, "policy")
	limiters := make([]*tallyman.Limiter, len(policies))
	for i, policy := range policies {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := tallyman.New(t.Context(), tallyman.Options{Store: tallyman.MemoryStore, PolicyFile: path})
		if err != nil {
			t.Fatal(err)
		}
		limiters[i] = l
	}
	conn := dial(t, limiters[0])
	allowed := check(t, authpb.NewAuthorizationClient(conn), described("POST", "/v1/orders", map[string]string{"x-api-key": "alice"}))
	if got := told(allowed.GetOkResponse().GetResponseHeadersToAdd())["ratelimit-policy"]; got != `+"orders-per-key";q=10;w=60, "per-client";q=100;w=60` {
		t.Errorf("an order meets %s", got)
	}
	order := descriptor("remote_address", "192.0.2.1", "method", "POST", "path", "/v1/orders?x", "x-api-key", "alice")
	if got := askAbout(t, rlspb.NewRateLimitServiceClient(conn), order).GetStatuses()[0]; got.GetCode() != ok || got.GetCurrentLimit().GetName() != "orders-per-key" {
		t.Errorf("an order got %v", got)
	}

	slow := rlspb.NewRateLimitServiceClient(dial(t, limiters[1]))
	got := outcome(askAbout(t, slow, descriptor("remote_address", "192.0.2.1"), descriptor("remote_address", "192.0.2.1", "generic_key", "slow-reports")))
	if got != "OK OK:0 OK:4" {
		t.Errorf("a slow report got %s", got)
	}
}
