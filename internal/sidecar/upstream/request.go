package upstream

import (
	"bufio"
	"net"
	"net/http"
)

// endHere are headers of requests that are for the proxy alone, and those by which we
// frame a request ourselves.
var endHere = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true,
	"Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Http2-Settings": true, "Transfer-Encoding": true, "Content-Length": true,
}

// writeRequest writes a plain request as it came, with its peer appended to
// X-Forwarded-For. Nothing in it can end a line early: the server has refused control
// characters in the target, the host and the headers.
func writeRequest(w *bufio.Writer, r *http.Request) error {
	for _, text := range []string{r.Method, " ", r.URL.RequestURI(), " HTTP/1.1\r\nHost: ", r.Host, "\r\n"} {
		_, _ = w.WriteString(text) // Flush returns the first error
	}
	_ = r.Header.WriteSubset(w, endHere)
	if peer, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		for _, text := range []string{"X-Forwarded-For: ", peer, "\r\n"} {
			_, _ = w.WriteString(text)
		}
	}
	_, _ = w.WriteString("\r\n")
	return w.Flush()
}
