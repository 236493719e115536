package view

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tallyman-dev/tallyman/internal/operator"
)

// Sample is what a pod has said of its keys, or why it did not.
type Sample struct {
	Namespace, Pod string
	Top            operator.Top
	Err            error
}

// Meter tells rates from successive samples. The zero value has seen none. It is not
// safe for concurrent use.
type Meter struct{ before map[podName]operator.Top }

type podName struct{ namespace, pod string }

// Rates are those of all pods together.
type Rates struct {
	At time.Time `json:"at"`
	// Pods is how many answered.
	Pods       int          `json:"pods"`
	Unanswered []Unanswered `json:"unanswered,omitempty"`
	// Limits are those most refused first.
	Limits []LimitRate `json:"limits"`
}

// Unanswered is a pod that did not answer.
type Unanswered struct {
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Error     string `json:"error"`
}

// Rate is of requests a second.
type Rate struct {
	Admitted float64 `json:"admittedPerSecond"`
	Refused  float64 `json:"refusedPerSecond"`
}

func (r *Rate) add(other Rate) {
	r.Admitted += other.Admitted
	r.Refused += other.Refused
}

// compareRates orders the most refused first, and then the most admitted.
func compareRates(a, b Rate) int {
	return cmp.Or(cmp.Compare(b.Refused, a.Refused), cmp.Compare(b.Admitted, a.Admitted))
}

// LimitRate is of one limit.
type LimitRate struct {
	Namespace string `json:"namespace,omitempty"`
	Policy    string `json:"policy"`
	Limit     string `json:"limit"`
	Shadow    bool   `json:"shadow,omitempty"`
	Rate
	// Keys are those with most requests, most refused first. Others says that there
	// were more than pods count.
	Keys   []KeyRate `json:"keys,omitempty"`
	Others bool      `json:"others,omitempty"`
}

// KeyRate is of one key of a limit.
type KeyRate struct {
	Key string `json:"key"`
	Rate
}

// Rates are the rates since the samples before. A pod has none before its second
// sample. With a policy's name, limits of others are left out.
func (m *Meter) Rates(at time.Time, policy string, samples []Sample) Rates {
	r := Rates{At: at, Limits: []LimitRate{}}
	sums := map[limitName]*limitSum{}
	seen := map[podName]operator.Top{}
	for i := range samples {
		s := &samples[i]
		if s.Err != nil {
			r.Unanswered = append(r.Unanswered, Unanswered{s.Namespace, s.Pod, s.Err.Error()})
			continue
		}
		r.Pods++
		name := podName{s.Namespace, s.Pod}
		before, known := m.before[name]
		if known {
			s.addTo(sums, policy, before)
		}
		seen[name] = s.Top
	}
	m.before = seen
	for name, sum := range sums {
		r.Limits = append(r.Limits, sum.rate(name))
	}
	slices.SortFunc(r.Limits, func(a, b LimitRate) int {
		return cmp.Or(compareRates(a.Rate, b.Rate), strings.Compare(a.Namespace, b.Namespace),
			strings.Compare(a.Policy, b.Policy), strings.Compare(a.Limit, b.Limit))
	})
	return r
}

type limitName struct{ namespace, policy, limit string }

// limitSum is a limit's rate, summed over pods.
type limitSum struct {
	Rate
	shadow, others bool
	keys           map[string]Rate
}

func (s *limitSum) rate(n limitName) LimitRate {
	out := LimitRate{Namespace: n.namespace, Policy: n.policy, Limit: n.limit, Shadow: s.shadow, Rate: s.Rate, Others: s.others}
	for key, rate := range s.keys {
		out.Keys = append(out.Keys, KeyRate{key, rate})
	}
	slices.SortFunc(out.Keys, func(a, b KeyRate) int {
		return cmp.Or(compareRates(a.Rate, b.Rate), strings.Compare(a.Key, b.Key))
	})
	return out
}

// addTo adds what has happened since the sample before.
func (s *Sample) addTo(sums map[limitName]*limitSum, policy string, before operator.Top) {
	if s.Top.SinceMs < before.SinceMs {
		before = operator.Top{} // the sidecar has begun anew
	}
	seconds := float64(s.Top.SinceMs-before.SinceMs) / 1000
	if seconds == 0 {
		return
	}
	counted := map[limitName]*operator.TopLimit{}
	for i := range before.Limits {
		l := &before.Limits[i]
		counted[limitName{s.Namespace, l.Policy, l.Limit}] = l
	}
	for i := range s.Top.Limits {
		l := &s.Top.Limits[i]
		if policy != "" && l.Policy != policy {
			continue
		}
		name := limitName{s.Namespace, l.Policy, l.Limit}
		if sums[name] == nil {
			sums[name] = &limitSum{keys: map[string]Rate{}}
		}
		sums[name].add(l, counted[name], seconds)
	}
}

// add adds a limit's counts, less those before, of which there may be none.
func (s *limitSum) add(l, before *operator.TopLimit, seconds float64) {
	if before == nil {
		before = &operator.TopLimit{}
	}
	s.shadow, s.others = s.shadow || l.Shadow, s.others || l.Others
	s.Rate.add(since(l.Admitted-before.Admitted, l.Refused-before.Refused, seconds))
	counted := make(map[string]operator.TopKey, len(before.Keys))
	for _, k := range before.Keys {
		counted[k.Key] = k
	}
	for _, k := range l.Keys {
		was := counted[k.Key]
		sum := s.keys[k.Key]
		sum.add(since(k.Admitted-was.Admitted, k.Refused-was.Refused, seconds))
		s.keys[k.Key] = sum
	}
}

// since is a rate. Counts that went back, of a policy made anew, are none.
func since(admitted, refused int64, seconds float64) Rate {
	return Rate{Admitted: float64(max(0, admitted)) / seconds, Refused: float64(max(0, refused)) / seconds}
}
