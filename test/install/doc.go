// Package install tests the ways of installing that need no nodes: what the chart and
// the kustomize components come to, what an API server makes of it when they are
// installed, upgraded and uninstalled, and the commands of docs/install.md.
//
// What pods make of it is tested in test/e2e.
package install
