package policy

import (
	"fmt"
	"strings"
)

// CheckNames holds the names to what is safe in keys, headers and metrics. It is
// what Kubernetes allows, but for the places of dashes and dots.
func (d *Definition) CheckNames() error {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-."
	for _, name := range []string{d.Namespace, d.Name} {
		if name == "" || len(name) > 253 || strings.Trim(name, letters) != "" {
			return fmt.Errorf("%.80q is not a name: write at most 253 lower-case letters, digits, dashes and dots", name)
		}
	}
	return nil
}
