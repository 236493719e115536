// Package monitoring has no code: its tests hold that dashboards, alerts and whom to
// scrape speak of metrics, labels and pods that there are, that the alerts fire when
// they should, and that a real Prometheus takes all of it and gets it from a real
// sidecar.
//
// It is a module of its own so that Prometheus's parser stays out of the product's. The
// tests need the programs prometheus and promtool: make monitoring-test sees to it.
package monitoring
