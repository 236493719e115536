// Package v1 is the webhook that the API server asks about new pods. It is thin:
// what becomes of a pod is decided by package inject.
package v1
