package tallyman

import (
	"slices"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/policyfile"
)

// readFile compiles every policy of a file, by name. Its error tells all faults.
func readFile(path, namespace, prefix string) ([]*enforced, error) {
	var policies []*enforced
	err := policyfile.Read(path, namespace, func(d policy.Definition) error {
		e, err := compile(d, prefix)
		policies = append(policies, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(policies, func(a, b *enforced) int {
		return strings.Compare(a.definition.Name, b.definition.Name)
	})
	return policies, nil
}
