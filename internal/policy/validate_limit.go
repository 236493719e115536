package policy

import (
	"fmt"
	"math/bits"
	"regexp"
	"time"

	"github.com/tallyman-dev/tallyman/internal/calendar"
)

// timeZoneForm keeps names that are none from the file system. The CRD's schema
// has the same expression.
var timeZoneForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`)

func (l *Limit) validate(errs *Errors, path string) {
	checkText(errs, path+".name", l.Name, 1, MaxLimitName)
	if l.Name != "" && !limitNameForm.MatchString(l.Name) {
		errs.Add(path+".name", "must consist of letters, digits, -, _ and . with a letter or digit at both ends, such as per-client")
	}
	l.validateRate(errs, path)
	checkMatches(errs, path+".match", l.Match)
	checkMatches(errs, path+".except", l.Except)
	checkCount(errs, path+".key", len(l.Key), 0, MaxKeyParts)
	for i := range l.Key {
		l.Key[i].validate(errs, fmt.Sprintf("%s.key[%d]", path, i))
	}
	checkEnum(errs, path+".onMissingKey", l.OnMissingKey, MissingShare, MissingSkip, MissingDeny)
	l.validateOverrides(errs, path+".overrides")
	if l.Cost != nil {
		l.Cost.validate(errs, path+".cost")
	}
	l.Distribution.validate(errs, path+".distribution", l.Algorithm)
	l.validateFailure(errs, path)
}

// validateRate checks what the algorithm counts with.
func (l *Limit) validateRate(errs *Errors, path string) {
	if l.Requests == nil {
		errs.Add(path+".requests", "must be set: how many requests are admitted per window, such as 100 (0 refuses all)")
	} else {
		l.checkRequests(errs, path+".requests", *l.Requests)
	}
	l.validateTime(errs, path)
	checkEnum(errs, path+".algorithm", l.Algorithm, FixedWindow, SlidingWindow, SlidingLog, TokenBucket, Concurrency)
	l.validateAnchor(errs, path+".anchor")
	l.checkBurst(errs, path+".burst", l.Requests, l.Burst)
}

// validateTime checks over which time the algorithm counts.
func (l *Limit) validateTime(errs *Errors, path string) {
	if (l.Window == 0) == (l.Calendar == nil) {
		errs.Add(path, "must have exactly one of window and calendar: write window: 1m, or calendar: {period: Month}")
	}
	if l.Window != 0 {
		checkDuration(errs, path+".window", l.Window, MinDuration, MaxWindow, "1ms and 8784h (366 days)")
		if l.Algorithm == Concurrency {
			checkDuration(errs, path+".window", l.Window, MinSlotLifetime, MaxSlotLifetime,
				"1s and 1h with Concurrency, where it is how long a slot outlives a holder that crashed")
		}
	}
	if l.Calendar != nil {
		l.Calendar.validate(errs, path+".calendar")
		if l.Algorithm != FixedWindow {
			errs.Add(path+".calendar", "only a FixedWindow counts by the calendar: set algorithm to FixedWindow, or write window instead of calendar")
		}
	}
}

func (l *Limit) validateAnchor(errs *Errors, path string) {
	checkEnum(errs, path, l.Anchor, AnchorClock, AnchorFirstRequest)
	if l.Anchor == AnchorFirstRequest && (l.Algorithm != FixedWindow || l.Window == 0) {
		errs.Add(path, "only a FixedWindow with a window begins with the first request: "+
			"set algorithm to FixedWindow and write window, or remove anchor")
	}
}

func (c *Calendar) validate(errs *Errors, path string) {
	checkEnum(errs, path+".period", c.Period, PeriodMinute, PeriodHour, PeriodDay, PeriodWeek, PeriodMonth, PeriodYear)
	checkText(errs, path+".timeZone", c.TimeZone, 0, MaxTimeZone)
	if !isTimeZone(c.TimeZone) {
		errs.Add(path+".timeZone", "must be the IANA name of a time zone, such as Europe/Berlin or UTC")
	}
}

// isTimeZone says whether every pod knows the zone.
func isTimeZone(name string) bool {
	return len(name) <= MaxTimeZone && timeZoneForm.MatchString(name) && calendar.KnowsZone(name)
}

// checkRequests holds a number of requests, the limit's or an override's, to
// what the algorithm can count.
func (l *Limit) checkRequests(errs *Errors, path string, requests int64) {
	checkInteger(errs, path, requests, 0, MaxInteger)
	switch {
	case l.Algorithm == SlidingLog && requests > MaxSlidingLogRequests:
		errs.Add(path, "must be at most %d with SlidingLog, which stores every request: lower it, or choose SlidingWindow",
			MaxSlidingLogRequests)
	case l.Algorithm == Concurrency && requests > MaxConcurrency:
		errs.Add(path, "must be at most %d with Concurrency, which stores every request in progress: lower it", MaxConcurrency)
	}
}

// checkBurst holds a burst, the limit's or an override's, to the requests that
// it goes with.
func (l *Limit) checkBurst(errs *Errors, path string, requests, burst *int64) {
	if burst == nil {
		return
	}
	checkInteger(errs, path, *burst, 1, MaxInteger)
	switch {
	case l.Algorithm != TokenBucket:
		errs.Add(path, "only a TokenBucket has a burst: set algorithm to TokenBucket, or remove burst")
	case requests != nil && fillsTooSlowly(*burst, *requests, l.Window):
		errs.Add(path, "is so large that the bucket would take more than 142 years to fill: lower burst or window, or raise requests")
	}
}

// fillsTooSlowly says whether burst ÷ requests × window is MaxFillTime or more.
// The product needs more than 64 bits.
func fillsTooSlowly(burst, requests int64, window Duration) bool {
	if requests <= 0 || burst <= 0 || window <= 0 {
		return false
	}
	high, low := bits.Mul64(uint64(burst), uint64(time.Duration(window).Microseconds()))
	if high >= uint64(requests) { // the quotient has more than 64 bits
		return true
	}
	microseconds, _ := bits.Div64(high, low, uint64(requests))
	return microseconds >= uint64(MaxFillTime.Microseconds())
}

func (c *Cost) validate(errs *Errors, path string) {
	if (c.Requests == nil) == (c.Expression == "") {
		errs.Add(path, "must have exactly one of requests and expression")
	}
	if c.Requests != nil {
		checkInteger(errs, path+".requests", *c.Requests, 0, MaxInteger)
	}
	checkText(errs, path+".expression", c.Expression, 0, MaxExpressionLength)
}

func (d *Distribution) validate(errs *Errors, path string, algorithm Algorithm) {
	checkEnum(errs, path+".mode", d.Mode, Exact, Leased, Synced, Split)
	switch {
	case algorithm == Concurrency && (d.Mode == Leased || d.Mode == Synced):
		errs.Add(path+".mode", "must be Exact or Split with Concurrency, whose slots are held and not used up")
	case algorithm == SlidingLog && d.Mode == Synced:
		errs.Add(path+".mode", "must not be Synced with SlidingLog, which is exact: write another mode, or choose SlidingWindow")
	}
	d.validateBounds(errs, path)
}

func (d *Distribution) validateBounds(errs *Errors, path string) {
	if d.MaxIdlePercent != 0 {
		checkInteger(errs, path+".maxIdlePercent", int64(d.MaxIdlePercent), 1, MaxIdlePercent)
		if d.Mode != Leased {
			errs.Add(path+".maxIdlePercent", "only Leased leaves requests idle: set mode to Leased, or remove maxIdlePercent")
		}
	}
	if d.Interval != 0 {
		checkDuration(errs, path+".interval", d.Interval, MinInterval, MaxInterval, "10ms and 1m")
		if d.Mode != Synced {
			errs.Add(path+".interval", "only Synced exchanges counts at an interval: set mode to Synced, or remove interval")
		}
	}
	if d.MaxOvershootPercent != 0 {
		checkInteger(errs, path+".maxOvershootPercent", int64(d.MaxOvershootPercent), 1, MaxOvershootPercent)
		if d.Mode != Synced {
			errs.Add(path+".maxOvershootPercent", "only Synced overshoots: set mode to Synced, or remove maxOvershootPercent")
		}
	}
	if d.Interval != 0 && d.MaxOvershootPercent != 0 {
		errs.Add(path, "must have at most one of interval and maxOvershootPercent: the interval follows from the overshoot")
	}
}

func (l *Limit) validateFailure(errs *Errors, path string) {
	checkEnum(errs, path+".failurePolicy", l.FailurePolicy, FailureBackstop, FailureAllow, FailureDeny)
	if l.Backstop == nil {
		return
	}
	checkInteger(errs, path+".backstop.requests", l.Backstop.Requests, 1, MaxInteger)
	if l.FailurePolicy != FailureBackstop {
		errs.Add(path+".backstop", "goes with failurePolicy Backstop only: set failurePolicy to Backstop, or remove backstop")
	}
}
