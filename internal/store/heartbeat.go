package store

import (
	"context"
	_ "embed"
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
	// forgetAfter is when the report of an enforcer that is gone is removed.
	forgetAfter = 2 * EnforcerTimeout
	// maxReport bounds one report, in bytes: 10,000 policies of 100 bytes.
	maxReport = 1 << 20
	// maxStored has room for the time before the report.
	maxStored = maxReport + 20
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

// Beat reports an enforcer as alive. It returns the shares of the policies that
// it enforces, by name.
func (s *Store) Beat(ctx context.Context, ns string, h Heartbeat) (map[string]Share, error) {
	shares, err := s.beat(ctx, ns, h)
	if err != nil {
		return nil, fmt.Errorf("report enforcer %.80q: %w", h.Pod, err)
	}
	return shares, nil
}

func (s *Store) beat(ctx context.Context, ns string, h Heartbeat) (map[string]Share, error) {
	report, err := h.encode()
	if err != nil {
		return nil, err
	}
	policies := slices.Collect(maps.Keys(h.Policies))
	reply, err := s.runBeat(ctx, ns, h.Pod, report, policies)
	if err != nil {
		return nil, err
	}
	if len(reply) != 2*len(policies) {
		return nil, fmt.Errorf("the script answered with %d numbers for %d policies", len(reply), len(policies))
	}
	shares := make(map[string]Share, len(policies))
	for i, name := range policies {
		shares[name] = Share{Live: int(reply[2*i]), Place: int(reply[2*i+1])}
	}
	return shares, nil
}

// runBeat without a report withdraws the one before.
func (s *Store) runBeat(ctx context.Context, ns, pod string, report []byte, policies []string) ([]int64, error) {
	keys := []string{s.enforcersKey(ns), s.placesKey(ns), s.seenKey(ns)}
	args := append(make([]any, 0, 4+len(policies)),
		pod, report, forgetAfter.Milliseconds(), EnforcerTimeout.Milliseconds())
	for _, name := range policies {
		args = append(args, name)
	}
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
	if _, err := s.runBeat(ctx, ns, pod, nil, nil); err != nil {
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
	seen, report, found := strings.Cut(text, " ")
	micros, err := strconv.ParseInt(seen, 10, 64)
	if !found || err != nil {
		return Enforcer{}, false
	}
	e := Enforcer{LastSeen: time.UnixMicro(micros)}
	if json.Unmarshal([]byte(report), &e.Heartbeat) != nil || e.Pod != pod {
		return Enforcer{}, false
	}
	return e, true
}
