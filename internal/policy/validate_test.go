package policy_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/test/faults"
)

func TestAFaultIsNamedWithItsPathAndRemedy(t *testing.T) {
	for _, f := range faults.Load(t) {
		t.Run(f.Name, func(t *testing.T) {
			_, err := policy.DecodeSpec(f.JSON(t))
			got, ok := errors.AsType[policy.Errors](err)
			if !ok {
				t.Fatalf("DecodeSpec: %v, which is no policy.Errors", err)
			}
			want := policy.FieldError{Path: f.Path, Message: f.Message}
			if !slices.Contains(got, want) {
				t.Errorf("faults without the expected one:\n%s", cmp.Diff(policy.Errors{want}, got))
			}
		})
	}
}
