// Package inject puts the sidecar into pods. It is pure: a pod goes in, and the
// pod with a sidecar or the reason why there is none comes out.
//
// The sidecar takes over the app's port by its name: its own port gets the name,
// and the app's port another one, so that a Service with a named targetPort
// reaches the sidecar. No packet is redirected, and so no privilege is needed.
//
// It must not import anything that talks to an API server.
package inject
