// Package upstream is the quick way from the sidecar's proxy to the app, for plain
// requests: HTTP/1.1 without a body and without anything that concerns the
// connection. All else goes by httputil.ReverseProxy, which can do everything, and a
// test holds that clients cannot tell the two ways apart.
//
// It is quick since it is synchronous. The goroutine that serves the client writes to
// the app and reads from it; http.Transport has two more for each connection, and a
// request goes from one to the other and back. The connections are our own, the
// parsing of responses is net/http's.
package upstream
