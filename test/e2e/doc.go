// Package e2e tests Tallyman as its users have it: on a Kubernetes cluster, from
// images and the installer, with kubectl and requests from a pod.
//
//	make test-e2e
//
// It creates a kind cluster and deletes it. Its environment:
//
//	E2E_KUBECONFIG   test on this cluster, which has the images already, and leave it
//	KIND_NODE_IMAGE  the node image (default: that of kind)
//	E2E_REDIS_IMAGE  an image with redis-server (default redis:7-bookworm)
//	E2E_KEEP         leave the cluster as it is at the end
package e2e
