package convert

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// The bounds of an input. A call has up to 64 entries in a descriptor.
const (
	maxDescriptors = 10_000
	maxDepth       = 64
)

// Input is a file's name, for findings, and its text.
type Input struct {
	Name string
	Data []byte
}

// Finding is something about a line of an input.
type Finding struct {
	File string
	Line int
	// Text says what is wrong or lost, and what to do.
	Text string
}

// Error is "file:line: what", as editors understand it.
func (f Finding) Error() string { return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Text) }

// place is where something stands in an input.
type place struct {
	file string
	line int
}

func (p place) found(format string, args ...any) Finding {
	return Finding{File: p.file, Line: p.line, Text: fmt.Sprintf(format, args...)}
}

// domain has the descriptors of all inputs for it.
type domain struct {
	name        string
	descriptors []*descriptor
}

// descriptor is a node of a domain's tree.
type descriptor struct {
	place
	order int // among all
	key   string
	// value is empty where any will do, and ends with * where any that begins so will.
	value string
	limit *rateLimit // nil for none
	// shadow limits refuse nothing.
	shadow bool
	// shares says that all values of a pattern are counted together.
	shares   bool
	children []*descriptor
}

// rateLimit is a descriptor's own.
type rateLimit struct {
	place
	name      string
	unlimited bool
	requests  uint32
	window    policy.Duration
}

// prefix is what a descriptor's values begin with, if it has a pattern of them.
func (d *descriptor) prefix() (prefix string, isPattern bool) {
	return strings.CutSuffix(d.value, "*")
}

// isAny says whether any value will do.
func (d *descriptor) isAny() bool { return d.value == "" }

// limits says whether the descriptor has a limit that can refuse.
func (d *descriptor) limits() bool { return d.limit != nil && !d.limit.unlimited }

const day = 24 * policy.Duration(time.Hour)

// units are the windows of the rate limit service, which begin at whole multiples
// since 1970.
var units = map[string]policy.Duration{
	"SECOND": policy.Duration(time.Second),
	"MINUTE": policy.Duration(time.Minute),
	"HOUR":   policy.Duration(time.Hour),
	"DAY":    day,
	"WEEK":   7 * day,
	"MONTH":  30 * day,
	"YEAR":   365 * day,
}

// parser reads inputs.
type parser struct {
	domains     []*domain
	descriptors int          // so far
	within      []*yaml.Node // lists that are being read
	file        string
	offset      int // what lines of the text are short of those of the file
	errs        []error
	lost        []Finding
}

func (p *parser) at(n *yaml.Node) place { return place{p.file, p.offset + n.Line} }

func (p *parser) fail(n *yaml.Node, format string, args ...any) {
	p.errs = append(p.errs, p.at(n).found(format, args...))
}

func (p *parser) lose(n *yaml.Node, format string, args ...any) {
	p.lost = append(p.lost, p.at(n).found(format, args...))
}

// read takes over what is in an input: configurations, and ConfigMaps that hold some.
func (p *parser) read(in Input) {
	p.file, p.offset = in.Name, 0
	p.stream(in.Data, func(root *yaml.Node) { p.document(root) })
}

// stream calls f for each document that holds something.
func (p *parser) stream(data []byte, f func(root *yaml.Node)) {
	for decoder := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			p.errs = append(p.errs, p.syntaxError(err))
			return
		}
		if root := resolve(document.Content[0]); !isNull(root) {
			f(root)
		}
	}
}

var yamlError = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func (p *parser) syntaxError(err error) Finding {
	found := yamlError.FindStringSubmatch(err.Error())
	at := place{p.file, p.offset + 1}
	if found == nil {
		return at.found("not valid YAML: %v", err)
	}
	if line, err := strconv.Atoi(found[1]); err == nil {
		at.line = p.offset + line
	}
	return at.found("not valid YAML: %s", strings.TrimPrefix(err.Error(), found[0]))
}

// document reads a configuration, or an object of Kubernetes. Those that are no
// ConfigMaps, such as the Deployment beside one, are passed over.
func (p *parser) document(root *yaml.Node) {
	kind := scalarOf(root, "kind")
	switch {
	case kind == "" || scalarOf(root, "apiVersion") == "":
		p.configuration(root)
	case kind == "ConfigMap":
		for _, f := range fieldsOf(child(root, "data")) {
			p.embedded(f.value)
		}
	case kind == "List":
		p.list(child(root, "items"))
	}
}

// list reads several objects, as kubectl get prints them.
func (p *parser) list(items *yaml.Node) {
	if items == nil || items.Kind != yaml.SequenceNode {
		return
	}
	for _, item := range items.Content {
		p.document(resolve(item))
	}
}

// embedded reads a configuration that is a text in a file. What speaks of no
// descriptors is something else.
func (p *parser) embedded(text *yaml.Node) {
	if !strings.Contains(text.Value, "descriptors") {
		return
	}
	outer := p.offset
	p.offset += text.Line
	if text.Style != yaml.LiteralStyle && text.Style != yaml.FoldedStyle {
		p.offset-- // it begins on the line itself
	}
	p.stream([]byte(text.Value), func(root *yaml.Node) { p.configuration(root) })
	p.offset = outer
}

func (p *parser) configuration(root *yaml.Node) {
	var d domain
	var descriptors *yaml.Node
	p.object(root, "the configuration", map[string]func(*yaml.Node){
		"domain":      func(n *yaml.Node) { d.name = p.text(n, "domain") },
		"descriptors": func(n *yaml.Node) { descriptors = n },
	})
	if d.name == "" {
		p.fail(root, "domain is not set: write the domain of Envoy's rate limit filter")
		return
	}
	into := p.domain(d.name)
	into.descriptors = p.level(descriptors, into.descriptors, 1)
}

// domain is that of a name. Several files can be about one domain, as with
// MERGE_DOMAIN_CONFIG of the rate limit service.
func (p *parser) domain(name string) *domain {
	for _, d := range p.domains {
		if d.name == name {
			return d
		}
	}
	d := &domain{name: name}
	p.domains = append(p.domains, d)
	return d
}

// level adds the descriptors of a list to those of the same level.
func (p *parser) level(list *yaml.Node, level []*descriptor, depth int) []*descriptor {
	if list == nil {
		return level
	}
	if list.Kind != yaml.SequenceNode {
		p.fail(list, "descriptors must be a list")
		return level
	}
	switch {
	case depth > maxDepth:
		p.fail(list, "descriptors are nested deeper than the %d levels that a call can have", maxDepth)
		return level
	case slices.Contains(p.within, list):
		p.fail(list, "descriptors are within themselves")
		return level
	}
	p.within = append(p.within, list)
	defer func() { p.within = p.within[:len(p.within)-1] }()
	seen := map[[2]string]place{}
	for _, d := range level {
		seen[[2]string{d.key, d.value}] = d.place
	}
	for _, item := range list.Content {
		d := p.descriptor(resolve(item), depth)
		if d == nil {
			continue
		}
		if first, taken := seen[[2]string{d.key, d.value}]; taken {
			p.fail(item, "key %q with value %q is there already, in %s:%d: remove one", d.key, d.value, first.file, first.line)
			continue
		}
		seen[[2]string{d.key, d.value}] = d.place
		level = append(level, d)
	}
	return level
}

// descriptor reads one with all that is below it; nil if there is no making sense of it.
func (p *parser) descriptor(n *yaml.Node, depth int) *descriptor {
	if p.descriptors++; p.descriptors > maxDescriptors {
		if p.descriptors == maxDescriptors+1 {
			p.fail(n, "there are more than %d descriptors", maxDescriptors)
		}
		return nil
	}
	d := &descriptor{place: p.at(n), order: p.descriptors}
	var children *yaml.Node
	const onlyMetrics = "%s says how the service's metrics are named, and is lost: Tallyman's metrics have the limit's name and no values"
	ok := p.object(n, "a descriptor", map[string]func(*yaml.Node){
		"key":             func(n *yaml.Node) { d.key = p.text(n, "key") },
		"value":           func(n *yaml.Node) { d.value = p.text(n, "value") },
		"rate_limit":      func(n *yaml.Node) { d.limit = p.rateLimit(n) },
		"descriptors":     func(n *yaml.Node) { children = n },
		"shadow_mode":     func(n *yaml.Node) { d.shadow = p.flag(n, "shadow_mode") || d.shadow },
		"share_threshold": func(n *yaml.Node) { d.shares = p.flag(n, "share_threshold") },
		"quota_mode": func(n *yaml.Node) {
			if p.flag(n, "quota_mode") {
				d.shadow = true
				p.lose(n, "quota_mode lets requests pass and tells Envoy so in metadata: the limit is in a policy with enforcement: Shadow, and the metadata are lost")
			}
		},
		"detailed_metric": func(n *yaml.Node) {
			if p.flag(n, "detailed_metric") {
				p.lose(n, onlyMetrics, "detailed_metric")
			}
		},
		"value_to_metric": func(n *yaml.Node) {
			if p.flag(n, "value_to_metric") {
				p.lose(n, onlyMetrics, "value_to_metric")
			}
		},
	})
	_, isPattern := d.prefix()
	switch {
	case !ok:
		return nil
	case d.key == "":
		p.fail(n, "key is not set: write the key of an entry that Envoy sends")
		return nil
	case d.shares && !isPattern:
		p.fail(n, "share_threshold is for values that end with *, and this is %q: remove it", d.value)
	}
	d.children = p.level(children, nil, depth+1)
	return d
}

func (p *parser) rateLimit(n *yaml.Node) *rateLimit {
	l := &rateLimit{place: p.at(n)}
	unit, hasRequests := "", false
	ok := p.object(n, "rate_limit", map[string]func(*yaml.Node){
		"unit":              func(n *yaml.Node) { unit = p.text(n, "unit") },
		"requests_per_unit": func(n *yaml.Node) { l.requests, hasRequests = p.number(n, "requests_per_unit"), true },
		"unlimited":         func(n *yaml.Node) { l.unlimited = p.flag(n, "unlimited") },
		"name":              func(n *yaml.Node) { l.name = p.text(n, "name") },
		"replaces": func(n *yaml.Node) {
			p.lose(n, "replaces takes another limit out of a call that meets this one too, and is lost, since policies decide each descriptor by itself: "+
				"have Envoy send only one of the two descriptors, or a third one for both")
		},
	})
	if !ok {
		return nil
	}
	var known bool
	l.window, known = units[strings.ToUpper(unit)]
	switch {
	case l.unlimited && known:
		p.fail(n, "unit does not go with unlimited: remove one of them")
	case l.unlimited:
	case !known:
		p.fail(n, "unit is %q: write second, minute, hour, day, week, month or year", unit)
	case !hasRequests:
		p.lose(n, "requests_per_unit is not set, which refuses everything, here as there: say how many")
	}
	return l
}

func (p *parser) text(n *yaml.Node, name string) string {
	if n.Kind != yaml.ScalarNode {
		p.fail(n, "%s must be a text", name)
		return ""
	}
	return n.Value
}

func (p *parser) flag(n *yaml.Node, name string) (set bool) {
	if n.Decode(&set) != nil {
		p.fail(n, "%s must be true or false", name)
	}
	return set
}

func (p *parser) number(n *yaml.Node, name string) (number uint32) {
	if n.Decode(&number) != nil {
		p.fail(n, "%s must be an integer from 0 to %d", name, uint32(math.MaxUint32))
	}
	return number
}
