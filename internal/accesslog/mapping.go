package accesslog

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// attribute of a request that a JSON field can hold.
type attribute string

const (
	attrTime     attribute = "time"
	attrMethod   attribute = "method"
	attrPath     attribute = "path"
	attrRequest  attribute = "request" // the first line: method, path and protocol
	attrQuery    attribute = "query"
	attrHost     attribute = "host"
	attrClientIP attribute = "clientIP"
	attrHeader   attribute = "header"
)

var attributes = []attribute{attrTime, attrMethod, attrPath, attrRequest, attrQuery, attrHost, attrClientIP}

// Mapping says which field of a JSON object holds what of a request.
type Mapping []mapped

type mapped struct {
	attribute attribute
	header    string // canonical name, of attrHeader
	path      string // names of fields with dots between them
}

// maxMapping bounds a mapping, in fields.
const maxMapping = 64

// ParseMapping reads "time=ts,path=request.uri,header.X-Api-Key=api_key".
func ParseMapping(text string) (Mapping, error) {
	var m Mapping
	for part := range strings.SplitSeq(text, ",") {
		name, path, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || path == "" {
			return nil, fmt.Errorf("%s has no field: write such as time=ts", quote(part))
		}
		one := mapped{attribute: attribute(name), path: path}
		if header, ok := strings.CutPrefix(name, "header."); ok && header != "" {
			one.attribute, one.header = attrHeader, http.CanonicalHeaderKey(header)
		} else if !slices.Contains(attributes, one.attribute) {
			return nil, fmt.Errorf("%s is not known: write time, method, path, request, query, host, clientIP or header.NAME", quote(name))
		}
		if slices.ContainsFunc(m, func(o mapped) bool { return o.attribute == one.attribute && o.header == one.header }) {
			return nil, fmt.Errorf("%s is there twice: write it once", quote(name))
		}
		m = append(m, one)
	}
	if !m.has(attrTime) {
		return nil, errors.New("there is no time: write such as time=ts")
	}
	if len(m) > maxMapping {
		return nil, fmt.Errorf("there are %d fields, and %d are allowed", len(m), maxMapping)
	}
	return m, nil
}

// String is what ParseMapping reads.
func (m Mapping) String() string {
	parts := make([]string, len(m))
	for i, one := range m {
		name := string(one.attribute)
		if one.attribute == attrHeader {
			name += "." + one.header
		}
		parts[i] = name + "=" + one.path
	}
	return strings.Join(parts, ",")
}

func (m Mapping) has(a attribute) bool {
	return slices.ContainsFunc(m, func(one mapped) bool { return one.attribute == a })
}

func (m Mapping) fields() Fields {
	line := m.has(attrRequest)
	f := Fields{Method: line || m.has(attrMethod), Path: line || m.has(attrPath), Host: m.has(attrHost), ClientIP: m.has(attrClientIP)}
	for _, one := range m {
		if one.attribute == attrHeader {
			f.Headers = append(f.Headers, one.header)
		}
	}
	return f
}

// usual are the fields that servers are known to use, those first which mean the
// same wherever they are found.
var usual = map[attribute][]string{
	attrTime:   {"time", "timestamp", "@timestamp", "ts", "start_time", "StartUTC", "time_iso8601", "time_local", "msec", "date"},
	attrMethod: {"method", "request_method", "RequestMethod", "request.method", "http.request.method", "httpRequest.requestMethod", "verb"},
	attrPath: {
		"request_uri", "uri", "path", "RequestPath", "request.uri", "request.path", "url.original",
		"httpRequest.requestUrl", "url", "url.path",
	},
	attrRequest: {"request", "request_line"},
	attrHost:    {"host", "http_host", "authority", "RequestHost", "request.host", "url.domain"},
	attrClientIP: {
		"clientIP", "client_ip", "remote_addr", "remote_ip", "ClientHost", "request.client_ip", "request.remote_ip",
		"client.ip", "httpRequest.remoteIp", "ip", "x_forwarded_for",
	},
}

var usualHeaders = map[string][]string{
	"User-Agent": {
		"user_agent", "http_user_agent", "request_User-Agent", "request.headers.User-Agent",
		"user_agent.original", "httpRequest.userAgent",
	},
	"Referer": {"referer", "http_referer", "request_Referer", "request.headers.Referer"},
}

// guess maps the usual fields that a line has.
func guess(line string) (Mapping, error) {
	object := gjson.Parse(line)
	if !gjson.Valid(line) || !object.IsObject() {
		return nil, errNotJSON
	}
	var m Mapping
	for _, a := range attributes {
		if a == attrRequest && m.has(attrPath) {
			continue
		}
		if path, ok := present(line, usual[a]); ok {
			m = append(m, mapped{attribute: a, path: path})
		}
	}
	for _, header := range []string{"Referer", "User-Agent"} {
		if path, ok := present(line, usualHeaders[header]); ok {
			m = append(m, mapped{attribute: attrHeader, header: header, path: path})
		}
	}
	if at := object.Get("at"); !m.has(attrTime) && at.Type == gjson.String {
		return nil, errors.New("the log looks like a trace, which is read by --trace")
	}
	if !m.has(attrTime) || !m.has(attrPath) && !m.has(attrRequest) {
		return nil, fmt.Errorf("which fields are the time and the path? Write --map, such as --map time=ts,method=request.method,path=uri,clientIP=remote_addr; "+
			"the first line has %s", names(object))
	}
	return m, nil
}

// present is the first path that leads to something.
func present(line string, paths []string) (path string, ok bool) {
	for _, path := range paths {
		f := newJSONLines(Mapping{{path: path}}, 0)
		if f.look(line) && f.missing == 0 && f.found[0][0] != '{' {
			return path, true
		}
	}
	return "", false
}

// names lists the fields of an object, a few of them.
func names(object gjson.Result) string {
	const most = 30
	var all []string
	object.ForEach(func(key, value gjson.Result) bool {
		name := key.Str
		if value.IsObject() {
			name += ".…"
		}
		all = append(all, strings.Trim(quote(name), `"`))
		return len(all) < most
	})
	return strings.Join(all, ", ")
}
