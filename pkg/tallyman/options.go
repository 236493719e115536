package tallyman

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/store"
)

// MemoryStore is the Store that counts within the process.
const MemoryStore = "memory:"

// DefaultNamespace is that of the policies in a file that name none.
const DefaultNamespace = "default"

// Options say what a Limiter enforces and where it counts.
type Options struct {
	// Store is where requests are counted: a Redis URL, or "memory:" to count
	// within the process. Required.
	//
	// Redis URLs are redis://, rediss:// (TLS), unix://, redis+cluster:// and
	// redis+sentinel:// ones, with the query parameters of go-redis.
	Store string
	// Username and Password for Redis override those of the URL.
	Username, Password string
	// TLS refines that of a rediss:// URL; with others it is an error.
	TLS TLSOptions
	// Prefix of all keys; "tallyman" if empty. It must be the manager's.
	Prefix string

	// PolicyFile is a YAML file of RateLimitPolicy objects to enforce, all of
	// them, whatever they target. Without it the definitions come from Redis,
	// where the manager puts them.
	PolicyFile string

	// Namespace whose policies are enforced. Required without a PolicyFile;
	// with one, it is that of policies that name none.
	Namespace string
	// Pod is the name to report as; the host's name if empty.
	Pod string
	// Labels are the pod's, by which policies select it.
	Labels map[string]string

	// TrustedHops is the number of proxies in front that append to
	// X-Forwarded-For. With 0 the header is not looked at: the client is the
	// direct peer.
	TrustedHops int
	// ProbeSources are the addresses that a kubelet's probes come from; probes
	// from elsewhere are ordinary requests.
	ProbeSources []netip.Prefix

	// Logger is told of changes and faults; nil is silence. It is never told
	// credentials, keys, or anything else of requests.
	Logger *slog.Logger
	// Observer is told what happens, for metrics.
	Observer Observer
}

// TLSOptions say whom to trust and who one is. The files are PEM; a certificate
// and its key are read again for each new connection, so that they can be renewed.
type TLSOptions struct {
	// CAFile has the certificates to trust, or CA is their text; without either
	// those of the system are.
	CAFile, CA string
	// CertFile and KeyFile are the client's certificate and key, for mutual TLS.
	CertFile, KeyFile string
	// ServerName is the name that servers' certificates must have; the URL's host
	// if empty.
	ServerName string
}

// withDefaults fills in what was left out, and refuses what cannot work.
func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Store == "":
		return o, errors.New("the store is not set: give the URL of a Redis, or \"memory:\" to count within this process")
	case o.Store == MemoryStore && o.PolicyFile == "":
		return o, errors.New("the store \"memory:\" has no definitions: give a policy file, or the URL of a Redis")
	case o.PolicyFile == "" && o.Namespace == "":
		return o, errors.New("the namespace is not set: give the one whose policies are to be enforced, or a policy file")
	case strings.ContainsAny(o.Namespace+o.Prefix, "{}: \t\r\n"):
		return o, errors.New("namespace and prefix may not have braces, colons or spaces")
	case o.TrustedHops < 0:
		return o, fmt.Errorf("the number of trusted hops is %d: it may not be negative", o.TrustedHops)
	}
	if o.Prefix == "" {
		o.Prefix = store.DefaultPrefix
	}
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Observer = o.Observer.withDefaults()
	if o.Pod != "" {
		return o, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return o, fmt.Errorf("find a name for the pod, which was not given: %w", err)
	}
	o.Pod = host
	return o, nil
}
