// Package reach is how the kubectl plugin gets to the operator API of a sidecar or
// manager: by its URL, or by way of the API server to a port of its pod, as kubectl
// port-forward does.
package reach
