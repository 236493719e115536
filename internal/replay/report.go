package replay

import (
	"iter"
	"math"
	"time"

	"github.com/tallyman-dev/tallyman/internal/accesslog"
)

const (
	// maxKeys is how many keys of a limit are reported.
	maxKeys = 10
	// maxChangedKeys is how many keys of requests whose fate changes are reported.
	maxChangedKeys = 5
	// maxColumns is into how many parts the time is divided at most.
	maxColumns = 240
)

// Report is what a replay has found. Times are UTC.
type Report struct {
	Log Log `json:"log"`
	// Warnings are about figures that are not what they seem.
	Warnings []string `json:"warnings"`
	// Results are those of one side, or of both to compare.
	Results []Result `json:"results"`
	// Changes are there when two sides are compared.
	Changes *Changes `json:"changes,omitempty"`

	time *series // all of it
}

// Passed is how many lines are no requests.
func (r *Report) Passed() int64 { return r.Log.Lines - r.Log.Requests }

// Log is about what was read.
type Log struct {
	Name    string           `json:"name"`
	Format  accesslog.Format `json:"format"`
	Mapping string           `json:"mapping,omitempty"`
	// Lines are all that are not empty. Those that are not requests are unreadable.
	Lines      int64        `json:"lines"`
	Requests   int64        `json:"requests"`
	Unreadable []Unreadable `json:"unreadable"` // the first few
	From       time.Time    `json:"from"`
	To         time.Time    `json:"to"`
	// StepsBack are the lines with an earlier time than one above them, by so much
	// at most.
	StepsBack          int64   `json:"stepsBack"`
	LargestStepSeconds float64 `json:"largestStepBackSeconds"`
	// NamedClients are requests of clients that the log knows by name only, and
	// UnknownClients those of clients that it does not know.
	NamedClients   int64 `json:"namedClients"`
	UnknownClients int64 `json:"unknownClients"`
}

// Unreadable is a line that was passed over.
type Unreadable struct {
	Line   int64  `json:"line"`
	Reason string `json:"reason"`
}

// Counts are those of a limit, by its own answers, or of all limits together.
type Counts struct {
	Admitted       int64   `json:"admitted"`
	Refused        int64   `json:"refused"`
	RefusedPercent float64 `json:"refusedPercent"` // with two decimals
	// FirstRefusal and Worst are there when anything was refused.
	FirstRefusal *time.Time `json:"firstRefusal,omitempty"`
	Worst        *Worst     `json:"worst,omitempty"`

	series *series
}

// Worst is the time with the most refusals.
type Worst struct {
	Start time.Time `json:"start"`
	// Seconds is 60, or more for a log of more than 91 days.
	Seconds int64 `json:"seconds"`
	Refused int64 `json:"refused"`
}

// Result is what one set of policies would have done.
type Result struct {
	Policies string `json:"policies"`
	Counts
	Limits []LimitResult `json:"limits"`
	Chart  Chart         `json:"chart"`
}

// LimitResult is what one limit would have done by itself.
type LimitResult struct {
	Name string `json:"name"`
	// Shadow limits refuse nothing.
	Shadow bool `json:"shadow"`
	Counts
	// RefusedKeys is how many keys were refused at all. MostRefused are some of them.
	RefusedKeys int         `json:"refusedKeys"`
	MostRefused []KeyResult `json:"mostRefused"`
}

// KeyResult is how often requests with a key were refused.
type KeyResult struct {
	Limit   string `json:"limit,omitempty"` // where it is not clear
	Key     string `json:"key"`
	Refused int64  `json:"refused"`
}

// Chart is what was admitted and refused in equal parts of the time.
type Chart struct {
	Start    time.Time `json:"start"`
	Seconds  int64     `json:"seconds"` // of a part
	Admitted []int64   `json:"admitted"`
	Refused  []int64   `json:"refused"`
}

// Changes are the requests that the two sides treat differently. Their keys are
// those of the limit that refuses them.
type Changes struct {
	NewlyRefused      int64       `json:"newlyRefused"`
	NewlyAdmitted     int64       `json:"newlyAdmitted"`
	NewlyRefusedKeys  []KeyResult `json:"newlyRefusedKeys"`
	NewlyAdmittedKeys []KeyResult `json:"newlyAdmittedKeys"`
}

// Report tells what has been found so far about the log of this name. The replay
// is not to be used further.
func (r *Replay) Report(name string, log *accesslog.Reader, warnings []string) *Report {
	out := &Report{Log: r.log(name, log), Warnings: append([]string{}, warnings...)}
	out.Warnings = append(out.Warnings, r.timeWarnings()...)
	out.time = &r.sides[0].total.series
	for _, s := range r.sides {
		out.Results = append(out.Results, s.result(out.time.frame(maxColumns)))
	}
	if len(r.sides) == 2 {
		out.Changes = &Changes{
			NewlyRefused: r.newlyRefused, NewlyRefusedKeys: topKeys(maxChangedKeys, r.sides[1].refusedAlone()),
			NewlyAdmitted: r.newlyAdmitted, NewlyAdmittedKeys: topKeys(maxChangedKeys, r.sides[0].refusedAlone()),
		}
	}
	return out
}

func (r *Replay) log(name string, log *accesslog.Reader) Log {
	stats := log.Stats()
	out := Log{
		Name: name, Format: log.Format(), Mapping: log.Mapping().String(),
		Lines: stats.Lines, Requests: stats.Requests, Unreadable: []Unreadable{},
		From: timeOf(r.first), To: timeOf(r.latest),
		StepsBack: r.stepsBack, LargestStepSeconds: float64(r.largestStep) / 1e6,
		NamedClients: stats.Named, UnknownClients: stats.Clientless,
	}
	for _, f := range stats.Faults {
		out.Unreadable = append(out.Unreadable, Unreadable{f.Line, f.Err.Error()})
	}
	return out
}

func (s *side) result(f frame) Result {
	out := Result{Policies: s.Name, Counts: s.total.counts(), Limits: []LimitResult{}}
	for i := range s.limits {
		l := &s.limits[i]
		out.Limits = append(out.Limits, LimitResult{
			Name: l.Name, Shadow: l.Shadow, Counts: l.counts(),
			RefusedKeys: len(l.refusedKeys), MostRefused: topKeys(maxKeys, l.refusedKeys.results()),
		})
	}
	out.Chart = s.total.series.chart(f)
	return out
}

func (t *tally) counts() Counts {
	c := Counts{Admitted: t.admitted, Refused: t.refused, series: &t.series}
	if t.refused == 0 {
		return c
	}
	c.RefusedPercent = math.Round(float64(t.refused)/float64(t.admitted+t.refused)*1e4) / 100
	c.FirstRefusal = new(timeOf(t.firstRefused))
	second, width, refused := t.series.worst()
	c.Worst = &Worst{Start: timeOf(second * 1e6), Seconds: width, Refused: refused}
	return c
}

func (s *series) chart(f frame) Chart {
	c := Chart{Start: timeOf(f.start * 1e6), Seconds: f.width, Admitted: make([]int64, f.columns), Refused: make([]int64, f.columns)}
	for i, b := range s.in(f) {
		c.Admitted[i], c.Refused[i] = b.admitted, b.refused
	}
	return c
}

// results are the keys of one limit, which need not name it.
func (k keyCounts) results() iter.Seq[KeyResult] {
	return func(yield func(KeyResult) bool) {
		for _, key := range k {
			if !yield(KeyResult{Key: key.text, Refused: key.n}) {
				return
			}
		}
	}
}

// refusedAlone are the keys of requests that the other side admits.
func (s *side) refusedAlone() iter.Seq[KeyResult] {
	return func(yield func(KeyResult) bool) {
		for i := range s.limits {
			l := &s.limits[i]
			for _, key := range l.refusedKeys {
				if key.alone > 0 && !yield(KeyResult{Limit: l.Name, Key: key.text, Refused: key.alone}) {
					return
				}
			}
		}
	}
}
