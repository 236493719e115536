package tallyman

import (
	"testing"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// The library counts in a Redis that asks for a client's certificate.
func TestCountsOverMutualTLS(t *testing.T) {
	certificates := testredis.NewCertificates(t)
	server := testredis.Start(t, certificates.Args()...)
	options := Options{
		Store: "rediss://" + server.Addr,
		TLS:   TLSOptions{CAFile: certificates.CAFile, CertFile: certificates.ClientCertFile, KeyFile: certificates.ClientKeyFile},
	}
	l := fromFile(t, doc("a", `{selector: {}, limits: [{name: x, requests: 1, window: 24h}]}`), options)
	first, second := l.Admit(t.Context(), get("/")), l.Admit(t.Context(), get("/"))
	if !first.Allowed || first.Degraded || second.Allowed || second.Degraded {
		t.Fatalf("%+v, %+v", first, second)
	}
}
