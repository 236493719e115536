package limiter

import (
	"fmt"
	"slices"
	"time"
)

// verb is what the script is to do, as it numbers it.
type verb = byte

const (
	verbTake verb = iota + 1
	verbPeek
	verbRefund
	verbCharge
	verbReserve
	verbSettle
	verbRenew
	verbReset
	// verbRun are takes that are alike but for their counters, all of which are
	// enforced.
	verbRun verb = 0
)

var verbs = [...]verb{
	Take: verbTake, Peek: verbPeek, Refund: verbRefund, Charge: verbCharge,
	Reserve: verbReserve, Settle: verbSettle, Renew: verbRenew, Reset: verbReset,
}

// The groups of hits, as the script numbers them.
const (
	enforced = 1
	shadow   = 2
)

// job is a call as the stores carry it out. It shares nothing with the call, so
// that a caller can leave while its job is under way.
type job struct {
	verb  verb
	count int64
	token string
	ttl   time.Duration
	hits  []decision

	// granted is how many requests each group got, of those that count in one
	// step with this job, and before how many of them came before it.
	granted [shadow + 1]int64
	before  int64
}

// decision is one hit of a job.
type decision struct {
	rule  *Rule
	key   string
	group byte
	cost  int64
	price price
	// state of the counter: before the call if the verb decides or charges,
	// after it otherwise.
	state state
}

// prepare fills in the job of a call.
func (j *job) prepare(c *Call) error {
	if err := c.validate(); err != nil {
		return err
	}
	j.verb, j.count, j.token, j.ttl = verbs[c.Op], c.count(), c.Token, c.TokenTTL
	if j.ttl == 0 {
		j.ttl = DefaultTokenTTL
	}
	j.granted, j.before, j.hits = [shadow + 1]int64{}, 0, j.hits[:0]
	for i := range c.Hits {
		h := &c.Hits[i]
		d := decision{rule: h.Rule, key: h.Key, group: enforced, cost: h.Cost, price: h.Rule.price(h.Cost)}
		if h.Shadow && (j.decides() || j.verb == verbSettle) {
			d.group = shadow
		}
		if !j.decides() {
			d.price = j.priceOfThePast(h)
		}
		j.hits = append(j.hits, d)
	}
	for i := range j.hits {
		j.count = min(j.count, j.hits[i].rule.together())
	}
	return nil
}

// priceOfThePast is the price of what has happened already: at most what the
// counter holds, and nothing where it can hold nothing.
func (j *job) priceOfThePast(h *Hit) price {
	cost := h.Cost
	if j.verb == verbCharge {
		cost = product(cost, j.count)
	}
	if p := h.Rule.price(min(cost, h.Rule.Capacity())); p.payable() {
		return p
	}
	return price{}
}

// remembered says whether the job's token is one that the store remembers, and
// not the name of slots alone.
func (j *job) remembered() bool {
	switch j.verb {
	case verbReserve, verbSettle:
		return true
	case verbRefund:
		// Slots end once by themselves.
		return j.token != "" && !j.holdsNothingElse()
	case verbCharge:
		return j.token != ""
	default:
		return false
	}
}

// decides says whether states are those before the call.
func (j *job) decides() bool {
	return j.verb == verbTake || j.verb == verbPeek || j.verb == verbReserve
}

// takes says whether what is granted is taken.
func (j *job) takes() bool { return j.verb == verbTake || j.verb == verbReserve }

// got is how many of its requests a group of a job that decides was granted.
func (j *job) got(group byte) int64 {
	return min(max(0, j.granted[group]-j.before), j.count)
}

// conclude writes the job's outcome into its call.
func (j *job) conclude(c *Call) {
	c.Results = c.Results[:0]
	c.states, c.excess = c.states[:0], 0
	for i := range j.hits {
		c.Results = append(c.Results, j.result(&j.hits[i]))
		if c.wantStates {
			c.states = append(c.states, j.after(&j.hits[i]))
		}
	}
	c.done = j.granted[enforced] > 0
	switch {
	case len(j.hits) == 0:
		c.Granted = c.count()
	case j.decides():
		c.Granted = j.got(enforced)
	case j.verb == verbCharge && j.granted[enforced] > 0:
		c.Granted = c.count()
		for i := range j.hits {
			d := &j.hits[i]
			c.Granted = min(c.Granted, d.rule.room(d.state, d.rule.price(d.cost), c.count()))
		}
		if c.wantStates {
			c.excess = j.hits[0].excess(c.Granted)
		}
	default:
		c.Granted = j.granted[enforced]
	}
}

func (j *job) result(d *decision) Result {
	r := d.standing(j.after(d))
	mine, granted := j.before+j.count, j.granted[d.group]
	if !j.decides() || granted >= mine {
		return r
	}
	taken := j.taken(d)
	switch {
	case d.rule.room(taken, d.price, 1) > 0:
	case !d.price.payable():
		r.Allowed, r.Reason = false, CostExceedsLimit
	default:
		r.Allowed, r.Reason = false, LimitExceeded
		r.RetryAfter = micros(d.rule.retryAt(taken, d.price) - d.state.now)
	}
	return r
}

// after is a counter's state after the job.
func (j *job) after(d *decision) state {
	switch {
	case j.takes():
		return j.taken(d)
	case j.verb == verbCharge && j.granted[enforced] > 0:
		return d.rule.take(d.state, d.rule.within(d.state, d.price), 1)
	default:
		return d.state
	}
}

// excess is what a charge of which so many were granted took beyond them.
func (d *decision) excess(granted int64) int64 {
	fitting := d.rule.price(product(granted, d.cost))
	return max(0, d.rule.minus(d.rule.within(d.state, d.price), fitting).whole)
}

// taken is a counter's state when the job's requests have been decided.
func (j *job) taken(d *decision) state {
	if !d.price.payable() {
		return d.state
	}
	return d.rule.take(d.state, d.price, min(j.before+j.count, j.granted[d.group]))
}

// standing is what a state says of itself.
func (d *decision) standing(s state) Result {
	return Result{
		Allowed:    true,
		Remaining:  d.rule.remaining(s),
		ResetAfter: micros(max(0, d.rule.resetAt(s)-s.now)),
	}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// The bounds of a call beyond those of its rules.
const (
	maxHits     = 255
	maxToken    = 200
	maxTokenTTL = 24 * time.Hour
)

func (c *Call) validate() error {
	switch {
	case int(c.Op) >= len(verbs):
		return fmt.Errorf("%w call: unknown op %d", ErrInvalid, c.Op)
	case len(c.Hits) > maxHits:
		return fmt.Errorf("%w call: %d hits are more than %d", ErrInvalid, len(c.Hits), maxHits)
	case c.Count < 0 || c.Count > maxCount:
		return fmt.Errorf("%w call: a count of %d is not in 0..2^53-1", ErrInvalid, c.Count)
	}
	if err := c.validateToken(); err != nil {
		return err
	}
	for i := range c.Hits {
		h := &c.Hits[i]
		if h.Cost < 0 {
			return fmt.Errorf("%w hit: cost %d is negative", ErrInvalid, h.Cost)
		}
		if h.Rule.holdsSlots() && c.Token == "" && c.Op != Peek && c.Op != Reset {
			return fmt.Errorf("%w call: slots need a token to be held by", ErrInvalid)
		}
	}
	return nil
}

// holdsNothingElse says whether all of a job's hits hold slots.
func (j *job) holdsNothingElse() bool {
	return !slices.ContainsFunc(j.hits, func(d decision) bool { return !d.rule.holdsSlots() })
}

// validateToken is about calls that are to happen once.
func (c *Call) validateToken() error {
	switch {
	case len(c.Token) > maxToken:
		return fmt.Errorf("%w call: a token of %d bytes is longer than %d", ErrInvalid, len(c.Token), maxToken)
	case c.TokenTTL < 0 || c.TokenTTL > maxTokenTTL:
		return fmt.Errorf("%w call: a token cannot count for %v", ErrInvalid, c.TokenTTL)
	case c.Token == "" && (c.Op == Reserve || c.Op == Settle || c.Op == Renew):
		return fmt.Errorf("%w call: it needs a token", ErrInvalid)
	case c.Count > 1 && (c.Op == Reserve || c.Op == Settle || c.Op == Renew):
		return fmt.Errorf("%w call: it is about one request, not %d", ErrInvalid, c.Count)
	}
	return nil
}

func (r *Rule) holdsSlots() bool {
	_, slots := r.algorithm.(concurrency)
	return slots
}

func (c *Call) holdsSlots() bool {
	return slices.ContainsFunc(c.Hits, func(h Hit) bool { return h.Rule.holdsSlots() })
}

func (j *job) holdsSlots() bool {
	return slices.ContainsFunc(j.hits, func(d decision) bool { return d.rule.holdsSlots() })
}
