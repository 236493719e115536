package limiter

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// debts are what a backstop admitted and the store does not know of yet. They are
// charged to the store in the background, each once however often it is tried,
// until it answers or their window has ended, when they count no more. It is safe
// for concurrent use.
type debts struct {
	store  Store
	events Events
	now    func() time.Time
	most   int // keys
	tokens *tokenSource

	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	owed map[string]*debt
	// reporting says that run is under way, which it is while anything is owed.
	reporting, closed bool
}

// debt is what is owed for a key.
type debt struct {
	rule *Rule
	key  string
	// due is not charged yet; under is what was tried to charge, with a token.
	due, under owing
	token      string
	// tries says how often under was tried: after the first, what the store
	// counted of it is not known.
	tries int
}

// owing is units that count until a time, in µs since 1970.
type owing struct{ units, until int64 }

// drop empties what does not count any more, and says how much it was.
func (o *owing) drop(now int64) (units int64) {
	if now >= o.until {
		units, *o = o.units, owing{}
	}
	return units
}

const (
	// reportPause is what is waited between two rounds of reports, half to all of
	// it: a store that is back is told within that time.
	reportPause = time.Second
	// maxReports bounds the charges under way, which the store combines.
	maxReports = 64
	// maxFailedReports ends a round. It is so many that a dead node of a cluster
	// keeps no debt from the other nodes for long: the order is another each round.
	maxFailedReports = 256
)

func newDebts(store Store, events Events, now func() time.Time, most int) *debts {
	d := &debts{store: store, events: events, now: now, most: most, tokens: newTokenSource(), owed: map[string]*debt{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// add notes units that were admitted, and count until a time.
func (d *debts) add(h *Hit, units, now, until int64) {
	d.mu.Lock()
	lost := units
	if e := d.debtOf(h); e != nil {
		lost = e.due.drop(now)
		e.rule, e.due = h.Rule, owing{e.due.units + units, until}
		if !d.reporting {
			d.reporting = true
			d.running.Go(d.run)
		}
	}
	d.mu.Unlock()
	d.lose(lost)
}

// debtOf returns a hit's debt, or nil if there may be no more.
func (d *debts) debtOf(h *Hit) *debt {
	if d.closed {
		return nil
	}
	e := d.owed[h.Key]
	if e == nil && len(d.owed) < d.most {
		e = &debt{key: h.Key}
		d.owed[h.Key] = e
	}
	return e
}

// lessen takes back units that were added, as far as they are not being charged.
func (d *debts) lessen(key string, units int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.owed[key]; e != nil {
		e.due.units = max(0, e.due.units-units)
	}
}

// lose tells of units that will not be charged.
func (d *debts) lose(units int64) {
	if units > 0 && d.events.Unreported != nil {
		d.events.Unreported(units)
	}
}

// run reports until nothing is owed.
func (d *debts) run() {
	for !d.settled() {
		pause := time.NewTimer(reportPause/2 + mathrand.N(reportPause/2))
		select {
		case <-pause.C:
			d.report(d.ctx)
		case <-d.ctx.Done():
			pause.Stop()
			return
		}
	}
}

func (d *debts) settled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reporting = len(d.owed) > 0
	return !d.reporting
}

// report tries to charge each debt once.
func (d *debts) report(ctx context.Context) {
	owed := d.all()
	var next, failures atomic.Int64
	var reports sync.WaitGroup
	for range min(maxReports, len(owed)) {
		reports.Go(func() {
			for ctx.Err() == nil && failures.Load() < maxFailedReports {
				i := next.Add(1) - 1
				if i >= int64(len(owed)) {
					return
				}
				if !d.charge(ctx, owed[i]) {
					failures.Add(1)
				}
			}
		})
	}
	reports.Wait()
}

// all is the debts that there are, in an order that is another each time.
func (d *debts) all() []*debt {
	d.mu.Lock()
	defer d.mu.Unlock()
	owed := make([]*debt, 0, len(d.owed))
	for _, e := range d.owed {
		owed = append(owed, e)
	}
	return owed
}

// charge tries to charge a debt: what was tried before, and then the rest. It is
// not called for the same debt twice at a time.
func (d *debts) charge(ctx context.Context, e *debt) (ok bool) {
	for {
		c := d.begin(e)
		if c == nil {
			return true
		}
		err := d.store.Do(ctx, c)
		d.end(e, c, err)
		if err != nil {
			return false
		}
	}
}

// begin returns the call that charges a debt; nil when there is nothing to
// charge.
func (d *debts) begin(e *debt) *Call {
	d.mu.Lock()
	now := d.now().UnixMicro()
	lost := e.due.drop(now) + e.under.drop(now)
	if e.under.units == 0 {
		e.under, e.due.units = e.due, 0
		e.token, e.tries = d.tokens.next(), 0
	}
	e.tries++
	d.forget(e)
	c := e.call(now)
	d.mu.Unlock()
	d.lose(lost)
	return c
}

// call asks for as many requests of one unit as are owed: the store tells how
// many of them it had room for.
func (e *debt) call(now int64) *Call {
	if e.under.units == 0 {
		return nil
	}
	return &Call{
		Op: Charge, Hits: []Hit{{Rule: e.rule, Key: e.key, Cost: 1}}, Count: e.under.units,
		Token: e.token, TokenTTL: min(maxTokenTTL, max(DefaultTokenTTL, micros(e.under.until-now))),
	}
}

// end puts down how a charge went.
func (d *debts) end(e *debt, c *Call, err error) {
	d.mu.Lock()
	var lost int64
	switch {
	case err == nil:
		if e.tries == 1 {
			lost = e.under.units - c.Granted
		}
		e.under = owing{}
	case errors.Is(err, errCircuitOpen), errors.Is(err, ErrOverloaded): // not sent
		e.tries--
	}
	d.forget(e)
	d.mu.Unlock()
	d.lose(lost)
}

// forget lets go of a debt that is paid.
func (d *debts) forget(e *debt) {
	if e.due.units == 0 && e.under.units == 0 {
		delete(d.owed, e.key)
	}
}

// close reports what is owed within the context, and ends. What is left then, and
// what is added later, is told to be unreported.
func (d *debts) close(ctx context.Context) {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.cancel()
	d.running.Wait()
	d.report(ctx)
	d.mu.Lock()
	var lost int64
	for _, e := range d.owed {
		lost += e.due.units + e.under.units
	}
	clear(d.owed)
	d.mu.Unlock()
	d.lose(lost)
}
