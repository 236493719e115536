package ban_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/ban"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// spec is one with a limit by a header of this rest.
func spec(t *testing.T, rest string) *policy.Spec {
	t.Helper()
	if !strings.Contains(rest, `"key"`) {
		rest += `, "key": [{"header": {"name": "X-Api-Key"}}]`
	}
	s, err := policy.DecodeSpec(fmt.Appendf(nil, `{"selector": {}, "limits": [{"name": "l", "requests": 1, "window": "1m"%s}]}`, rest))
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

// denied are n overrides of k keys each.
func denied(n, k int) string {
	all := make([]string, n)
	for i := range all {
		keys := make([]string, k)
		for j := range keys {
			keys[j] = fmt.Sprintf(`"%d-%d"`, i, j)
		}
		all[i] = fmt.Sprintf(`{"keys": [%s], "action": "Deny"}`, strings.Join(keys, ","))
	}
	return `, "overrides": [` + strings.Join(all, ",") + `]`
}

const (
	some      = `, "overrides": [{"keys": ["acme"], "requests": 5}, {"keys": ["bob", "carol"], "action": "Deny"}, {"keys": ["dave"], "action": "Deny"}]`
	byAddress = `, "key": [{"clientIP": {}}], "overrides": [{"keys": ["2001:db8::1"], "action": "Deny"}]`
)

func TestAKeyIsBannedOnce(t *testing.T) {
	for name, c := range map[string]struct{ rest, value, want string }{
		"the first override":        {"", "alice", `[{"op":"add","path":"/spec/limits/0/overrides","value":[{"keys":["alice"],"action":"Deny"}]}]`},
		"the first ban":             {`, "overrides": [{"keys": ["acme"], "requests": 5}]`, "alice", `[{"op":"add","path":"/spec/limits/0/overrides/-","value":{"keys":["alice"],"action":"Deny"}}]`},
		"beside others":             {some, "alice", `[{"op":"add","path":"/spec/limits/0/overrides/1/keys/-","value":"alice"}]`},
		"banned already":            {some, "dave", `null`},
		"another one of a network":  {byAddress, "2001:db8::2", `null`},
		"another network":           {byAddress, "2001:db8:1::", `[{"op":"add","path":"/spec/limits/0/overrides/0/keys/-","value":"2001:db8:1::"}]`},
		"where the first are full":  {denied(2, 256), "alice", `[{"op":"add","path":"/spec/limits/0/overrides/-","value":{"keys":["alice"],"action":"Deny"}}]`},
		"room in the last override": {strings.Replace(denied(64, 256), `,"63-255"`, "", 1), "alice", `[{"op":"add","path":"/spec/limits/0/overrides/63/keys/-","value":"alice"}]`},
	} {
		operations, err := ban.Add(spec(t, c.rest), 0, c.value)
		if got, _ := json.Marshal(operations); err != nil || string(got) != c.want {
			t.Errorf("%s: %v, got %s, want %s", name, err, got, c.want)
		}
	}
}

func TestABanIsLifted(t *testing.T) {
	for name, c := range map[string]struct{ rest, value, want string }{
		"one of several keys": {some, "carol", `[{"op":"remove","path":"/spec/limits/0/overrides/1/keys/1"}]`},
		"the last key":        {some, "dave", `[{"op":"remove","path":"/spec/limits/0/overrides/2"}]`},
		"the last override":   {byAddress, "2001:db8::ffff", `[{"op":"remove","path":"/spec/limits/0/overrides"}]`},
		"not banned":          {some, "alice", `null`},
		"limited":             {some, "acme", `null`},
	} {
		operations, err := ban.Remove(spec(t, c.rest), 0, c.value)
		if got, _ := json.Marshal(operations); err != nil || string(got) != c.want {
			t.Errorf("%s: %v, got %s, want %s", name, err, got, c.want)
		}
	}
}

func TestWhatCannotBeBannedIsExplained(t *testing.T) {
	for name, c := range map[string]struct{ rest, value, want string }{
		"no key":            {`, "key": []`, "alice", "no key: nobody can be banned"},
		"several parts":     {`, "key": [{"clientIP": {}}, {"path": {}}]`, "alice", "counts by 2 attributes together"},
		"other numbers":     {some, "acme", "in overrides[0] of limit l already, with action Limit"},
		"no address":        {byAddress, "10.0.0.0/8", "the key must be an IP address"},
		"empty":             {"", "", "1 to 1024 characters"},
		"too long":          {"", strings.Repeat("ä", 1025), "1 to 1024 characters"},
		"as many as can be": {denied(64, 256), "alice", "64 overrides, which is as many as it can have"},
	} {
		operations, err := ban.Add(spec(t, c.rest), 0, c.value)
		if err == nil || !strings.Contains(err.Error(), c.want) || operations != nil {
			t.Errorf("%s: got %v, %v, want %q", name, operations, err, c.want)
		}
	}
}
