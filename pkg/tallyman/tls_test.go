package tallyman

import (
	"os"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// The library counts in a Redis that asks for a client's certificate.
func TestCountsOverMutualTLS(t *testing.T) {
	certificates := testredis.NewCertificates(t)
	server := testredis.Start(t, certificates.Args()...)
	counts(t, Options{
		Store: "rediss://" + server.Addr,
		TLS:   TLSOptions{CAFile: certificates.CAFile, CertFile: certificates.ClientCertFile, KeyFile: certificates.ClientKeyFile},
	})
}

// The authority can be a text, as it is in a Secret.
func TestCountsOverTLSOfAPrivateAuthority(t *testing.T) {
	certificates := testredis.NewCertificates(t)
	server := testredis.Start(t, append(certificates.Args(), "--tls-auth-clients", "no")...)
	ca, err := os.ReadFile(certificates.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	counts(t, Options{Store: "rediss://" + server.Addr, TLS: TLSOptions{CA: string(ca)}})
}

// counts has a limit of one admit the first request, and refuse the second.
func counts(t *testing.T, o Options) {
	t.Helper()
	l := fromFile(t, doc("a", `{selector: {}, limits: [{name: x, requests: 1, window: 24h}]}`), o)
	first, second := l.Admit(t.Context(), get("/")), l.Admit(t.Context(), get("/"))
	if !first.Allowed || first.Degraded || second.Allowed || second.Degraded {
		t.Fatalf("%+v, %+v", first, second)
	}
}
