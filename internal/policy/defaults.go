package policy

import "time"

// Default values; the CRD's schema states the same ones.
const (
	DefaultAlgorithm        = SlidingWindow
	DefaultStoreTimeout     = Duration(500 * time.Millisecond)
	DefaultStatusCode       = 429
	DefaultIPv4PrefixLength = 32
	DefaultIPv6PrefixLength = 64
	DefaultTimeZone         = "UTC"

	// No schema can state these, which depend on other fields.
	DefaultMaxIdlePercent      = 10
	DefaultMaxOvershootPercent = 10
)

// Default fills in every field that was left out. It changes nothing that was
// set, and doing it twice is doing it once.
func (s *Spec) Default() {
	setDefault(&s.Enforcement, Enforce)
	setDefault(&s.StoreTimeout, DefaultStoreTimeout)
	setDefault(&s.Response.StatusCode, DefaultStatusCode)
	setDefault(&s.Response.Headers, HeadersIETF)
	if s.Response.Body != "" {
		setDefault(&s.Response.ContentType, "text/plain; charset=utf-8")
	}
	for i := range s.Limits {
		s.Limits[i].applyDefaults()
	}
}

func (l *Limit) applyDefaults() {
	setDefault(&l.Algorithm, DefaultAlgorithm)
	setDefault(&l.Anchor, AnchorClock)
	setDefault(&l.OnMissingKey, MissingShare)
	setDefault(&l.FailurePolicy, FailureBackstop)
	if l.Calendar != nil {
		setDefault(&l.Calendar.TimeZone, DefaultTimeZone)
	}
	for i := range l.Overrides {
		setDefault(&l.Overrides[i].Action, OverrideLimit)
	}
	l.Distribution.applyDefaults()
	defaultMatches(l.Match)
	defaultMatches(l.Except)
	for _, k := range l.Key {
		if k.ClientIP != nil {
			setDefault(&k.ClientIP.IPv4PrefixLength, DefaultIPv4PrefixLength)
			setDefault(&k.ClientIP.IPv6PrefixLength, DefaultIPv6PrefixLength)
		}
	}
}

func (d *Distribution) applyDefaults() {
	setDefault(&d.Mode, Exact)
	switch {
	case d.Mode == Leased:
		setDefault(&d.MaxIdlePercent, DefaultMaxIdlePercent)
	case d.Mode == Synced && d.Interval == 0:
		setDefault(&d.MaxOvershootPercent, DefaultMaxOvershootPercent)
	}
}

func defaultMatches(matches []Match) {
	for i := range matches {
		if p := matches[i].Path; p != nil {
			setDefault(&p.Type, PathPrefix)
		}
		for j := range matches[i].Headers {
			setDefault(&matches[i].Headers[j].Type, HeaderExact)
		}
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
