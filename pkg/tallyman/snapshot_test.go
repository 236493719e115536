package tallyman

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
)

// published is what the store says after these definitions were written to it.
func published(t *testing.T, definitions ...policy.Definition) store.Snapshot {
	t.Helper()
	s := store.Snapshot{Revision: store.Revision{Epoch: 1, Number: 1}}
	for _, d := range definitions {
		data, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if d, err = policy.DecodeDefinition(data); err != nil {
			t.Fatal(err)
		}
		s.Definitions = append(s.Definitions, d)
	}
	return s
}

const broken = `{"selector":{},"limits":[{"name":"all","requests":1,"window":"1h","match":[{"expression":"request.("}]}]}`

func TestSnapshotTakesOverAnEdit(t *testing.T) {
	s := (&snapshot{}).next(published(t, definition(t, "orders", 1, perHour("1"))), nil, "p")
	s = s.next(published(t, definition(t, "orders", 2, perHour("2"))), nil, "p")
	if got := s.find("orders").rules[0].limit.Limit().Requests; got != 2 {
		t.Errorf("the limit is %d, want 2", got)
	}
}

func TestSnapshotKeepsWhatDidNotChange(t *testing.T) {
	orders := definition(t, "orders", 1, perHour("1"))
	before := (&snapshot{}).next(published(t, orders), nil, "p")
	after := before.next(published(t, orders, definition(t, "users", 1, perHour("1"))), nil, "p")
	if before.find("orders") != after.find("orders") {
		t.Error("a policy that did not change was compiled again")
	}
}

func TestSnapshotDropsADeletedPolicy(t *testing.T) {
	s := (&snapshot{}).next(published(t, definition(t, "orders", 1, perHour("1"))), nil, "p")
	s = s.next(published(t), nil, "p")
	if len(s.policies) != 0 {
		t.Errorf("still enforces %v", s.generations())
	}
}

func TestSnapshotKeepsTheLastGoodVersion(t *testing.T) {
	garbage := published(t)
	garbage.Rejected = []store.Rejection{{Name: "orders", Err: errors.New("garbage")}}
	for name, from := range map[string]store.Snapshot{
		"of a definition that cannot be read":     garbage,
		"of a definition that cannot be compiled": published(t, definition(t, "orders", 2, broken)),
	} {
		t.Run(name, func(t *testing.T) {
			s := (&snapshot{}).next(published(t, definition(t, "orders", 1, perHour("1"))), nil, "p")
			s = s.next(from, nil, "p")
			if diff := cmp.Diff(map[string]int64{"orders": 1}, s.generations()); diff != "" {
				t.Errorf("enforced policies (-want +got):\n%s", diff)
			}
			if s.rejected["orders"] == "" {
				t.Error("does not say why the newer definition was rejected")
			}
			s = s.next(published(t, definition(t, "orders", 3, perHour("1"))), nil, "p")
			if s.generations()["orders"] != 3 || len(s.rejected) != 0 {
				t.Errorf("after the mend: enforces %v, rejects %v", s.generations(), s.rejected)
			}
		})
	}
}

func TestSnapshotHasNoPolicyThatWasNeverGood(t *testing.T) {
	s := (&snapshot{}).next(published(t, definition(t, "orders", 1, broken), definition(t, "users", 1, perHour("1"))), nil, "p")
	if diff := cmp.Diff(map[string]int64{"users": 1}, s.generations()); diff != "" {
		t.Errorf("enforced policies (-want +got):\n%s", diff)
	}
}

func TestSnapshotBoundsTheReasonOfARejection(t *testing.T) {
	from := published(t)
	from.Rejected = []store.Rejection{{Name: "orders", Err: errors.New(strings.Repeat("é", 10_000) + "\xff")}}
	if got := len((&snapshot{}).next(from, nil, "p").rejected["orders"]); got > maxReason {
		t.Errorf("the reason has %d bytes, more than %d", got, maxReason)
	}
}

func TestSnapshotHasThePoliciesThatSelectThePod(t *testing.T) {
	orders, users := definition(t, "orders", 1, perHour("1")), definition(t, "users", 1, perHour("1"))
	orders.Selectors = []policy.Selector{{MatchLabels: map[string]string{"app": "orders"}}}
	users.Selectors = []policy.Selector{{MatchLabels: map[string]string{"app": "users"}}}
	s := (&snapshot{}).next(published(t, orders, users), map[string]string{"app": "orders"}, "p")
	if diff := cmp.Diff(map[string]int64{"orders": 1}, s.generations()); diff != "" {
		t.Errorf("enforced policies (-want +got):\n%s", diff)
	}
}

func TestSnapshotRefusesNamesThatKubernetesWould(t *testing.T) {
	for _, name := range []string{"", "a:b", "a{b}", `a"b`, "a\r\nb", "Ä", strings.Repeat("a", 254)} {
		if _, err := compile(definition(t, name, 1, perHour("1")), "p"); err == nil {
			t.Errorf("took the name %q", name)
		}
	}
}
