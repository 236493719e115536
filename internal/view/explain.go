package view

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/operator"
)

// Explained is what a pod enforces and, of a request, what would become of it.
type Explained struct {
	// Namespace and Pod that were asked; empty of a sidecar outside of a cluster.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Request and Decision are absent when no request was asked about.
	Request  *operator.Request `json:"request,omitempty"`
	Decision *Decision         `json:"decision,omitempty"`
	// Limits are all that are in force, by policy and in their order.
	Limits []ExplainedLimit `json:"limits"`
	// Notes are what else there is to know, for people.
	Notes []string `json:"notes,omitempty"`
}

// Decision is what would become of a request now.
type Decision struct {
	Allowed      bool   `json:"allowed"`
	Reason       string `json:"reason,omitempty"`
	Policy       string `json:"policy,omitempty"`
	Limit        string `json:"limit,omitempty"`
	RetryAfterMs int64  `json:"retryAfterMs,omitempty"`
	Degraded     bool   `json:"degraded,omitempty"`
	Exempt       string `json:"exempt,omitempty"`
}

// ExplainedLimit is a limit that is in force in a pod.
type ExplainedLimit struct {
	Policy        string `json:"policy"`
	Generation    int64  `json:"generation"`
	Limit         string `json:"limit"`
	Shadow        bool   `json:"shadow,omitempty"`
	Algorithm     string `json:"algorithm"`
	Distribution  string `json:"distribution"`
	FailurePolicy string `json:"failurePolicy"`
	Requests      int64  `json:"requests"`
	Capacity      int64  `json:"capacity"`
	WindowMs      int64  `json:"windowMs"`
	// Calendar is the period of a limit that counts by one, such as "Month, UTC".
	Calendar string `json:"calendar,omitempty"`
	// SelectedBy is what of its policy selects the pod, CountedBy what it tells
	// requests apart by, and Matches which it looks at. They are the API server's,
	// and absent where it was not asked.
	SelectedBy string `json:"selectedBy,omitempty"`
	CountedBy  string `json:"countedBy,omitempty"`
	Matches    string `json:"matches,omitempty"`
	// Answer is absent when no request was asked about.
	Answer *Answer `json:"answer,omitempty"`
}

// Answer is a limit's part in a decision. Its fields are those of
// operator.LimitExplanation.
type Answer struct {
	Applies      bool     `json:"applies"`
	Why          string   `json:"why"`
	Key          []string `json:"key,omitempty"`
	RedisKey     string   `json:"redisKey,omitempty"`
	Cost         int64    `json:"cost,omitempty"`
	Allowed      bool     `json:"allowed"`
	Reason       string   `json:"reason,omitempty"`
	Remaining    *int64   `json:"remaining,omitempty"`
	ResetAfterMs *int64   `json:"resetAfterMs,omitempty"`
	RetryAfterMs int64    `json:"retryAfterMs,omitempty"`
}

// Explain unites what a sidecar says with what the API server has. The request is nil
// when none was asked about, and sources are nil where the API server was not asked.
func Explain(e operator.Explanation, request *operator.Request, sources []Source) Explained {
	out := Explained{Request: request, Limits: make([]ExplainedLimit, len(e.Limits))}
	if request != nil {
		out.Decision = &Decision{
			Allowed: e.Allowed, Reason: e.Reason, Policy: e.Policy, Limit: e.Limit,
			RetryAfterMs: e.RetryAfterMs, Degraded: e.Degraded, Exempt: e.Exempt,
		}
	}
	byName := map[string]*Source{}
	for i := range sources {
		byName[sources[i].Policy.Name] = &sources[i]
	}
	generations := map[string]int64{}
	for i := range e.Limits {
		l := &e.Limits[i]
		out.Limits[i] = explainLimit(l, byName[l.Policy])
		if request != nil {
			out.Limits[i].Answer = answerOf(l)
		}
		generations[l.Policy] = l.Generation
	}
	if sources != nil {
		out.Notes = notInForce(sources, generations)
	}
	return out
}

func explainLimit(l *operator.LimitExplanation, source *Source) ExplainedLimit {
	out := ExplainedLimit{
		Policy: l.Policy, Generation: l.Generation, Limit: l.Limit, Shadow: l.Shadow,
		Algorithm: l.Algorithm, Distribution: l.Distribution, FailurePolicy: l.FailurePolicy,
		Requests: l.Requests, Capacity: l.Capacity, WindowMs: l.WindowMs,
	}
	if source == nil {
		return out
	}
	out.SelectedBy = source.origin()
	// Of another generation the API server has another limit.
	if limit := source.limit(l.Limit); limit != nil && source.Policy.Generation == l.Generation {
		out.CountedBy, out.Matches = countedBy(limit.Key), matches(limit)
		out.Calendar = calendarOf(limit)
	}
	return out
}

func calendarOf(l *v1alpha1.Limit) string {
	if l.Calendar == nil {
		return ""
	}
	return fmt.Sprintf("%s, %s", l.Calendar.Period, l.Calendar.TimeZone)
}

func answerOf(l *operator.LimitExplanation) *Answer {
	return &Answer{
		Applies: l.Applies, Why: l.Why, Key: l.Key, RedisKey: l.RedisKey, Cost: l.Cost, Allowed: l.Allowed, Reason: l.Reason,
		Remaining: l.Remaining, ResetAfterMs: l.ResetAfterMs, RetryAfterMs: l.RetryAfterMs,
	}
}

// WriteText shows an explanation: first the answer, and then what it is from.
func (e *Explained) WriteText(w io.Writer, s Style) error {
	if _, err := fmt.Fprintln(w, e.summary(s)); err != nil {
		return err
	}
	if len(e.Limits) > 0 {
		t := e.rules()
		if e.Request != nil {
			t = e.answers()
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		if err := t.dropUnknown().write(w, s); err != nil {
			return err
		}
	}
	return e.writeRest(w, s)
}

// writeRest shows what has no place in a table: names in Redis are long.
func (e *Explained) writeRest(w io.Writer, s Style) error {
	var b strings.Builder
	t := table{head: []string{"LIMIT", "COUNTER IN REDIS"}}
	for i := range e.Limits {
		if l := &e.Limits[i]; l.Answer != nil && l.Answer.RedisKey != "" {
			t.add(text(l.Policy+"/"+l.Limit), text(l.Answer.RedisKey))
		}
	}
	if len(t.rows) > 0 {
		b.WriteByte('\n')
		_ = t.write(&b, s) // it never fails
	}
	for i, note := range e.Notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s %s\n", s.paint(yellow, "note:"), message(note))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (e *Explained) summary(s Style) string {
	if e.Request != nil {
		return e.verdict(s)
	}
	policies := map[string]bool{}
	for i := range e.Limits {
		policies[e.Limits[i].Policy] = true
	}
	who := "The sidecar"
	if e.Pod != "" {
		who = "Pod " + e.Pod
	}
	if len(e.Limits) == 0 {
		return who + " enforces no limit."
	}
	return fmt.Sprintf("%s enforces %s of %s.", who, count(len(e.Limits), "limit"), count(len(policies), "policy"))
}

// verdict is the answer about a request, in a sentence.
func (e *Explained) verdict(s Style) string {
	d := e.Decision
	request := fmt.Sprintf("%s %s", cmp.Or(clean(e.Request.Method), "GET"), cmp.Or(clean(e.Request.Path), "/"))
	if e.Request.ClientIP != "" {
		request += " from " + clean(e.Request.ClientIP)
	}
	switch {
	case d.Exempt != "":
		return fmt.Sprintf("%s %s: no limit looks at it, since it is exempt (%s).", request, s.paint(green, "would be admitted"), whole(d.Exempt))
	case !d.Allowed:
		return fmt.Sprintf("%s %s by %s of policy %s: %s.",
			request, s.paint(red, "would be refused"), whole(d.Limit), whole(d.Policy), e.refusal())
	case d.Degraded:
		return fmt.Sprintf("%s %s, without the shared count: %s.", request, s.paint(yellow, "would be admitted"), reasonText(d.Reason))
	default:
		return fmt.Sprintf("%s %s: %s.", request, s.paint(green, "would be admitted"), e.nearest())
	}
}

// refusal says why the limit refuses.
func (e *Explained) refusal() string {
	d := e.Decision
	l := e.find(d.Policy, d.Limit)
	if l == nil {
		return reasonText(d.Reason)
	}
	switch d.Reason {
	case "LimitExceeded":
		if l.Requests == 0 {
			return "the limit admits no request at all"
		}
		text := reasonText(d.Reason)
		if l.Answer.Remaining != nil {
			text = fmt.Sprintf("%d of %d left", *l.Answer.Remaining, l.Capacity)
		}
		if l.Answer.Cost > 1 {
			text += fmt.Sprintf(" and it takes %d", l.Answer.Cost)
		}
		if d.RetryAfterMs > 0 {
			text += ", again in " + wait(d.RetryAfterMs)
		}
		return text
	case "CostExceedsLimit":
		return fmt.Sprintf("it takes %d, and the limit never has more than %d", l.Answer.Cost, l.Capacity)
	case "KeyMissing":
		if l.CountedBy != "" {
			return fmt.Sprintf("it lacks what the limit counts by (%s), and onMissingKey is Deny", l.CountedBy)
		}
	case "KeyDenied":
		return fmt.Sprintf("its key %s is denied (%s)", keyText(l.Answer.Key), whole(l.Answer.Why))
	}
	return reasonText(d.Reason)
}

// reasonText is a decision's reason for people.
func reasonText(reason string) string {
	switch reason {
	case "LimitExceeded":
		return "its units are used up"
	case "KeyMissing":
		return "it lacks what the limit counts by, and onMissingKey is Deny"
	case "KeyDenied":
		return "an override denies its key"
	case "StoreUnavailable":
		return "the store does not answer, and failurePolicy decides"
	case "BackstopFull":
		return "the store does not answer, and the pod can count no more keys by itself"
	case "DefinitionsUnknown":
		return "the sidecar has not read the policies yet"
	default:
		return whole(reason)
	}
}

// nearest is the limit of which the request could be refused next.
func (e *Explained) nearest() string {
	var least *ExplainedLimit
	applies := false
	for i := range e.Limits {
		l := &e.Limits[i]
		if !l.Answer.Applies {
			continue
		}
		applies = true
		if l.Answer.Remaining != nil && !l.Shadow && (least == nil || share(l) < share(least)) {
			least = l
		}
	}
	switch {
	case !applies:
		return "no limit applies to it"
	case least == nil:
		return "all limits that apply to it admit it"
	default:
		return fmt.Sprintf("%s has least left, %d of %d", whole(least.Limit), *least.Answer.Remaining, least.Capacity)
	}
}

func share(l *ExplainedLimit) float64 {
	return float64(*l.Answer.Remaining) / float64(max(1, l.Capacity))
}

func (e *Explained) find(policy, limit string) *ExplainedLimit {
	for i := range e.Limits {
		if l := &e.Limits[i]; l.Policy == policy && l.Limit == limit && l.Answer != nil {
			return l
		}
	}
	return nil
}

// rules are the limits in force, with where they are from.
func (e *Explained) rules() *table {
	t := &table{head: []string{"POLICY", "GEN", "LIMIT", "RULE", "REQUESTS", "COUNTED BY", "COUNTING", "IF THE STORE FAILS", "SELECTED BY"}}
	for i := range e.Limits {
		l := &e.Limits[i]
		t.add(texts(l.Policy, fmt.Sprint(l.Generation), l.Limit, l.rule(), orDash(l.Matches), orDash(l.CountedBy),
			l.Algorithm+", "+l.Distribution, l.FailurePolicy, orDash(l.SelectedBy))...)
	}
	return t
}

// rule is the limit itself, such as "100 per 1m, burst 150".
func (l *ExplainedLimit) rule() string {
	rule := fmt.Sprintf("%d per %s", l.Requests, cmp.Or(l.Calendar, length(l.WindowMs)))
	if l.Algorithm == "Concurrency" {
		rule = fmt.Sprintf("%d at a time", l.Requests)
	} else if l.Capacity != l.Requests {
		rule += fmt.Sprintf(", burst %d", l.Capacity)
	}
	if l.Shadow {
		rule += " (shadow)"
	}
	return rule
}

// answers are the limits' parts in a decision.
func (e *Explained) answers() *table {
	t := &table{head: []string{"POLICY", "LIMIT", "RULE", "APPLIES", "WHY", "KEY", "COST", "LEFT", "FULL IN", "ANSWER"}}
	for i := range e.Limits {
		l := &e.Limits[i]
		a := l.Answer
		row := texts(l.Policy, l.Limit, l.rule(), "no", a.Why, "-", "-", "-", "-", "-")
		if a.Applies {
			row[3].text = "yes"
			row[5].text = keyText(a.Key)
			row[6].text = fmt.Sprint(a.Cost)
			if a.Remaining != nil {
				row[7].text = fmt.Sprint(*a.Remaining)
			}
			if a.ResetAfterMs != nil {
				row[8].text = wait(*a.ResetAfterMs)
			}
			row[9] = l.answer()
		}
		t.add(row...)
	}
	return t
}

func (l *ExplainedLimit) answer() cell {
	switch a := l.Answer; {
	case a.Allowed && a.Reason != "":
		return cell{"admits: " + a.Reason, yellow}
	case a.Allowed:
		return cell{"admits", green}
	case l.Shadow:
		return cell{"would refuse: " + a.Reason, yellow}
	case a.RetryAfterMs > 0:
		return cell{fmt.Sprintf("refuses: %s, again in %s", a.Reason, wait(a.RetryAfterMs)), red}
	default:
		return cell{"refuses: " + a.Reason, red}
	}
}

// keyText is a key of which nothing may be empty.
func keyText(key []string) string {
	if len(key) == 0 {
		return "-"
	}
	return cmp.Or(cleanAll(key), `""`)
}

func orDash(s string) string { return cmp.Or(s, "-") }

// count is "1 limit", "2 limits".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
