package store

import (
	"context"
	"errors"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// forms is part of the errors about a URL.
const forms = "write redis://, rediss:// or unix:// for one server, " +
	"redis+cluster://host:port?addr=host2:port2 for a Redis Cluster, " +
	"redis+sentinel://host:port?master_name=NAME for Sentinel"

// ConnectOptions say how to reach Redis.
type ConnectOptions struct {
	// URL of the server, with or without credentials. Query parameters are
	// those of go-redis, such as ?pool_size=20.
	URL string
	// Username and Password override those of the URL when they are not empty.
	Username string
	Password string
	// TLS refines the TLS of a rediss:// URL.
	TLS TLSOptions
}

// Connect returns a client that connects on first use, so that a server that is
// down is no error here. The caller closes it.
//
// The client honours the deadlines of contexts, and has up to pool_size
// connections to a server, or to each node of a Redis Cluster: 10 per CPU and at
// most 40 if not set. Pipelines have pipeline_pool_size connections of their own,
// 10 if not set. A server that is down is dialed two to ten times a second,
// whatever the number of requests.
//
// It never repeats a command by itself, but for that of a Redis Cluster: there
// MaxRedirects is the budget for redirects and repetitions. A command that must
// not be repeated says so by NoRetry, as those of package limiter do.
//
// No error holds any part of the URL, since a password may stand where none is
// expected.
func Connect(o ConnectOptions) (redis.UniversalClient, error) {
	scheme, _, found := strings.Cut(o.URL, "://")
	if !found {
		return nil, errors.New("the store's URL has no scheme: " + forms)
	}
	switch scheme {
	case "redis", "rediss", "unix":
		return o.connectServer()
	case "redis+cluster", "rediss+cluster":
		return o.connectCluster()
	case "redis+sentinel", "rediss+sentinel":
		return o.connectSentinel()
	default:
		return nil, errors.New("the store's URL has a scheme that is not known: " + forms)
	}
}

func (o ConnectOptions) connectServer() (redis.UniversalClient, error) {
	options, err := parse(o.URL, redis.ParseURL)
	if err != nil {
		return nil, err
	}
	if err := o.TLS.apply(options.TLSConfig); err != nil {
		return nil, err
	}
	o.override(&options.Username, &options.Password)
	options.ContextTimeoutEnabled = true
	options.DisableIdentity = true
	options.DialerRetries = dialerRetries
	options.MaintNotificationsConfig = noMaintenance()
	client := redis.NewClient(options)
	client.AddHook(&redialer{failed: ignore})
	return client, nil
}

func (o ConnectOptions) connectCluster() (redis.UniversalClient, error) {
	options, err := parse(o.URL, redis.ParseClusterURL)
	if err != nil {
		return nil, err
	}
	if options.ReadOnly || options.RouteByLatency || options.RouteRandomly {
		return nil, errReplicas
	}
	if err := o.TLS.apply(options.TLSConfig); err != nil {
		return nil, err
	}
	o.override(&options.Username, &options.Password)
	options.ContextTimeoutEnabled = true
	options.DisableIdentity = true
	options.DialerRetries = dialerRetries
	options.MaintNotificationsConfig = noMaintenance()
	options.ClusterStateReloadInterval = clusterReload
	client := redis.NewClusterClient(options)
	client.OnNewNode(func(node *redis.Client) {
		// A command that is not repeated does not make go-redis look where the
		// slots of a master that is gone have gone to.
		node.AddHook(&redialer{failed: client.ReloadState})
	})
	return client, nil
}

func (o ConnectOptions) connectSentinel() (redis.UniversalClient, error) {
	options, err := parse(o.URL, redis.ParseFailoverURL)
	if err != nil {
		return nil, err
	}
	if options.MasterName == "" {
		return nil, errors.New("the store's URL names no master: add ?master_name=NAME")
	}
	if options.ReplicaOnly || options.RouteByLatency || options.RouteRandomly {
		return nil, errReplicas
	}
	if err := o.TLS.apply(options.TLSConfig); err != nil {
		return nil, err
	}
	o.override(&options.Username, &options.Password)
	options.ContextTimeoutEnabled = true
	options.DisableIdentity = true
	options.DialerRetries = dialerRetries
	client := redis.NewFailoverClient(options)
	client.AddHook(&redialer{failed: ignore})
	return client, nil
}

func ignore(context.Context) {}

// clusterReload is how old a client's view of a Redis Cluster gets. A master
// that is stopped, and not closed, is noticed by nothing else.
const clusterReload = 2 * time.Second

var errReplicas = errors.New("the store's URL asks to read from replicas, which lag behind: " +
	"remove read_only, replica_only, route_by_latency and route_randomly")

// dialerRetries is one attempt: who needs the connection decides what follows.
const dialerRetries = 1

// defaults are query parameters of the URL that it may set itself. The timeouts
// bound what no context bounds; requests have deadlines of their own, far
// shorter.
var defaults = map[string]string{
	"client_name":   "tallyman",
	"dial_timeout":  "2s",
	"pool_size":     strconv.Itoa(min(10*runtime.GOMAXPROCS(0), 40)),
	"read_timeout":  "2s",
	"write_timeout": "2s",
}

// parse reads the URL with go-redis's parser for its form. The parser's errors
// may quote the URL, so none is passed on.
func parse[T any](text string, parser func(string) (T, error)) (T, error) {
	var none T
	u, err := url.Parse(text)
	if err != nil || misplacedCredentials(text) {
		return none, errors.New("the store's URL cannot be parsed; percent-encode special characters in user name and password: " + forms)
	}
	u.Scheme, _, _ = strings.Cut(u.Scheme, "+")
	query := u.Query()
	for name, value := range defaults {
		if !query.Has(name) {
			query.Set(name, value)
		}
	}
	if query.Has("max_retries") {
		return none, errors.New("the store's URL has max_retries, but a request must not be charged twice in silence: remove it")
	}
	query.Set("max_retries", "-1")
	u.RawQuery = query.Encode()
	options, err := parser(u.String())
	switch {
	case err == nil:
		return options, nil
	case strings.HasPrefix(err.Error(), "redis: unexpected option"):
		return none, errors.New("the store's URL has a query parameter that is not known; " +
			"if there is a question mark in the password, write it as %3F")
	default:
		return none, errors.New("the store's URL is not valid: " + forms)
	}
}

// misplacedCredentials tells whether a password with a slash, a question mark or
// a hash has become a part of the path, the query or the fragment.
func misplacedCredentials(text string) bool {
	_, text, _ = strings.Cut(text, "://")
	end := strings.IndexAny(text, "/?#")
	return end >= 0 && strings.Contains(text[end:], "@")
}

// noMaintenance turns off the push notifications of Redis Enterprise, which a
// plain server answers with an error at each connect.
func noMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

func (o ConnectOptions) override(username, password *string) {
	if o.Username != "" {
		*username = o.Username
	}
	if o.Password != "" {
		*password = o.Password
	}
}
