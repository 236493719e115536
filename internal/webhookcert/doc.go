// Package webhookcert makes and renews the certificates by which the API server
// knows the manager's webhooks, so that a cluster needs nothing installed before.
//
//	ca.go         authorities: made, kept, and told which one signs; pure
//	authority.go  the Secret, the webhooks' caBundle and the certificate that is served
//	setup.go      what runs in a manager, and permissions
//
// The authorities are in a Secret. The leader makes them and writes them into the
// webhooks' configuration; each replica signs a certificate of its own, which
// never leaves its memory.
//
// An authority is trusted for an hour before it signs. So no one has to find out
// whether all API servers have read a new caBundle, and a rotation is no event.
package webhookcert
