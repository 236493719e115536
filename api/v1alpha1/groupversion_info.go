// Package v1alpha1 is the Kubernetes API of Tallyman: the RateLimitPolicy kind
// of group tallyman.dev.
//
// A RateLimitPolicySpec has the very JSON of internal/policy's Spec, which is
// what the enforcers read; a test walks both. The package imports apimachinery
// only, so that clients may import it at little cost.
//
// +kubebuilder:object:generate=true
// +groupName=tallyman.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// SchemeGroupVersion is the group and version of this package's kinds.
	SchemeGroupVersion = schema.GroupVersion{Group: "tallyman.dev", Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme registers this package's kinds in a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &RateLimitPolicy{}, &RateLimitPolicyList{})
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
