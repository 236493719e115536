package match

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func addr(s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(s)
}

func TestTheClientIsCountedFromTheRight(t *testing.T) {
	const peer = "10.0.0.1:4711"
	for _, c := range []struct {
		name string
		xff  []string
		hops int
		want string
	}{
		{"no proxy: the peer, whatever the header says", []string{"1.2.3.4"}, 0, "10.0.0.1"},
		{"a negative number is none", []string{"1.2.3.4"}, -1, "10.0.0.1"},
		{"one proxy", []string{"1.2.3.4"}, 1, "1.2.3.4"},
		{"two proxies", []string{"1.2.3.4, 172.16.0.1"}, 2, "1.2.3.4"},
		{"two proxies, spoofed", []string{"6.6.6.6, 1.2.3.4, 172.16.0.1"}, 2, "1.2.3.4"},
		{"several lines are one list", []string{"6.6.6.6", "1.2.3.4", "172.16.0.1"}, 2, "1.2.3.4"},
		{"lines and commas", []string{"6.6.6.6, 1.2.3.4", "172.16.0.1"}, 2, "1.2.3.4"},
		{"no header", nil, 1, "10.0.0.1"},
		{"fewer entries than hops: the peer", []string{"1.2.3.4"}, 2, "10.0.0.1"},
		{"empty entries do not count", []string{"1.2.3.4, ,", " ", ""}, 1, "1.2.3.4"},
		{"junk counts, and is nobody", []string{"1.2.3.4, unknown"}, 1, "10.0.0.1"},
		{"junk to the left does not matter", []string{"<script>, 1.2.3.4"}, 1, "1.2.3.4"},
		{"a port", []string{"1.2.3.4:5678"}, 1, "1.2.3.4"},
		{"IPv6", []string{"2001:db8::1"}, 1, "2001:db8::1"},
		{"IPv6 in brackets", []string{"[2001:db8::1]"}, 1, "2001:db8::1"},
		{"IPv6 with a port", []string{"[2001:db8::1]:443"}, 1, "2001:db8::1"},
		{"IPv4-mapped", []string{"::ffff:1.2.3.4"}, 1, "1.2.3.4"},
		{"blanks", []string{"\t 1.2.3.4 \t"}, 1, "1.2.3.4"},
	} {
		if got := ClientIP(peer, c.xff, c.hops); got != addr(c.want) {
			t.Errorf("%s: %q with %d hops is %v, want %s", c.name, c.xff, c.hops, got, c.want)
		}
	}
}

func TestCaseH1_WhatAClientSendsInForwardedForNeverChangesItsKey(t *testing.T) {
	if got := ClientIP("10.0.0.1:1", []string{"6.6.6.6, 1.2.3.4"}, 1); got != addr("1.2.3.4") {
		t.Errorf("got %v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		hops := rapid.IntRange(1, 4).Draw(t, "hops")
		var appended []string // by the proxies; the first of them saw the client
		for i := range hops {
			appended = append(appended, fmt.Sprintf("1.2.3.%d", i))
		}
		sent := rapid.SliceOf(rapid.String()).Draw(t, "sent")
		own := strings.Join(appended, ", ")
		for _, lines := range [][]string{slices.Concat(sent, []string{own}), slices.Concat(sent, appended), {strings.Join(slices.Concat(sent, appended), ",")}} {
			if got := ClientIP("10.0.0.1:1", lines, hops); got != addr("1.2.3.0") {
				t.Fatalf("%q with %d hops is %v", lines, hops, got)
			}
		}
	})
}

func TestCaseH3_EveryFormOfARemoteAddressIsCanonicalOrUnknown(t *testing.T) {
	for remote, want := range map[string]string{
		"1.2.3.4:5":                           "1.2.3.4",
		"1.2.3.4":                             "1.2.3.4",
		"[fe80::1%eth0]:1":                    "fe80::1",
		"fe80::1%eth0":                        "fe80::1",
		"[2001:DB8:0:0::1]:443":               "2001:db8::1",
		"[::ffff:1.2.3.4]:80":                 "1.2.3.4",
		"::1":                                 "::1",
		"":                                    "",
		"@":                                   "",
		"/run/app.sock":                       "",
		"pipe":                                "",
		"localhost:80":                        "",
		"1.2.3.4:":                            "",
		"1.2.3.4:http":                        "",
		"1.2.3":                               "",
		"01.2.3.4":                            "",
		"[1.2.3.4":                            "1.2.3.4",
		"[]":                                  "",
		"[::1]x":                              "",
		strings.Repeat("1", 1e6):              "",
		"fe80::1%" + strings.Repeat("z", 500): "",
	} {
		if got := ClientIP(remote, nil, 0); got != addr(want) {
			t.Errorf("%.40q is %v, want %q", remote, got, want)
		}
	}
}

// The vector ulu-01 in terms of hops: no trust is 0 hops. Its two cases of
// trust are answered otherwise. It takes the leftmost X-Forwarded-For (9.9.9.9),
// which the client writes; one trusted hop is 6.6.6.6 here. It takes X-Real-IP;
// that header is not read here, since a client can send it to a proxy that does
// not overwrite it.
func TestVectorUlu01(t *testing.T) {
	const remote = "8.8.8.8:8888"
	list := []string{"9.9.9.9, 7.7.7.7, 6.6.6.6"}
	for _, c := range []struct {
		xff  []string
		hops int
		want string
	}{
		{nil, 0, "8.8.8.8"},
		{list, 0, "8.8.8.8"},
		{list, 1, "6.6.6.6"},
		{list, 3, "9.9.9.9"},
	} {
		if got := ClientIP(remote, c.xff, c.hops); got != addr(c.want) {
			t.Errorf("%q with %d hops is %v, want %s", c.xff, c.hops, got, c.want)
		}
	}
	for _, c := range []struct {
		remote     string
		ipv4, ipv6 int32
		want       string
	}{
		{remote, 24, 64, "7:8.8.8.0"},
		{"[2001:db8:cafe:1234:beef::fafa]:8888", 32, 48, "15:2001:db8:cafe::"},
	} {
		l := limitWithKey(t, clientIPKey(c.ipv4, c.ipv6))
		if got := l.Evaluate(&Request{ClientIP: ClientIP(c.remote, nil, 0)}).Key; got != c.want {
			t.Errorf("%s has the key %q, want %q", c.remote, got, c.want)
		}
	}
}

func FuzzClientIP(f *testing.F) {
	f.Add("1.2.3.4:5", "6.6.6.6, 1.2.3.4", "", 1)
	f.Add("[fe80::1%eth0]:1", ",,,", "[::1]:9", 2)
	f.Add("@", "[", "]", 9)
	f.Fuzz(func(t *testing.T, remote, first, second string, hops int) {
		got := ClientIP(remote, []string{first, second}, hops)
		if got.Zone() != "" || got.Is4In6() {
			t.Errorf("%v is not canonical", got)
		}
	})
}
