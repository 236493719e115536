package store

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// BeatInterval is how often an enforcer reports.
	BeatInterval = 3 * time.Second
	// EnforcerTimeout is when an enforcer that does not report counts as gone.
	EnforcerTimeout = 5 * BeatInterval
	// maxReport bounds one report, in bytes: 10,000 policies of 100 bytes.
	maxReport = 1 << 20
	// maxStored has room for the time and the digest before the report.
	maxStored = maxReport + 40
	// maxReports bounds the reports that are read for one namespace, in bytes.
	// A pod may write what it likes into its namespace's reports.
	maxReports = 8 << 20
	// maxReason bounds the reason for a rejection, in bytes. A spec may have a
	// great many faults, and the heartbeat must arrive all the same.
	maxReason = 256
	// maxPodName is that of Kubernetes, in bytes.
	maxPodName = 253
)

//go:embed scripts/beat.lua
var beatSource string

//go:embed scripts/enforcers.lua
var enforcersSource string

var (
	beatScript      = redis.NewScript(beatSource)
	enforcersScript = redis.NewScript(enforcersSource)
)

// Heartbeat is what an enforcer says of itself.
type Heartbeat struct {
	// Pod is the enforcer's name in its namespace, 1..253 bytes.
	Pod string `json:"pod"`
	// Revision is the one that it has read last.
	Revision Revision `json:"revision"`
	// Policies are those that it enforces, with the generation.
	Policies map[string]int64 `json:"policies,omitempty"`
	// UIDs are those of the objects that these policies are from, as far as they
	// are known: a policy made anew begins with generation 1 again.
	UIDs map[string]string `json:"uids,omitempty"`
	// Rejected are those that it could not read, with the reason, which is cut
	// to 256 bytes. It goes on with the generation in Policies, if there is one.
	Rejected map[string]string `json:"rejected,omitempty"`
	// Version of the enforcer's program.
	Version string `json:"version,omitempty"`
}

// Enforcer is a heartbeat with the time at which the store received it.
type Enforcer struct {
	Heartbeat
	// LastSeen is by the store's clock.
	LastSeen time.Time
}

// Share tells an enforcer of a policy how many there are, and which one it is.
type Share struct {
	// Live is how many enforcers of the policy are alive, this one included.
	Live int
	// Place of this one among them, 0..Live-1, by the names of the pods.
	Place int
}

// Pulse reports one enforcer, again and again. What the store knows already is not
// said again: such a heartbeat costs the same for one policy and for a thousand. It is
// not safe for concurrent use.
type Pulse struct {
	store     *Store
	namespace string

	// digest is that of the report which the store took last, and shares is what it
	// said to that, of places that had this version.
	digest  string
	version int64
	shares  map[string]Share
}

// Pulse returns one that has not said anything yet.
func (s *Store) Pulse(ns string) *Pulse { return &Pulse{store: s, namespace: ns} }

// Beat reports an enforcer as alive. It returns the shares of the policies that
// it enforces, by name, which the caller must not change.
func (p *Pulse) Beat(ctx context.Context, h Heartbeat) (map[string]Share, error) {
	if err := p.beat(ctx, h); err != nil {
		return nil, fmt.Errorf("report enforcer %.80q: %w", h.Pod, err)
	}
	return p.shares, nil
}

func (p *Pulse) beat(ctx context.Context, h Heartbeat) error {
	report, err := h.encode()
	if err != nil {
		return err
	}
	policies := slices.Sorted(maps.Keys(h.Policies))
	digest := digestOf(report)
	if digest == p.digest {
		if known, err := p.remind(ctx, h.Pod, policies); known || err != nil {
			return err
		}
	}
	return p.tell(ctx, h.Pod, digest, report, policies)
}

// digestOf tells reports apart.
func digestOf(report []byte) string {
	sum := sha256.Sum256(report)
	return hex.EncodeToString(sum[:8])
}

// remind says that the last report is still true. It tells whether the store has it,
// and nothing about the places has changed.
func (p *Pulse) remind(ctx context.Context, pod string, policies []string) (known bool, err error) {
	one := ""
	if len(policies) > 0 {
		one = policies[0]
	}
	reply, err := p.store.runBeat(ctx, p.namespace, pod, p.digest, p.version, one)
	return len(reply) == 1, err
}

// tell says it all.
func (p *Pulse) tell(ctx context.Context, pod, digest string, report []byte, policies []string) error {
	args := []any{report}
	for _, name := range policies {
		args = append(args, name)
	}
	reply, err := p.store.runBeat(ctx, p.namespace, pod, digest, 0, "", args...)
	if err != nil {
		return err
	}
	if len(reply) != 1+2*len(policies) {
		return fmt.Errorf("the script answered with %d numbers for %d policies", len(reply), len(policies))
	}
	p.digest, p.version, p.shares = digest, reply[0], make(map[string]Share, len(policies))
	for i, name := range policies {
		p.shares[name] = Share{Live: int(reply[1+2*i]), Place: int(reply[2+2*i])}
	}
	return nil
}

// runBeat calls the script with the arguments that it describes.
func (s *Store) runBeat(ctx context.Context, ns, pod, digest string, version int64, one string, all ...any) ([]int64, error) {
	keys := []string{s.enforcersKey(ns), s.placesKey(ns), s.seenKey(ns)}
	args := append([]any{pod, digest, version, one, EnforcerTimeout.Milliseconds()}, all...)
	return beatScript.Run(ctx, s.client, keys, args...).Int64Slice()
}

func (h Heartbeat) encode() ([]byte, error) {
	if h.Pod == "" || len(h.Pod) > maxPodName {
		return nil, fmt.Errorf("the pod's name has %d bytes, not 1..%d", len(h.Pod), maxPodName)
	}
	h.Rejected = maps.Clone(h.Rejected)
	for name, reason := range h.Rejected {
		if len(reason) > maxReason {
			h.Rejected[name] = strings.ToValidUTF8(reason[:maxReason], "")
		}
	}
	report, err := json.Marshal(h)
	if err == nil && len(report) > maxReport {
		err = fmt.Errorf("the report has %d bytes, more than the %d allowed", len(report), maxReport)
	}
	return report, err
}

// Leave withdraws an enforcer's report, and has others take over its shares.
func (s *Store) Leave(ctx context.Context, ns, pod string) error {
	if _, err := s.runBeat(ctx, ns, pod, "", 0, ""); err != nil {
		return fmt.Errorf("withdraw enforcer %q: %w", pod, err)
	}
	return nil
}

// Enforcers lists the enforcers of a namespace that are alive, by pod. Reports
// that cannot be read are left out: who wrote them says nothing. So is what is
// beyond 8 MiB of reports, which is 16,000 of a usual size.
func (s *Store) Enforcers(ctx context.Context, ns string) ([]Enforcer, error) {
	reply, err := enforcersScript.Run(ctx, s.client, []string{s.enforcersKey(ns)}, maxStored, maxReports).Slice()
	if err != nil {
		return nil, fmt.Errorf("list enforcers of namespace %q: %w", ns, err)
	}
	if len(reply) == 0 {
		return nil, fmt.Errorf("list enforcers of namespace %q: the script answered nothing", ns)
	}
	micros, _ := reply[0].(int64)
	now := time.UnixMicro(micros)
	var alive []Enforcer
	for pair := range slices.Chunk(reply[1:], 2) {
		pod, _ := pair[0].(string)
		report, _ := pair[len(pair)-1].(string)
		if e, ok := parseReport(pod, report); ok && now.Sub(e.LastSeen) <= EnforcerTimeout {
			alive = append(alive, e)
		}
	}
	slices.SortFunc(alive, func(a, b Enforcer) int { return strings.Compare(a.Pod, b.Pod) })
	return alive, nil
}

func parseReport(pod, text string) (Enforcer, bool) {
	seen, rest, _ := strings.Cut(text, " ")
	micros, err := strconv.ParseInt(seen, 10, 64)
	// Sidecars from before there were digests are seen until their pods are made anew.
	report := rest[max(0, strings.IndexByte(rest, '{')):] // less the digest
	if err != nil {
		return Enforcer{}, false
	}
	e := Enforcer{LastSeen: time.UnixMicro(micros)}
	if json.Unmarshal([]byte(report), &e.Heartbeat) != nil || e.Pod != pod {
		return Enforcer{}, false
	}
	return e, true
}
