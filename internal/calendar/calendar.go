package calendar

import (
	"fmt"
	"sync/atomic"
	"time"
	_ "time/tzdata" // see the package's comment
)

// Period is a unit of the calendar.
type Period string

// The periods that there are.
const (
	Minute Period = "Minute"
	Hour   Period = "Hour"
	Day    Period = "Day"
	Week   Period = "Week"
	Month  Period = "Month"
	Year   Period = "Year"
)

// Window finds the windows of a period in a time zone. It is safe for concurrent
// use, and must not be copied.
type Window struct {
	period   Period
	location *time.Location
	recent   atomic.Pointer[[5]int64] // found last: the next instant is mostly in the same window
}

// New returns the windows of a period in a zone of the IANA time zone database,
// such as Europe/Berlin. No zone is UTC.
func New(period Period, zone string) (*Window, error) {
	switch period {
	case Minute, Hour, Day, Week, Month, Year:
	default:
		return nil, fmt.Errorf("period %.40q is unknown: write Minute, Hour, Day, Week, Month or Year", period)
	}
	location, err := load(zone)
	if err != nil {
		return nil, err
	}
	return &Window{period: period, location: location}, nil
}

// KnowsZone says whether New takes a zone.
func KnowsZone(zone string) bool {
	_, err := load(zone)
	return err == nil
}

func load(zone string) (*time.Location, error) {
	switch zone {
	case "Local", "localtime": // other ones on other machines
	default:
		if location, err := time.LoadLocation(zone); err == nil {
			return location, nil
		}
	}
	return nil, fmt.Errorf("timeZone %.40q is unknown: write a name of the IANA time zone database such as Europe/Berlin, or leave it out for UTC", zone)
}

// String names the period and the zone, such as Day/Europe/Berlin: windows of
// equal names are the same.
func (w *Window) String() string { return string(w.period) + "/" + w.location.String() }

// Bounds returns when the window that an instant is in starts, and when the next
// one does: start <= at < end. Times are microseconds since 1970; the ones from
// 1970 to 2200 are meant.
func (w *Window) Bounds(at int64) (start, end int64) {
	starts := w.find(at)
	return starts[1], starts[2]
}

// Around returns the starts of five windows in a row, of which the second is the
// one that an instant is in: who has them can tell the windows before and after
// from a clock that is up to a window behind or ahead. Times are as in Bounds.
func (w *Window) Around(at int64) [5]int64 {
	return *w.find(at)
}

// find is Around. Nobody writes to what it returns.
func (w *Window) find(at int64) *[5]int64 {
	if recent := w.recent.Load(); recent != nil && recent[1] <= at && at < recent[2] {
		return recent
	}
	second := time.UnixMicro(at).Unix()
	var starts [5]int64
	starts[1], starts[2] = w.bounds(second)
	starts[0], _ = w.bounds(starts[1] - 1)
	_, starts[3] = w.bounds(starts[2])
	_, starts[4] = w.bounds(starts[3])
	for i := range starts {
		starts[i] *= 1_000_000
	}
	w.recent.Store(&starts)
	return &starts
}

// From here on times are seconds since 1970, which every zone's clock is set at.

func (w *Window) bounds(at int64) (start, end int64) {
	switch w.period {
	case Minute:
		return w.lastFull(60, at), w.nextFull(60, at+1)
	case Hour:
		return w.lastFull(3600, at), w.nextFull(3600, at+1)
	default:
		return w.dates(at)
	}
}

// lastFull is the last time at or before an instant at which the clock read a
// full unit.
func (w *Window) lastFull(unit, at int64) int64 {
	for {
		offset, since, _ := w.stretch(at)
		if full := at - modulo(at+offset, unit); full >= since {
			return full
		}
		at = since - 1
	}
}

// nextFull is the first time at or after an instant at which the clock reads a
// full unit.
func (w *Window) nextFull(unit, at int64) int64 {
	for {
		offset, _, until := w.stretch(at)
		if full := at + modulo(-(at+offset), unit); full < until {
			return full
		}
		at = until
	}
}

func modulo(a, b int64) int64 { return ((a % b) + b) % b }

// dates is bounds for the periods that begin on a date.
func (w *Window) dates(at int64) (start, end int64) {
	date := w.firstDate(time.Unix(at, 0).In(w.location).Date())
	start = w.reached(date)
	for {
		date = w.followingDate(date)
		end = w.reached(date)
		if end > at {
			return start, end
		}
		// The clock was set back after it had reached the next window, or the
		// zone left this one out.
		start = end
	}
}

// firstDate is the first date of the period that a date is in, as its midnight
// in UTC.
func (w *Window) firstDate(year int, month time.Month, day int) time.Time {
	switch w.period {
	case Year:
		month, day = time.January, 1
	case Month:
		day = 1
	case Week:
		weekday := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday()
		day -= int(weekday+6) % 7 // days since Monday
	}
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// followingDate is the first date of the period after the one that begins on a
// date.
func (w *Window) followingDate(date time.Time) time.Time {
	switch w.period {
	case Year:
		return date.AddDate(1, 0, 0)
	case Month:
		return date.AddDate(0, 1, 0)
	case Week:
		return date.AddDate(0, 0, 7)
	default:
		return date.AddDate(0, 0, 1)
	}
}

// maxOffset is more than any zone's clock was ever ahead of UTC (15:13, before
// 1900; 14:00 today).
const maxOffset = 16 * 3600

// reached is the first time at which the clock reads a date's midnight or later.
func (w *Window) reached(date time.Time) int64 {
	midnight := date.Unix()
	at := midnight - maxOffset
	for {
		offset, _, until := w.stretch(at)
		if first := max(at, midnight-offset); first < until {
			return first
		}
		at = until
	}
}

const day = 24 * 3600

// stretch returns how far the zone's clock is ahead of UTC at an instant, and a
// time around it, since <= at < until, in which that does not change. It is not
// always the longest.
func (w *Window) stretch(at int64) (offset, since, until int64) {
	t := time.Unix(at, 0).In(w.location)
	_, ahead := t.Zone()
	since, until = at-day, at+day
	start, end := t.ZoneBounds()
	if !start.IsZero() {
		since = max(since, start.Unix())
	}
	// On the last day of a leap year, where a zone's future is given by a rule,
	// ZoneBounds says that the stretch ended when the day began.
	if end.After(t) {
		until = min(until, end.Unix())
	}
	return int64(ahead), since, until
}
