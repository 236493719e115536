package envoy

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/convert"
	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// node is a descriptor of a configuration of envoyproxy/ratelimit.
type node struct {
	key, value        string
	limited           bool
	unlimited, shadow bool
	shares            bool
	requests          int
	unit              string
	below             []*node
}

// Entries that configurations and calls are drawn from. Addresses have values of their
// own, since no Envoy sends others.
var (
	drawnKeys = []string{"a", "b", "PATH", "path", "generic_key", "route/one", "remote_address", "masked_remote_address"}
	texts     = []string{"v", "w", "vw", "v.w", "v|w", `v"w`}
	addresses = []string{"10.0.0.1", "10.0.0.2", "10.1.0.1"}
)

func valuesOf(key string) []string {
	if strings.HasSuffix(key, "remote_address") {
		return addresses
	}
	return texts
}

func patternsOf(key string) []string {
	if strings.HasSuffix(key, "remote_address") {
		return []string{"", "10.0.*", "10.0.0.*", "*"}
	}
	return []string{"", "", "v*", "vw*", "*"}
}

func drawLevel(t *rapid.T, depth int) (level []*node) {
	keys := rapid.SliceOfNDistinct(rapid.SampledFrom(drawnKeys), 1, 2, rapid.ID).Draw(t, "keys")
	for range rapid.IntRange(1, 5).Draw(t, "descriptors") {
		key := rapid.SampledFrom(keys).Draw(t, "key")
		n := &node{key: key, value: rapid.SampledFrom(slices.Concat(valuesOf(key), patternsOf(key))).Draw(t, "value")}
		if slices.ContainsFunc(level, func(o *node) bool { return o.key == n.key && o.value == n.value }) {
			continue
		}
		n.limited = rapid.IntRange(0, 3).Draw(t, "limited") > 0
		n.unlimited = n.limited && rapid.IntRange(0, 5).Draw(t, "unlimited") == 0
		n.shadow = rapid.IntRange(0, 5).Draw(t, "shadow") == 0
		n.shares = strings.HasSuffix(n.value, "*") && rapid.Bool().Draw(t, "shares")
		n.requests = rapid.IntRange(0, 4).Draw(t, "requests")
		n.unit = rapid.SampledFrom([]string{"day", "WEEK", "month", "year"}).Draw(t, "unit")
		if depth < 3 && rapid.Bool().Draw(t, "nested") {
			n.below = drawLevel(t, depth+1)
		}
		level = append(level, n)
	}
	return level
}

func writeLevel(out *strings.Builder, indent string, level []*node) {
	for _, n := range level {
		fmt.Fprintf(out, "%s- key: %s\n", indent, n.key)
		if n.value != "" {
			fmt.Fprintf(out, "%s  value: %q\n", indent, n.value)
		}
		switch {
		case n.unlimited:
			fmt.Fprintf(out, "%s  rate_limit: {unlimited: true}\n", indent)
		case n.limited:
			fmt.Fprintf(out, "%s  rate_limit: {unit: %s, requests_per_unit: %d}\n", indent, n.unit, n.requests)
		}
		fmt.Fprintf(out, "%s  shadow_mode: %v\n%[1]s  share_threshold: %[3]v\n", indent, n.shadow, n.shares)
		if len(n.below) > 0 {
			fmt.Fprintf(out, "%s  descriptors:\n", indent)
			writeLevel(out, indent+"  ", n.below)
		}
	}
}

// oracle decides calls as envoyproxy/ratelimit says that it does, but that what is
// refused is not counted.
type oracle struct {
	level  []*node
	counts map[string]int
}

// find is the limit that a descriptor meets: at each level the most specific one of the
// entry, and only if the last entry leads to one. The counter has the values.
func (o *oracle) find(entries []*ratelimitpb.RateLimitDescriptor_Entry) (limit *node, counter string) {
	level := o.level
	for _, e := range entries {
		limit = mostSpecific(level, e)
		if limit == nil {
			return nil, ""
		}
		value := e.GetValue()
		if limit.shares {
			value = limit.value
		}
		counter += fmt.Sprintf("%q=%q ", e.GetKey(), value)
		level = limit.below
	}
	if !limit.limited || limit.unlimited || limit.shadow {
		return nil, ""
	}
	return limit, counter
}

func mostSpecific(level []*node, e *ratelimitpb.RateLimitDescriptor_Entry) *node {
	for _, fits := range []func(n *node) bool{
		func(n *node) bool { return n.value == e.GetValue() },
		func(n *node) bool {
			prefix, isPattern := strings.CutSuffix(n.value, "*")
			return isPattern && strings.HasPrefix(e.GetValue(), prefix)
		},
		func(n *node) bool { return n.value == "" },
	} {
		if i := slices.IndexFunc(level, func(n *node) bool { return n.key == e.GetKey() && fits(n) }); i >= 0 {
			return level[i]
		}
	}
	return nil
}

func (o *oracle) decide(in *rlspb.RateLimitRequest) rlspb.RateLimitResponse_Code {
	hits := int(max(1, in.GetHitsAddend()))
	after := map[string]int{}
	for _, d := range in.GetDescriptors() {
		limit, counter := o.find(d.GetEntries())
		if limit == nil || in.GetDomain() != "shop" {
			continue
		}
		if after[counter] == 0 {
			after[counter] = o.counts[counter]
		}
		if after[counter] += hits; after[counter] > limit.requests {
			return over
		}
	}
	maps.Copy(o.counts, after)
	return ok
}

// drawDescriptor follows the tree for the most part.
func drawDescriptor(t *rapid.T, level []*node) *ratelimitpb.RateLimitDescriptor {
	var entries []string
	for range rapid.IntRange(1, 4).Draw(t, "entries") {
		key := rapid.SampledFrom(drawnKeys).Draw(t, "key")
		if len(level) > 0 && rapid.IntRange(0, 9).Draw(t, "follow") > 0 {
			key = rapid.SampledFrom(level).Draw(t, "to").key
		}
		value := rapid.SampledFrom(valuesOf(key)).Draw(t, "value")
		entries = append(entries, key, value)
		next := mostSpecific(level, &ratelimitpb.RateLimitDescriptor_Entry{Key: key, Value: value})
		if level = nil; next != nil {
			level = next.below
		}
		if len(level) == 0 && rapid.IntRange(0, 4).Draw(t, "end") > 0 {
			break
		}
	}
	return descriptor(entries...)
}

// Policies that are made of a configuration decide calls as the service would whose
// configuration it is.
func TestConvertedPoliciesDecideAsTheRateLimitServiceDoes(t *testing.T) {
	server := testredis.Start(t)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		o := &oracle{level: drawLevel(rt, 1), counts: map[string]int{}}
		calls := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) *rlspb.RateLimitRequest {
			in := &rlspb.RateLimitRequest{
				Domain:     rapid.SampledFrom([]string{"shop", "shop", "shop", "other"}).Draw(rt, "domain"),
				HitsAddend: rapid.SampledFrom([]uint32{0, 1, 1, 2, 3}).Draw(rt, "hits"),
			}
			for range rapid.IntRange(1, 2).Draw(rt, "descriptors") {
				in.Descriptors = append(in.Descriptors, drawDescriptor(rt, o.level))
			}
			return in
		}), 1, 25).Draw(rt, "calls")
		var text strings.Builder
		text.WriteString("domain: shop\ndescriptors:\n")
		writeLevel(&text, "", o.level)

		run++
		for began := today(); ; began = today() { // once more if a day ends meanwhile, and windows with it
			diff := o.compare(t, calls, text.String(), tallyman.Options{Store: server.URL(), Prefix: fmt.Sprintf("run-%d-%s", run, began)})
			if diff != "" && began == today() {
				rt.Fatalf("%s\nconfiguration:\n%s", diff, text.String())
			}
			if began == today() {
				break
			}
		}
	})
}

func today() string { return time.Now().UTC().Format(time.DateOnly) }

// compare says which call is decided in another way by the policies that are made of a
// configuration.
func (o *oracle) compare(t *testing.T, calls []*rlspb.RateLimitRequest, configuration string, options tallyman.Options) string {
	t.Helper()
	l, policies := converted(t, configuration, options)
	if l == nil {
		return "" // there is no limit
	}
	defer l.Close(t.Context())
	s := &rateLimitService{limiter: l}
	clear(o.counts)
	for i, in := range calls {
		out, err := s.ShouldRateLimit(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if want := o.decide(in); out.GetOverallCode() != want {
			return fmt.Sprintf("call %d, %v: got %s, want %s\npolicies:\n%s", i, in, out.GetOverallCode(), want, policies)
		}
	}
	return ""
}

// converted is a limiter with the policies that are made of a configuration; nil if it
// has no limits.
func converted(t *testing.T, configuration string, o tallyman.Options) (*tallyman.Limiter, string) {
	t.Helper()
	result, err := convert.Convert([]convert.Input{{Name: "config.yaml", Data: []byte(configuration)}}, convert.Options{})
	if err != nil || len(result.Lost) > 0 {
		t.Fatalf("convert: %v, lost %v, of:\n%s", err, result, configuration)
	}
	if len(result.Policies) == 0 {
		return nil, ""
	}
	var policies bytes.Buffer
	if err := result.WriteYAML(&policies); err != nil {
		t.Fatal(err)
	}
	return limiterOf(t, o, policies.String()), policies.String()
}
