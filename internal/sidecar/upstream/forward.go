package upstream

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
)

// Forwarder answers plain requests with what the app answers. Its fields have the
// meaning that they have in httputil.ReverseProxy; all must be set.
type Forwarder struct {
	Pool           *Pool
	BufferPool     httputil.BufferPool
	ModifyResponse func(*http.Response) error
	ErrorHandler   func(http.ResponseWriter, *http.Request, error)
}

// ServeHTTP implements http.Handler for requests of which IsPlain is true. When the
// app fails in the middle of a body, it panics with http.ErrAbortHandler, so that the
// client does not take what it has for the whole.
func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resp, c, stop, err := f.Pool.exchange(r, func(resp *http.Response) { inform(w, resp) })
	if err != nil {
		f.ErrorHandler(w, r, err)
		return
	}
	if err := f.ModifyResponse(resp); err != nil {
		stop()
		c.close()
		f.ErrorHandler(w, r, err)
		return
	}
	if err := f.respond(w, resp, c); err != nil {
		stop()
		c.close()
		panic(http.ErrAbortHandler)
	}
	if open := stop(); open && !resp.Close {
		f.Pool.put(c)
	} else {
		c.close()
	}
}

// inform passes on an informational response. The headers that w has already are for
// the final one.
func inform(w http.ResponseWriter, resp *http.Response) {
	h := w.Header()
	kept := maps.Clone(h)
	clear(h)
	maps.Copy(h, resp.Header)
	w.WriteHeader(resp.StatusCode)
	clear(h)
	maps.Copy(h, kept)
}

// respond passes on the final response.
func (f *Forwarder) respond(w http.ResponseWriter, resp *http.Response, c *conn) error {
	h := w.Header()
	addEndToEnd(h, resp.Header)
	announced := len(resp.Trailer)
	if announced > 0 {
		h.Add("Trailer", strings.Join(slices.Sorted(maps.Keys(resp.Trailer)), ", "))
	}
	w.WriteHeader(resp.StatusCode)
	if resp.Body != http.NoBody {
		if err := f.copyBody(w, resp, c); err != nil {
			return err
		}
	}
	addTrailer(w, resp.Trailer, announced)
	return nil
}

// copyBody passes on a body as it comes: what is there is flushed before more is
// waited for. At its end the server flushes by itself.
func (f *Forwarder) copyBody(w http.ResponseWriter, resp *http.Response, c *conn) error {
	client := http.NewResponseController(w)
	if c.reader.Buffered() == 0 {
		_ = client.Flush() // whoever cannot be written to shows at the next write
	}
	buffer := f.BufferPool.Get()
	defer f.BufferPool.Put(buffer)
	for {
		n, readErr := resp.Body.Read(buffer)
		if _, err := w.Write(buffer[:n]); err != nil {
			return err
		}
		switch {
		case errors.Is(readErr, io.EOF):
			return nil
		case readErr != nil:
			return readErr
		}
		_ = client.Flush()
	}
}

// addTrailer passes on the trailer, of which so many fields were announced before
// the body.
func addTrailer(w http.ResponseWriter, trailer http.Header, announced int) {
	if len(trailer) == 0 {
		return
	}
	// A short body must not go out with a length, since then nothing can follow it.
	_ = http.NewResponseController(w).Flush()
	prefix := http.TrailerPrefix
	if len(trailer) == announced {
		prefix = ""
	}
	for name, values := range trailer {
		w.Header()[prefix+name] = values
	}
}
