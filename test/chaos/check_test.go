package chaos

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// at makes decisions that took a millisecond each, at these milliseconds.
func at(allowed, degraded bool, starts ...int) []observation {
	var trace []observation
	for _, start := range starts {
		from := time.Duration(start) * ms
		trace = append(trace, observation{key: "a", from: from, to: from + ms, allowed: allowed, degraded: degraded})
	}
	return trace
}

func admitted(starts ...int) []observation { return at(true, false, starts...) }
func refused(starts ...int) []observation  { return at(false, false, starts...) }
func degraded(starts ...int) []observation { return at(true, true, starts...) }

func ofKey(key string, trace []observation) []observation {
	for i := range trace {
		trace[i].key = key
	}
	return trace
}

// Each trace with a planted fault stands beside one that is like it and right.
func TestTheCheckerFindsPlantedFaults(t *testing.T) {
	three := promise{requests: 3, window: time.Second, late: 100 * ms}
	restarted := three
	restarted.losses = []span{{from: 200 * ms, to: 300 * ms}}
	for name, tc := range map[string]struct {
		promise promise
		trace   []observation
		want    string // "" for none
	}{
		"nothing":                          {three, nil, ""},
		"the limit":                        {three, admitted(0, 1, 2), ""},
		"one too many":                     {three, admitted(0, 1, 2, 990), "4 admitted"},
		"one in the next window":           {three, admitted(0, 1, 2, 1000), ""},
		"one that may be in the next":      {three, admitted(0, 1, 2, 999), ""},
		"one too many later":               {three, admitted(0, 900, 1000, 1100, 1800), "4 admitted"},
		"keys have their own":              {three, slices.Concat(admitted(0, 1, 2), ofKey("b", admitted(3, 4))), ""},
		"one too many that is degraded":    {three, append(admitted(0, 1, 2), degraded(3)...), ""},
		"a refusal of the fourth":          {three, append(admitted(0, 1, 2), refused(3)...), ""},
		"a refusal of the third":           {three, append(admitted(0, 1), refused(3)...), "at most 2 of 3"},
		"a refusal in the next window":     {three, append(admitted(0, 1, 2), refused(1002)...), "at most 2 of 3"},
		"a refusal at the window's end":    {three, append(admitted(0, 1, 2), refused(1001)...), ""},
		"a refusal while one is under way": {three, append(admitted(0, 1, 3), refused(3)...), ""},
		"a refusal before the third":       {three, append(admitted(0, 1, 5), refused(3)...), "at most 2 of 3"},
		"another key's are no reason":      {three, slices.Concat(admitted(0, 1), ofKey("b", admitted(2)), refused(3)), "at most 2 of 3"},
		"an unclear one may be counted":    {three, slices.Concat(admitted(0, 1), degraded(2), refused(3)), ""},
		"an unclear one, counted twice":    {three, slices.Concat(admitted(0), degraded(2), refused(3)), ""},
		"an unclear one, counted thrice":   {three, slices.Concat(degraded(2), refused(3)), "at most 2 of 3"},
		"an unclear one is counted late":   {three, slices.Concat(admitted(500, 501), degraded(2), refused(1102)), ""},
		"an unclear one is long over":      {three, slices.Concat(admitted(500, 501), degraded(2), refused(1104)), "at most 2 of 3"},
		"a degraded refusal":               {three, append(admitted(0), at(false, true, 1)...), ""},
		"the limit anew after a loss":      {restarted, admitted(0, 1, 2, 300, 301, 302), ""},
		"one too many before a loss":       {restarted, admitted(0, 1, 2, 3), "4 admitted"},
		"one too many after a loss":        {restarted, admitted(300, 301, 302, 303), "4 admitted"},
		"two servers within a loss":        {restarted, admitted(200, 210, 220, 230, 240, 250), ""},
		"one too many within a loss":       {restarted, admitted(200, 210, 220, 230, 240, 250, 260), "7 admitted"},
		"a refusal of lost units":          {restarted, append(admitted(0, 1, 2), refused(400)...), ""},
	} {
		t.Run(name, func(t *testing.T) {
			found := tc.promise.broken(tc.trace)
			switch {
			case tc.want == "" && len(found) > 0:
				t.Errorf("found %q", found)
			case tc.want != "" && (len(found) == 0 || !strings.Contains(found[0], tc.want)):
				t.Errorf("found %q, want %q", found, tc.want)
			}
		})
	}
}

func TestTheCheckerBoundsWhatWasCounted(t *testing.T) {
	trace := slices.Concat(admitted(0, 150, 250, 400), refused(1), degraded(2), ofKey("b", admitted(5)))
	if least, most := (promise{}).counted(trace, "a"); least != 4 || most != 6 {
		t.Errorf("%d..%d without a loss", least, most)
	}
	p := promise{losses: []span{{from: 200 * ms, to: 300 * ms}}}
	if least, most := p.counted(trace, "a"); least != 1 || most != 6 {
		t.Errorf("%d..%d with a loss", least, most)
	}
}

func TestRecoveryIsTheFirstAnswerThatIsNotDegraded(t *testing.T) {
	trace := slices.Concat(admitted(0), degraded(10, 20), refused(30), admitted(40))
	every := func(observation) bool { return true }
	if took, ok := recovery(trace, 15*ms, every); !ok || took != 16*ms {
		t.Errorf("recovered %v after %v", ok, took)
	}
	if took, ok := recovery(trace[:3], 5*ms, every); ok {
		t.Errorf("recovered after %v without an answer", took)
	}
	if took, ok := recovery(trace, 0, func(o observation) bool { return o.key == "b" }); ok {
		t.Errorf("recovered after %v by an answer to another key", took)
	}
}
