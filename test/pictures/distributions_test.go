package pictures

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/policyfile"
)

// distributions are the pictures of docs/distributions.
var distributions = []struct{ page, title, about string }{
	{"exact", "Exact: 600 requests a minute over three pods", "Every request is decided in Redis."},
	{"leased", "Leased: 600 requests a minute over three pods", "Pods take units ahead of need."},
	{"synced", "Synced: 600 requests a minute over three pods", "Pods exchange their counts."},
	{"split", "Split: 600 requests a minute over three pods", "Each pod has a third of the limit."},
}

// rates are how many requests a second each pod gets, in one minute after the other.
var rates = [][]int{{12, 4, 1}, {12, 4, 1}, {6, 6, 6}}

const pods = 3

func TestPicturesOfDistributions(t *testing.T) {
	for _, d := range distributions {
		t.Run(d.page, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := runPods(t, ruleOf(t, d.page))
				compare(t, d.page, &chart{
					Title: d.title, Subtitle: fmt.Sprintf("%s %d requests, %d refused, %d calls of Redis.", d.about, seen.requests, seen.refusals, seen.calls),
					Description: "Above, what each pod admitted and what all refused in each two seconds; below, admitted since the minute began, with limit, 600.",
					Bars: []series{
						{"pod a", "first", seen.admitted[0]}, {"pod b", "second", seen.admitted[1]}, {"pod c", "third", seen.admitted[2]},
						{"refused", "refused", seen.refused},
					},
					Line:   series{Name: "admitted by all pods since the minute began", values: seen.thisMinute()},
					Bounds: []bound{{"limit", 600}}, columns: len(seen.refused), width: columnWidth,
				})
			})
		})
	}
}

func ruleOf(t *testing.T, page string) *limiter.Rule {
	t.Helper()
	var rule *limiter.Rule
	err := policyfile.Read("../../docs/distributions/"+page+".yaml", "shop", func(d policy.Definition) (err error) {
		rule, err = limiter.PrepareLimit(&d.Spec.Limits[0])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

// outcome is what became of the requests, in columns.
type outcome struct {
	admitted                  [pods][]float64
	refused                   []float64
	requests, refusals, calls int
}

// thisMinute is how many all pods admitted from the beginning of a column's minute to
// the end of the column.
func (o *outcome) thisMinute() []float64 {
	amounts := make([]float64, len(o.refused))
	for i := range amounts {
		if i%int(time.Minute/columnWidth) > 0 {
			amounts[i] = amounts[i-1]
		}
		for pod := range pods {
			amounts[i] += o.admitted[pod][i]
		}
	}
	return amounts
}

// runPods sends the traffic through pods that count together.
func runPods(t *testing.T, rule *limiter.Rule) *outcome {
	store := &distant{Store: limiter.NewMemory(time.Now)}
	engines := make([]*limiter.Engine, pods)
	for i := range engines {
		engines[i] = limiter.NewEngine(store, limiter.EngineOptions{
			Pods: func(*limiter.Rule) (live, place int) { return pods, i },
		})
		t.Cleanup(func() { engines[i].Close(context.Background()) })
	}
	columns := len(rates) * int(time.Minute/columnWidth)
	o := &outcome{refused: make([]float64, columns)}
	for pod := range pods {
		o.admitted[pod] = make([]float64, columns)
	}
	begin := time.Now().Truncate(time.Minute).Add(time.Minute)
	for _, a := range arrivals() {
		time.Sleep(time.Until(begin.Add(a.at)))
		call := limiter.Call{Hits: []limiter.Hit{{Rule: rule, Key: "pictures:c:{all}", Cost: 1}}}
		if err := engines[a.pod].Do(t.Context(), &call); err != nil {
			t.Fatal(err)
		}
		o.requests++
		if column := a.at / columnWidth; call.Granted > 0 {
			o.admitted[a.pod][column]++
		} else {
			o.refused[column]++
			o.refusals++
		}
	}
	o.calls = int(store.calls.Load())
	return o
}

// arrival is a request that comes to a pod.
type arrival struct {
	at  time.Duration
	pod int
}

// arrivals are the traffic. No two come at the same time, and by a little drift none when
// a pod does something each second, so that what comes out is always the same.
func arrivals() []arrival {
	var all []arrival
	for minute, perSecond := range rates {
		for pod, n := range perSecond {
			for i := range 60 * n {
				at := time.Duration(minute)*time.Minute + time.Duration(i)*time.Second/time.Duration(n) + time.Duration(pod*17_137+3_011)*time.Microsecond
				all = append(all, arrival{at + at/100_000, pod})
			}
		}
	}
	slices.SortFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	return all
}

// distant is a store that is a millisecond away.
type distant struct {
	limiter.Store
	calls atomic.Int64
}

// Do implements limiter.Store.
func (d *distant) Do(ctx context.Context, c *limiter.Call) error {
	d.calls.Add(1)
	time.Sleep(time.Millisecond)
	return d.Store.Do(ctx, c)
}
