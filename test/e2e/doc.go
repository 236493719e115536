// Package e2e tests Tallyman as its users have it: on a Kubernetes cluster, from
// images and the installer, with kubectl and requests from a pod.
//
//	make test-e2e
//
// It creates a kind cluster and deletes it. Its environment:
//
//	E2E_KUBECONFIG     test on this cluster, which has the images already, and leave it
//	KIND_CLUSTER_NAME  the cluster's name (default tallyman-e2e)
//	KIND_NODE_IMAGE    the node image (default: that of kind)
//	E2E_REDIS_IMAGE    an image with redis-server (default redis:7-bookworm)
//	E2E_PREVIOUS       the commit to upgrade from (default: the newest tag, else one that
//	                   installing_test.go names)
//	E2E_KEEP           leave the cluster as it is at the end
//
// Specs with the label kind need a kind cluster; on another one leave them out by
// -ginkgo.label-filter='!kind'.
package e2e
