package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
)

// maxNote bounds an event's note, in bytes. The API server refuses 1024.
const maxNote = 1000

// record writes an event about a policy, for those who look later at what was done.
// What was done stays done if it may not be written: that is a warning.
//
// The note holds no values of requests: events are read by more people than policies.
func (c *cluster) record(ctx context.Context, p *v1alpha1.RateLimitPolicy, action, reason, note string, stderr io.Writer) {
	note += c.by(ctx)
	e := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: p.Namespace, GenerateName: p.Name + "-"},
		EventTime:           metav1.NowMicro(),
		ReportingController: "tallyman.dev/kubectl-tallyman",
		ReportingInstance:   fieldManager,
		Action:              action,
		Reason:              reason,
		Type:                corev1.EventTypeNormal,
		Note:                strings.ToValidUTF8(note[:min(len(note), maxNote)], ""),
		Regarding: corev1.ObjectReference{
			APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "RateLimitPolicy",
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion,
		},
	}
	if err := c.Create(ctx, e); err != nil {
		fmt.Fprintf(stderr, "warning: it is done, but no event tells of it: %v\n", err)
	}
}

// by names the user, as far as the API server tells.
func (c *cluster) by(ctx context.Context) string {
	var self authenticationv1.SelfSubjectReview
	if err := c.Create(ctx, &self); err != nil || self.Status.UserInfo.Username == "" {
		return ""
	}
	return ", by " + self.Status.UserInfo.Username
}
