package httplimit

import (
	"io"
	"net/http"
	"time"
)

const (
	// maxDiscard is the longest body that net/http reads to its end by itself
	// to keep the connection, in bytes.
	maxDiscard = 256 << 10
	// lingerBytes and lingerTime bound what is read of a longer one.
	lingerBytes = 64 << 20
	lingerTime  = 5 * time.Second
)

// prepareLinger sees to it that a client which sends a long body can read an
// answer that does not wait for it. Closed at once, the connection would be
// reset by what still arrives, and the reset can overtake the answer. So the
// answer announces the close, and what arrives is read and dropped for a while,
// by the function that is returned and called after the answer was written.
//
// A client that waits for 100 Continue sends no body, and must not be told to.
// HTTP/2 has resets of single streams for this purpose.
func prepareLinger(w http.ResponseWriter, r *http.Request) (linger func()) {
	short := r.ContentLength >= 0 && r.ContentLength <= maxDiscard
	if short && r.ContentLength > 0 {
		// net/http reads it before it writes the answer, and would wait for ever
		// for a client that does not send it. An error means that it cannot.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(lingerTime))
	}
	if short || r.ProtoMajor != 1 || r.Header.Get("Expect") != "" {
		return func() {}
	}
	w.Header().Set("Connection", "close")
	return func() {
		c := http.NewResponseController(w)
		if c.Flush() != nil || c.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
			return
		}
		_, _ = io.CopyN(io.Discard, r.Body, lingerBytes)
	}
}
