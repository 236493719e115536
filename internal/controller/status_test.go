package controller

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
)

// slowServer takes long for each status.
type slowServer struct {
	client.Client
	statuses *slowStatuses
}

type slowStatuses struct {
	client.SubResourceWriter
	took    time.Duration
	written []string
}

func (s slowServer) Status() client.SubResourceWriter { return s.statuses }

func (s *slowStatuses) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	time.Sleep(s.took)
	s.written = append(s.written, o.GetName())
	return nil
}

// A reconcile of a namespace with many statuses to write lets an edit go before them.
func TestStatusesAreWrittenForASecondAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policies := make([]v1alpha1.RateLimitPolicy, 10)
		for i := range policies {
			policies[i] = v1alpha1.RateLimitPolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint(i), Generation: 1},
				Spec: v1alpha1.RateLimitPolicySpec{
					Selector: &metav1.LabelSelector{},
					Limits:   []v1alpha1.Limit{{Name: "all", Requests: new(int64(1)), Window: "1m"}},
				},
			}
		}
		statuses := &slowStatuses{took: 300 * time.Millisecond}
		r := &reconciler{Client: slowServer{statuses: statuses}, events: events.NewFakeRecorder(100)}
		facts := compile.Facts{Published: true}
		verdicts := new(compile.Compiler).Namespace(policies, nil)

		changed, pending, err := r.writeStatuses(t.Context(), policies, verdicts, facts)
		if err != nil || !changed || !pending {
			t.Errorf("changed %v, pending %v, %v", changed, pending, err)
		}
		if len(statuses.written) != 4 {
			t.Errorf("it wrote the statuses of %v", statuses.written)
		}
	})
}
