package envoy

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

func TestADescriptorAsARequest(t *testing.T) {
	got := tallyman.Request{Header: http.Header{}}
	describe(&got, "shop", descriptor("masked_remote_address", "192.0.2.0/24", "remote_address", "192.0.2.1",
		"header_match", "a", "header_match", "b", "path", "/v1?page=2", "method", "POST", "HEADER_MATCH", "c", "x-envoy-domain", "other", ":path", "/v2"), 3)
	want := tallyman.Request{
		Method: "POST", Path: "/v1", RawQuery: "page=2", ClientIP: netip.MustParseAddr("192.0.2.0"), Hits: 3,
		Header: http.Header{
			"Masked_remote_address": {"192.0.2.0/24"}, "Remote_address": {"192.0.2.1"}, "Header_match": {"a"}, "Header_match-2": {"b"},
			"Header_match-3": {"c"}, "Path": {"/v1?page=2"}, "Method": {"POST"}, ":path": {"/v2"}, domainHeader: {"shop"},
			descriptorHeader: {"masked_remote_address,remote_address,header_match,header_match,path,method,HEADER_MATCH,x-envoy-domain,:path"},
		},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
