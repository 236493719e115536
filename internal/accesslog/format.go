package accesslog

import (
	"errors"
	"fmt"
	"strings"
)

// Format names a form of lines.
type Format string

const (
	// Combined is nginx's and Apache's format of that name.
	Combined Format = "combined"
	// Common is Combined without headers.
	Common Format = "common"
	// Envoy is the default format of Envoy, or that of Istio.
	Envoy Format = "envoy"
	// JSON is an object a line.
	JSON Format = "json"
)

// formats are all that there are. One that reads less comes after one that reads
// more of the same line.
var formats = []Format{Combined, Common, Envoy, JSON}

// Fields say what of a request a log can tell; time and query are not asked for.
type Fields struct {
	Method, Path, Host, ClientIP bool
	// Headers have canonical names.
	Headers []string
}

// parser reads a line into a blank entry. What the entry holds after an error is
// of no use. It is for one goroutine at a time.
type parser interface {
	parse(line string, e *Entry) error
}

// Options say how a log is to be read.
type Options struct {
	// Format of the log; empty to tell it from the first lines.
	Format Format
	// Mapping for JSON; nil for the names that are usual.
	Mapping Mapping
	// TrustedHops is how many proxies in front append to X-Forwarded-For, as for the
	// sidecar: the client is that many entries from the right.
	TrustedHops int
}

// form is how a log turns out to be read.
type form struct {
	newParser func() parser
	format    Format
	fields    Fields
	mapping   Mapping
}

// sampleSize is how many lines a format is told from.
const sampleSize = 100

// recognise returns the form for a log that begins with these lines, of which
// there is one.
func recognise(sample []string, o Options) (form, error) {
	if o.Format != "" {
		return prepare(o.Format, sample, o)
	}
	if o.Mapping != nil {
		return prepare(JSON, sample, o)
	}
	best, bestRead, why := form{}, 0, error(nil)
	for _, format := range formats {
		f, err := prepare(format, sample, o)
		if err != nil {
			why = err
			continue
		}
		if n := f.reads(sample); n > bestRead && 2*bestRead < len(sample) {
			best, bestRead = f, n
		}
	}
	if bestRead > 0 {
		return best, nil
	}
	if sample[0][0] == '{' && why != nil {
		return form{}, why
	}
	return form{}, fmt.Errorf("none of the first lines is of a format that is known, which are %s; the first line is %s",
		listFormats(), quote(sample[0]))
}

// reads is how many lines of a sample can be read.
func (f form) reads(sample []string) (n int) {
	var e Entry
	p := f.newParser()
	for _, line := range sample {
		e.reset()
		if p.parse(line, &e) == nil {
			n++
		}
	}
	return n
}

func listFormats() string {
	var all []string
	for _, f := range formats {
		all = append(all, string(f))
	}
	return strings.Join(all, ", ")
}

// prepare makes the form of a format.
func prepare(format Format, sample []string, o Options) (form, error) {
	if o.Mapping != nil && format != JSON {
		return form{}, fmt.Errorf("a mapping is for the format json, and this is %s", format)
	}
	f := form{format: format, fields: Fields{Method: true, Path: true, ClientIP: true}}
	switch format {
	case Combined:
		f.newParser = func() parser { return clf{combined: true, trustedHops: o.TrustedHops} }
		f.fields.Headers = []string{"Referer", "User-Agent"}
	case Common:
		f.newParser = func() parser { return clf{} }
	case Envoy:
		f.newParser = func() parser { return envoy{o.TrustedHops} }
		f.fields.Host, f.fields.Headers = true, []string{"User-Agent", "X-Forwarded-For", "X-Request-Id"}
	case JSON:
		var err error
		if f.mapping, err = mappingFor(sample, o); err != nil {
			return form{}, err
		}
		f.newParser = func() parser { return newJSONLines(f.mapping, o.TrustedHops) }
		f.fields = f.mapping.fields()
	default:
		return form{}, fmt.Errorf("the format %s is not known: write one of %s", quote(string(format)), listFormats())
	}
	return f, nil
}

// mappingFor is the mapping that was given, or the guess by the line that has most of
// the usual fields: servers write other things than requests, too.
func mappingFor(sample []string, o Options) (best Mapping, err error) {
	if o.Mapping != nil {
		return o.Mapping, nil
	}
	err = errNotJSON
	for _, line := range sample {
		m, why := guess(line)
		if len(m) > len(best) {
			best = m
		}
		if errors.Is(err, errNotJSON) {
			err = why
		}
	}
	if best != nil {
		return best, nil
	}
	return nil, err
}
