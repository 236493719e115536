package sidecar

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/tallyman-dev/tallyman/internal/operator/guard"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// Config is what a sidecar is told by its flags and its environment.
type Config struct {
	Limiter tallyman.Options

	// Listen is the address of the reverse proxy, and Upstream the app's URL.
	Listen   string
	Upstream *url.URL
	// CheckListen is the address of the check API.
	CheckListen string
	// GRPCListen is the address of Envoy's protocols.
	GRPCListen string
	// AdminListen is the address of health, metrics and what is enforced.
	AdminListen string
	// OperatorListen is the loopback address of what the kubectl plugin asks.
	OperatorListen string

	// DrainTimeout is how long requests may go on after the sidecar is told to
	// stop.
	DrainTimeout time.Duration
	LogLevel     slog.Level
	// ShowVersion asks for the version only.
	ShowVersion bool
}

const usage = `sidecar enforces RateLimitPolicies in front of an app.

  # Try a policy without a cluster and without Redis:
  sidecar --policy-file policy.yaml --store memory: \
    --upstream http://127.0.0.1:8080 --listen 127.0.0.1:8081

  # In a pod, the policies that the manager publishes:
  sidecar --store redis://redis:6379 --namespace shop --pod orders-1 \
    --pod-labels-file /etc/podinfo/labels \
    --upstream http://127.0.0.1:8080 --listen :8081 --admin-listen :9102

Each listener is off when its flag is empty. The environment has TALLYMAN_STORE,
TALLYMAN_STORE_USERNAME, TALLYMAN_STORE_PASSWORD and TALLYMAN_STORE_CA, POD_NAMESPACE
and POD_NAME for what should not be, or need not be, a flag.

Flags:
`

// flags are the texts that need more than parsing.
type flags struct {
	storeFile, upstream, podLabels, podLabelsFile, probeFrom string
}

// ParseConfig reads flags, and what they leave out from the environment. It
// writes help to output; its error is flag.ErrHelp then.
func ParseConfig(args []string, getenv func(string) string, output io.Writer) (Config, error) {
	var c Config
	var f flags
	set := flag.NewFlagSet("sidecar", flag.ContinueOnError)
	set.SetOutput(output)
	set.Usage = func() {
		fmt.Fprint(output, usage)
		set.PrintDefaults()
	}
	c.define(set, &f)
	if err := set.Parse(args); err != nil {
		return c, err
	}
	if set.NArg() > 0 {
		return c, fmt.Errorf("argument %d belongs to no flag", len(args)-set.NArg()+1) // it may hold a password
	}
	if c.ShowVersion {
		return c, nil
	}
	if err := c.complete(&f, getenv); err != nil {
		return c, err
	}
	return c, c.check()
}

func (c *Config) define(set *flag.FlagSet, f *flags) {
	o := &c.Limiter
	set.StringVar(&o.PolicyFile, "policy-file", "", "take the policies from this YAML `file`, and not from the store; all of them apply")
	set.StringVar(&o.Store, "store", "", "`URL` of the counts: redis://, rediss://, unix://, redis+cluster://, redis+sentinel://, or memory: for this process alone (env TALLYMAN_STORE)")
	set.StringVar(&f.storeFile, "store-file", "", "read the store's URL from this `file`, such as a mounted Secret")
	set.StringVar(&o.TLS.CAFile, "store-ca-file", "", "`file` with the certificates (PEM) to trust in a rediss:// store (env TALLYMAN_STORE_CA, their text; default: the system's)")
	set.StringVar(&o.TLS.CertFile, "store-cert-file", "", "`file` with the client's certificate (PEM) for the store, with --store-key-file")
	set.StringVar(&o.TLS.KeyFile, "store-key-file", "", "`file` with the key (PEM) of --store-cert-file")
	set.StringVar(&o.TLS.ServerName, "store-server-name", "", "`name` that the store's certificate must have (default the URL's host)")
	set.StringVar(&o.Prefix, "prefix", "", "`prefix` of all keys in Redis; the manager's (default \"tallyman\")")
	set.StringVar(&o.Namespace, "namespace", "", "`namespace` whose policies apply (env POD_NAMESPACE)")
	set.StringVar(&o.Pod, "pod", "", "`name` of the pod, for the policies' status (env POD_NAME)")
	set.StringVar(&f.podLabels, "pod-labels", "", "the pod's `labels`, as a=b,c=d")
	set.StringVar(&f.podLabelsFile, "pod-labels-file", "", "`file` with the pod's labels, as the downward API writes it")
	set.StringVar(&c.Listen, "listen", "", "`address` of the reverse proxy")
	set.StringVar(&f.upstream, "upstream", "", "`URL` of the app behind the reverse proxy, such as http://127.0.0.1:8080")
	set.StringVar(&c.CheckListen, "check-listen", "", "`address` of the check API and of forward-auth; GET /v1/openapi.yaml there describes them")
	set.StringVar(&c.GRPCListen, "grpc-listen", "", "`address` of Envoy's rate limit service and external authorization")
	set.StringVar(&c.AdminListen, "admin-listen", "", "`address` of /healthz, /readyz, /metrics and /debug/policies")
	set.StringVar(&c.OperatorListen, "operator-listen", "", "loopback `address` where kubectl tallyman asks what is decided and resets counters, by way of a forwarded port")
	set.IntVar(&o.TrustedHops, "trusted-hops", 0, "`number` of proxies in front that append to X-Forwarded-For")
	set.StringVar(&f.probeFrom, "probe-from", "", "`addresses` or networks that the kubelet's probes come from, such as the node's address; they are not counted")
	set.DurationVar(&c.DrainTimeout, "drain-timeout", 25*time.Second, "`duration` that requests may go on after SIGTERM")
	set.TextVar(&c.LogLevel, "log-level", slog.LevelInfo, "`level` of the log: DEBUG, INFO, WARN or ERROR")
	set.BoolVar(&c.ShowVersion, "version", false, "print the version and exit")
}

// complete takes from files and the environment what the flags left out. It
// comes after parsing, since the help shows the flags' defaults, and a password
// must not be one.
func (c *Config) complete(f *flags, getenv func(string) string) error {
	o := &c.Limiter
	if f.storeFile != "" {
		if o.Store != "" {
			return errors.New("--store and --store-file say both where the store is: give one of them")
		}
		text, err := os.ReadFile(f.storeFile)
		if err != nil {
			return fmt.Errorf("--store-file: %w", err)
		}
		o.Store = strings.TrimSpace(string(text))
	}
	o.Store = cmp.Or(o.Store, getenv("TALLYMAN_STORE"))
	o.Username, o.Password = getenv("TALLYMAN_STORE_USERNAME"), getenv("TALLYMAN_STORE_PASSWORD")
	if o.TLS.CAFile == "" {
		o.TLS.CA = getenv("TALLYMAN_STORE_CA")
	}
	o.Namespace = cmp.Or(o.Namespace, getenv("POD_NAMESPACE"))
	o.Pod = cmp.Or(o.Pod, getenv("POD_NAME"))
	var err error
	if f.upstream != "" {
		if c.Upstream, err = parseUpstream(f.upstream); err != nil {
			return err
		}
	}
	if o.ProbeSources, err = parseSources(f.probeFrom); err != nil {
		return err
	}
	o.Labels, err = podLabels(f)
	return err
}

// parseSources reads addresses and networks with commas between.
func parseSources(text string) ([]netip.Prefix, error) {
	var sources []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(part)
		if addr, addrErr := netip.ParseAddr(part); addrErr == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("--probe-from must be addresses or networks with commas between, such as 10.0.0.1,fd00::/8, not %.80q", part)
		}
		sources = append(sources, prefix)
	}
	return sources, nil
}

func parseUpstream(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, errors.New("--upstream must be the app's address and no more, such as http://127.0.0.1:8080")
	}
	u.Path = ""
	return u, nil
}

func podLabels(f *flags) (map[string]string, error) {
	switch {
	case f.podLabels != "" && f.podLabelsFile != "":
		return nil, errors.New("--pod-labels and --pod-labels-file say both which labels the pod has: give one of them")
	case f.podLabelsFile != "":
		text, err := os.ReadFile(f.podLabelsFile)
		if err != nil {
			return nil, fmt.Errorf("--pod-labels-file: %w", err)
		}
		return parseDownwardLabels(string(text))
	case f.podLabels != "":
		return parseLabels(f.podLabels)
	default:
		return nil, nil
	}
}

// check refuses what does not go together.
func (c *Config) check() error {
	if err := c.checkPolicies(); err != nil {
		return err
	}
	return c.checkServices()
}

// checkPolicies is about where policies and counts are.
func (c *Config) checkPolicies() error {
	o := &c.Limiter
	switch {
	case o.Store == "":
		return errors.New("--store is missing: give the URL of a Redis, or memory: to count in this process alone")
	case o.TrustedHops < 0:
		return errors.New("--trusted-hops must be 0 or more")
	case o.PolicyFile != "":
		return nil
	case o.Store == tallyman.MemoryStore:
		return errors.New("--policy-file is missing: the store memory: holds no policies")
	case o.Namespace == "":
		return errors.New("--namespace is missing: say whose policies apply, or give a --policy-file")
	case o.Labels == nil:
		return errors.New("--pod-labels-file or --pod-labels is missing: policies select pods by their labels; " +
			"or give a --policy-file, all of which applies")
	default:
		return nil
	}
}

// checkServices is about what is served where.
func (c *Config) checkServices() error {
	for _, s := range []struct{ flag, address string }{
		{"listen", c.Listen}, {"check-listen", c.CheckListen}, {"grpc-listen", c.GRPCListen}, {"admin-listen", c.AdminListen},
	} {
		if _, _, err := net.SplitHostPort(s.address); s.address != "" && err != nil {
			return fmt.Errorf("--%s must be an address with a port, such as 127.0.0.1:8081, not %q", s.flag, s.address)
		}
	}
	if c.OperatorListen != "" {
		if err := guard.CheckAddress(c.OperatorListen); err != nil {
			return fmt.Errorf("--operator-listen %w", err)
		}
	}
	switch {
	case c.Listen != "" && c.Upstream == nil:
		return errors.New("--upstream is missing: give the URL of the app behind --listen, such as http://127.0.0.1:8080")
	case c.Listen == "" && c.Upstream != nil:
		return errors.New("--listen is missing: give the address of the proxy in front of --upstream, such as 127.0.0.1:8081")
	case c.Listen == "" && c.CheckListen == "" && c.GRPCListen == "" && c.AdminListen == "":
		return errors.New("there is nothing to serve: give --listen with --upstream, --check-listen or --grpc-listen")
	case c.DrainTimeout < 0:
		return errors.New("--drain-timeout must be 0s or more")
	default:
		return nil
	}
}
