package envoy

import (
	"net/http"
	"slices"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// headerValues are headers as Envoy takes them: names in lower case, and in order.
func headerValues(h http.Header) []*corepb.HeaderValue {
	if len(h) == 0 {
		return nil
	}
	values := make([]*corepb.HeaderValue, 0, len(h))
	for name := range h {
		values = append(values, &corepb.HeaderValue{Key: strings.ToLower(name), Value: h.Get(name)})
	}
	slices.SortFunc(values, func(a, b *corepb.HeaderValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	return values
}

// headerOptions are headerValues that say what becomes of those that the app has
// set: RateLimit and RateLimit-Policy are lists, and join; of others there is one,
// and it is ours.
func headerOptions(h http.Header) []*corepb.HeaderValueOption {
	options := make([]*corepb.HeaderValueOption, 0, len(h))
	for _, header := range headerValues(h) {
		action := corepb.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
		if strings.HasPrefix(header.GetKey(), "ratelimit") {
			action = corepb.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
		}
		options = append(options, &corepb.HeaderValueOption{Header: header, AppendAction: action})
	}
	return options
}
