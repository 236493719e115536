package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tallyman-dev/tallyman/internal/store"
)

func TestTheStoreIsTakenFromFlagThenFileThenEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte("redis://file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ flag, file, env, want string }{
		"flag":                  {flag: "redis://flag", want: "redis://flag"},
		"file":                  {file: file, want: "redis://file"},
		"environment":           {env: "redis://env", want: "redis://env"},
		"flag over environment": {flag: "redis://flag", env: "redis://env", want: "redis://flag"},
		"file over environment": {file: file, env: "redis://env", want: "redis://file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TALLYMAN_STORE", test.env)
			o := options{storeURL: test.flag, storeFile: test.file, resync: time.Minute, operatorAddress: "0"}
			if err := o.complete(); err != nil || o.storeURL != test.want {
				t.Errorf("the store is %q (%v), not %q", o.storeURL, err, test.want)
			}
		})
	}
}

func TestTheAuthorityIsTakenFromFlagThenEnvironment(t *testing.T) {
	t.Setenv("TALLYMAN_STORE_CA", "-----BEGIN")
	for flag, want := range map[string]store.TLSOptions{"": {CA: "-----BEGIN"}, "ca.crt": {CAFile: "ca.crt"}} {
		o := options{storeURL: "rediss://redis", tls: store.TLSOptions{CAFile: flag}, resync: time.Minute, operatorAddress: "0"}
		if err := o.complete(); err != nil || o.tls != want {
			t.Errorf("--store-ca-file=%s: %+v, %v", flag, o.tls, err)
		}
	}
}

func TestSidecarsAreToldHowToTrace(t *testing.T) {
	o := options{storeURL: "redis://a", resync: time.Minute, operatorAddress: "0", sidecarEnv: []string{"OTEL_RESOURCE_ATTRIBUTES=a=b,c=d", "OTEL_TRACES_SAMPLER="}}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	want := []corev1.EnvVar{{Name: "OTEL_RESOURCE_ATTRIBUTES", Value: "a=b,c=d"}, {Name: "OTEL_TRACES_SAMPLER"}}
	if !slices.Equal(o.sidecar.Tracing, want) {
		t.Errorf("got %v", o.sidecar.Tracing)
	}
}

func TestWhatIsWrongWithTheFlagsIsSaid(t *testing.T) {
	t.Setenv("TALLYMAN_STORE", "")
	for name, test := range map[string]struct {
		options options
		want    string
	}{
		"no store":     {options{resync: time.Minute, operatorAddress: "0"}, "--store is missing"},
		"two stores":   {options{storeURL: "redis://:hunter2@a", storeFile: "b", resync: time.Minute, operatorAddress: "0"}, "give one of them"},
		"no file":      {options{storeFile: "/does/not/exist", resync: time.Minute, operatorAddress: "0"}, "--store-file: "},
		"no tracing":   {options{operatorAddress: "0", sidecarEnv: []string{"TALLYMAN_STORE=hunter2"}}, "must be a variable of OpenTelemetry"},
		"no value":     {options{operatorAddress: "0", sidecarEnv: []string{"OTEL_TRACES_SAMPLER"}}, "must be a variable of OpenTelemetry"},
		"headers":      {options{operatorAddress: "0", sidecarEnv: []string{"OTEL_EXPORTER_OTLP_HEADERS=key=hunter2"}}, "must not be headers"},
		"short resync": {options{storeURL: "redis://a"}, "--resync must be"},
		"open to all":  {options{storeURL: "redis://a", resync: time.Minute, operatorAddress: ":8082"}, "--operator-bind-address must be a loopback address"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.options.complete()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v does not say %q", err, test.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}
