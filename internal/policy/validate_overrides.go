package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

func (l *Limit) validateOverrides(errs *Errors, path string) {
	checkCount(errs, path, len(l.Overrides), 0, MaxOverrides)
	if len(l.Overrides) > 0 && len(l.Key) != 1 {
		errs.Add(path, "name values of a key of one part: write exactly one entry in key, or remove overrides")
	}
	seen := make(map[string]string) // key value → path
	for i := range l.Overrides {
		o, path := &l.Overrides[i], fmt.Sprintf("%s[%d]", path, i)
		checkCount(errs, path+".keys", len(o.Keys), 1, MaxOverrideKeys)
		for j, value := range o.Keys {
			l.validateOverrideKey(errs, fmt.Sprintf("%s.keys[%d]", path, j), value, seen)
		}
		l.validateOverride(errs, path, o)
	}
}

func (l *Limit) validateOverride(errs *Errors, path string, o *Override) {
	checkEnum(errs, path+".action", o.Action, OverrideLimit, OverrideExempt, OverrideDeny)
	switch {
	case (o.Action == OverrideLimit) != (o.Requests != nil):
		errs.Add(path+".requests", "must be set with action Limit, and with no other action")
	case o.Requests != nil:
		l.checkRequests(errs, path+".requests", *o.Requests)
	case o.Burst != nil:
		errs.Add(path+".burst", "goes with action Limit only: remove burst")
	}
	l.checkBurst(errs, path+".burst", o.Requests, o.Burst)
}

// validateOverrideKey checks that a request can have the value, and that no
// other override has it.
func (l *Limit) validateOverrideKey(errs *Errors, path, value string, seen map[string]string) {
	checkText(errs, path, value, 1, MaxKeyValue)
	if len(l.Key) != 1 {
		return
	}
	value, fault := l.Key[0].canonical(value)
	if fault != "" {
		errs.Add(path, "%s", fault)
		return
	}
	if first, taken := seen[value]; taken {
		_, short, _ := strings.Cut(first, ".")
		errs.Add(path, "is the same value as %s: remove one", short)
		return
	}
	seen[value] = path
}

// CanonicalKey is a value of the key as requests have it, so that two that override
// the same counter are equal. The limit has a key of one part.
func (l *Limit) CanonicalKey(value string) (string, error) {
	canonical, fault := l.Key[0].canonical(value)
	if fault != "" {
		return "", errors.New(fault)
	}
	return canonical, nil
}

// canonical is the value as requests have it, or what is wrong with it.
func (k *KeyPart) canonical(value string) (canonical, fault string) {
	switch {
	case k.ClientIP != nil:
		return k.ClientIP.network(value)
	case k.Method != nil && !methodForm.MatchString(value):
		return "", "must be a method in capitals, such as POST"
	case k.Path != nil && !strings.HasPrefix(value, "/"):
		return "", "must start with /, such as /v1/orders"
	default:
		return value, ""
	}
}

// network is the network of an address, which is all that is known of a client
// in a counter's key.
func (k *ClientIPKey) network(address string) (network, fault string) {
	addr, err := netip.ParseAddr(address)
	if err != nil || addr.Zone() != "" {
		return "", "must be an IP address, without prefix length, port and zone, such as 192.0.2.7 or 2001:db8::1"
	}
	addr = addr.Unmap()
	bits := k.IPv6PrefixLength
	if addr.Is4() {
		bits = k.IPv4PrefixLength
	}
	prefix, err := addr.Prefix(int(bits))
	if err != nil { // the prefix length is at fault, and told so already
		return address, ""
	}
	return prefix.String(), ""
}
