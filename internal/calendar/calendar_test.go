package calendar_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/calendar"
)

var periods = []calendar.Period{
	calendar.Minute, calendar.Hour, calendar.Day, calendar.Week, calendar.Month, calendar.Year,
}

// zones are ones whose clocks did or do something of note.
var zones = []string{
	"",                    // UTC
	"Africa/Cairo",        // summer time begins at midnight, which is left out
	"Africa/Casablanca",   // another offset in Ramadan, by table until 2087
	"Africa/Monrovia",     // 44 minutes and 30 seconds behind UTC until 1972
	"America/Asuncion",    // midnights left out, days of 25 hours that end with the hour repeated
	"America/Caracas",     // by half an hour in 2007 and 2016
	"America/New_York",    //
	"America/Nuuk",        // changes on a Saturday evening
	"America/Sao_Paulo",   // midnights left out until 2018
	"America/St_Johns",    // half an hour; until 2011 set back at 00:01 to 23:01 of the day before
	"Antarctica/Casey",    // by three hours now and then
	"Antarctica/Troll",    // by two hours
	"Asia/Beirut",         // midnights left out
	"Asia/Gaza",           // irregular
	"Asia/Kathmandu",      // 05:45
	"Asia/Kolkata",        // 05:30
	"Asia/Pyongyang",      // by half an hour in 2015 and 2018
	"Asia/Tehran",         // midnights left out until 2022, 03:30
	"Australia/Lord_Howe", // summer time is half an hour
	"Europe/Berlin",       //
	"Europe/Dublin",       // its database says that winter is the odd time
	"Pacific/Apia",        // left out 30 December 2011
	"Pacific/Chatham",     // 12:45
	"Pacific/Kiritimati",  // left out 31 December 1994, 14 hours ahead
	"Pacific/Kwajalein",   // left out 21 August 1993
	"Pacific/Marquesas",   // -09:30
	"America/Argentina/San_Luis", "Asia/Amman", "Atlantic/Azores", "Etc/GMT+12", "EST5EDT", "Antarctica/Vostok",
}

func TestKnownWindows(t *testing.T) {
	const hours = time.Hour
	for name, tc := range map[string]struct {
		period calendar.Period
		zone   string
		at     string
		start  string
		length time.Duration
	}{
		"February of a leap year":   {calendar.Month, "", "2028-02-29T23:59:59.999999Z", "2028-02-01T00:00:00Z", 29 * 24 * hours},
		"February of a common year": {calendar.Month, "", "2027-02-10T12:00:00Z", "2027-02-01T00:00:00Z", 28 * 24 * hours},
		"February of 2100":          {calendar.Month, "Europe/Berlin", "2100-02-28T22:00:00Z", "2100-01-31T23:00:00Z", 28 * 24 * hours},
		"a leap year":               {calendar.Year, "", "2028-12-31T23:59:59Z", "2028-01-01T00:00:00Z", 366 * 24 * hours},
		"a common year":             {calendar.Year, "", "2027-01-01T00:00:00Z", "2027-01-01T00:00:00Z", 365 * 24 * hours},
		"a leap year's last day, by a zone's rule": {
			calendar.Year, "Europe/Berlin", "2048-12-31T22:59:59Z", "2047-12-31T23:00:00Z", 366 * 24 * hours},
		"a week begins on Monday":     {calendar.Week, "", "2026-03-01T10:00:00Z", "2026-02-23T00:00:00Z", 7 * 24 * hours},
		"a week over the new year":    {calendar.Week, "Asia/Kolkata", "2027-01-03T18:29:59Z", "2026-12-27T18:30:00Z", 7 * 24 * hours},
		"a week with a day less hour": {calendar.Week, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-22T23:00:00Z", 167 * hours},

		"the day of 23 hours":                  {calendar.Day, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", 23 * hours},
		"the day of 25 hours":                  {calendar.Day, "America/New_York", "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", 25 * hours},
		"the day of 23½ hours":                 {calendar.Day, "Australia/Lord_Howe", "2026-10-04T00:00:00Z", "2026-10-03T13:30:00Z", 23*hours + hours/2},
		"a day without a midnight begins at 1": {calendar.Day, "America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", 23 * hours},
		"the day before such a day":            {calendar.Day, "America/Sao_Paulo", "2018-11-04T02:59:59Z", "2018-11-03T03:00:00Z", 24 * hours},
		"a day that ends with an hour twice":   {calendar.Day, "America/Sao_Paulo", "2018-02-18T02:30:00Z", "2018-02-17T02:00:00Z", 25 * hours},
		"Beirut leaves a midnight out":         {calendar.Day, "Asia/Beirut", "2027-03-28T12:00:00Z", "2027-03-27T22:00:00Z", 23 * hours},
		"Cairo leaves a midnight out":          {calendar.Day, "Africa/Cairo", "2024-04-26T12:00:00Z", "2024-04-25T22:00:00Z", 23 * hours},
		"the day before the one left out":      {calendar.Day, "Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", 24 * hours},
		"the day after the one left out":       {calendar.Day, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", 24 * hours},
		"the month of that day":                {calendar.Month, "Pacific/Apia", "2011-12-15T00:00:00Z", "2011-12-01T10:00:00Z", 30 * 24 * hours},
		"a clock set back over midnight begins no day anew": {
			calendar.Day, "America/St_Johns", "2010-11-07T03:00:00Z", "2010-11-07T02:30:00Z", 25 * hours},

		"the hour that is left out":                 {calendar.Hour, "Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-29T01:00:00Z", hours},
		"the first of an hour that there is twice":  {calendar.Hour, "Europe/Berlin", "2026-10-25T00:59:59Z", "2026-10-25T00:00:00Z", hours},
		"the second of an hour that there is twice": {calendar.Hour, "Europe/Berlin", "2026-10-25T01:00:00Z", "2026-10-25T01:00:00Z", hours},
		"an hour in India":                          {calendar.Hour, "Asia/Kolkata", "2026-01-01T00:00:00Z", "2025-12-31T23:30:00Z", hours},
		"an hour in Nepal":                          {calendar.Hour, "Asia/Kathmandu", "2026-01-01T00:20:00Z", "2026-01-01T00:15:00Z", hours},
		"an hour set back by its half":              {calendar.Hour, "Australia/Lord_Howe", "2026-04-04T15:10:00Z", "2026-04-04T14:00:00Z", hours + hours/2},
		"a minute set by its half": {
			calendar.Minute, "Africa/Monrovia", "1972-01-07T00:44:29Z", "1972-01-07T00:43:30Z", 90 * time.Second},
		"a minute": {calendar.Minute, "Pacific/Chatham", "2199-12-31T23:59:59Z", "2199-12-31T23:59:00Z", time.Minute},

		// From Gubernator's TestGregorianExpiration.
		"gub minute":          {calendar.Minute, "", "2019-11-11T00:00:30Z", "2019-11-11T00:00:00Z", time.Minute},
		"gub hour":            {calendar.Hour, "", "2019-11-11T00:20:01Z", "2019-11-11T00:00:00Z", hours},
		"gub day":             {calendar.Day, "", "2019-11-11T12:10:09Z", "2019-11-11T00:00:00Z", 24 * hours},
		"gub month":           {calendar.Month, "", "2019-11-11T22:02:23Z", "2019-11-01T00:00:00Z", 30 * 24 * hours},
		"gub month of 31":     {calendar.Month, "", "2019-01-15T00:00:00Z", "2019-01-01T00:00:00Z", 31 * 24 * hours},
		"gub year":            {calendar.Year, "", "2019-03-01T00:00:00Z", "2019-01-01T00:00:00Z", 365 * 24 * hours},
		"the first window":    {calendar.Year, "Asia/Tokyo", "1970-01-01T00:00:00Z", "1969-12-31T15:00:00Z", 365 * 24 * hours},
		"the last year meant": {calendar.Year, "", "2200-06-01T00:00:00Z", "2200-01-01T00:00:00Z", 365 * 24 * hours},
	} {
		t.Run(name, func(t *testing.T) {
			start, end := window(t, tc.period, tc.zone).Bounds(micros(t, tc.at))
			if start != micros(t, tc.start) || end-start != tc.length.Microseconds() {
				t.Errorf("%s is in the window of %s and %v, want %s and %v", tc.at,
					instant(start), time.Duration(end-start)*time.Microsecond, tc.start, tc.length)
			}
		})
	}
}

func TestNamesTellWindowsApart(t *testing.T) {
	for want, w := range map[string]*calendar.Window{
		"Day/Europe/Berlin":  window(t, calendar.Day, "Europe/Berlin"),
		"Week/Europe/Berlin": window(t, calendar.Week, "Europe/Berlin"),
		"Day/UTC":            window(t, calendar.Day, ""),
	} {
		if got := w.String(); got != want {
			t.Errorf("is named %s, want %s", got, want)
		}
	}
}

func TestNewRefusesWhatIsNoCalendar(t *testing.T) {
	for name, tc := range map[string]struct {
		period calendar.Period
		zone   string
		want   string
	}{
		"no period":           {"", "UTC", `period "" is unknown: write Minute, `},
		"another period":      {"Fortnight", "UTC", `period "Fortnight" is unknown`},
		"letters in small":    {"day", "UTC", `period "day" is unknown`},
		"no zone":             {calendar.Day, "Europe/Atlantis", `timeZone "Europe/Atlantis" is unknown: write a name`},
		"an offset":           {calendar.Day, "+02:00", `timeZone "+02:00" is unknown`},
		"a part of the world": {calendar.Day, "Europe", `timeZone "Europe" is unknown`},
		"a path":              {calendar.Day, "../UTC", `timeZone "../UTC" is unknown`},
		"the machine's zone":  {calendar.Day, "Local", `timeZone "Local" is unknown`},
		"the machine's file":  {calendar.Day, "localtime", `timeZone "localtime" is unknown`},
		"a very long name":    {calendar.Day, strings.Repeat("x", 1000), `timeZone "` + strings.Repeat("x", 40) + `" is unknown`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := calendar.New(tc.period, tc.zone)
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("got error %v, want %s…", err, tc.want)
			}
		})
	}
}

// The rules of the package's comment, read off the clock.
func TestWindowsBeginWhereTheClockSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		period, zone, at := draw(t)
		w := window(t, period, zone)
		start, end := w.Bounds(at)
		if start > at || at >= end {
			t.Fatalf("%s is not in %s to %s", instant(at), instant(start), instant(end))
		}
		location := load(t, zone)
		for _, boundary := range []int64{start, end} {
			if !begins(period, location, boundary) {
				t.Errorf("no window begins at %s", time.UnixMicro(boundary).In(location))
			}
		}
		for _, between := range candidates(period, location, start, end) {
			if begins(period, location, between) {
				t.Errorf("a window begins at %s too, within %s to %s", instant(between), instant(start), instant(end))
			}
		}
	})
}

// begins tells from the clock alone whether a window begins at an instant.
func begins(period calendar.Period, location *time.Location, at int64) bool {
	now := time.UnixMicro(at).In(location)
	if now.Nanosecond() != 0 {
		return false
	}
	switch period {
	case calendar.Minute:
		return now.Second() == 0
	case calendar.Hour:
		return now.Second() == 0 && now.Minute() == 0
	}
	// The clock has not shown this period or a later one in the two days before:
	// no date was ever repeated by more.
	date := label(period, now)
	for before := time.Microsecond; before <= 48*time.Hour; before += 30 * time.Second {
		if label(period, now.Add(-before)) >= date {
			return false
		}
	}
	return true
}

// label numbers the dates' periods in order.
func label(period calendar.Period, t time.Time) int {
	switch period {
	case calendar.Year:
		return t.Year()
	case calendar.Month:
		return t.Year()*12 + int(t.Month())
	case calendar.Week:
		year, week := t.ISOWeek()
		return year*100 + week
	default:
		return t.Year()*1000 + t.YearDay()
	}
}

// candidates are instants within a window at which another could begin by
// mistake: quarters of a minute or an hour, and of longer windows those quarters
// of an hour at which the clock has got to another date, or is set.
func candidates(period calendar.Period, location *time.Location, start, end int64) (instants []int64) {
	step := 15 * time.Minute
	if period == calendar.Minute {
		step = 15 * time.Second
	}
	previous := time.UnixMicro(start).In(location)
	for at := start + step.Microseconds(); at < end; at += step.Microseconds() {
		now := time.UnixMicro(at).In(location)
		_, before := previous.Zone()
		_, after := now.Zone()
		if before != after || now.Day() != previous.Day() || period == calendar.Minute || period == calendar.Hour {
			instants = append(instants, at)
		}
		previous = now
	}
	return instants
}

func TestWindowsMeet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		period, zone, at := draw(t)
		around := window(t, period, zone).Around(at)
		if around[1] > at || at >= around[2] {
			t.Fatalf("%s is not in the second window of %v", instant(at), around)
		}
		for i := range 4 {
			start, end := around[i], around[i+1]
			within := rapid.Int64Range(start, end-1).Draw(t, "within")
			for _, at := range []int64{start, within, end - 1} {
				if s, e := window(t, period, zone).Bounds(at); s != start || e != end {
					t.Errorf("%s is in %s to %s, want %s to %s", instant(at), instant(s), instant(e), instant(start), instant(end))
				}
			}
		}
	})
}

// What was asked before does not matter, nor who asks.
func TestAnswersDependOnTheInstantOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		period, zone, at := draw(t)
		w := window(t, period, zone)
		for range 8 {
			// Near ones, far ones, and the boundaries themselves.
			at = rapid.OneOf(
				rapid.Just(at), rapid.SampledFrom(seconds(w.Around(at))), rapid.Int64Range(first, last),
				rapid.Int64Range(at-2_000_000, at+2_000_000),
			).Draw(t, "next")
			if got, want := w.Around(at), window(t, period, zone).Around(at); got != want {
				t.Fatalf("answers %v for %d, want %v", got, at, want)
			}
		}
	})
}

func seconds(around [5]int64) []int64 {
	return append(around[:], around[1]-1, around[2]-1, around[3]-1)
}

func TestConcurrentCallersGetTheirOwnAnswers(t *testing.T) {
	w := window(t, calendar.Day, "Europe/Berlin")
	noon := micros(t, "2026-03-28T12:00:00Z")
	const day = 24 * 3600 * 1_000_000
	var callers sync.WaitGroup
	for caller := range int64(4) {
		callers.Go(func() {
			for i := range int64(200) {
				at := noon + (i+caller)%4*day
				if start, end := w.Bounds(at); start > at || at >= end {
					t.Errorf("%s is not in %s to %s", instant(at), instant(start), instant(end))
				}
			}
		})
	}
	callers.Wait()
}

var (
	first = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	last  = time.Date(2200, 12, 31, 23, 59, 59, 0, time.UTC).UnixMicro()
)

// draw favours the days around a change of the clock: they are few.
func draw(t *rapid.T) (calendar.Period, string, int64) {
	period := rapid.SampledFrom(periods).Draw(t, "period")
	zone := rapid.SampledFrom(zones).Draw(t, "zone")
	at := rapid.Int64Range(first, last).Draw(t, "at")
	if rapid.Bool().Draw(t, "near a change") {
		if _, change := time.UnixMicro(at).In(load(t, zone)).ZoneBounds(); change.Year() > 1970 {
			at = change.Add(time.Duration(rapid.Int64Range(-int64(26*time.Hour), int64(26*time.Hour)).Draw(t, "off"))).UnixMicro()
		}
	}
	return period, zone, at
}

type testingT interface {
	Helper()
	Fatal(args ...any)
}

func window(t testingT, period calendar.Period, zone string) *calendar.Window {
	t.Helper()
	w, err := calendar.New(period, zone)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func load(t testingT, zone string) *time.Location {
	t.Helper()
	location, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	return location
}

func micros(t *testing.T, s string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMicro()
}

func instant(at int64) string { return time.UnixMicro(at).UTC().Format(time.RFC3339Nano) }

func BenchmarkBounds(b *testing.B) {
	w, err := calendar.New(calendar.Month, "Europe/Berlin")
	if err != nil {
		b.Fatal(err)
	}
	now := time.Date(2026, 10, 25, 12, 0, 0, 0, time.UTC).UnixMicro()
	b.Run("window=same", func(b *testing.B) {
		for b.Loop() {
			w.Bounds(now)
		}
	})
	b.Run("window=other", func(b *testing.B) {
		at := now
		for b.Loop() {
			at += 31 * 24 * 3600 * 1_000_000
			if at > last {
				at = now
			}
			w.Bounds(at)
		}
	})
}
