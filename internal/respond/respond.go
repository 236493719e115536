// Package respond answers HTTP requests with JSON. It imports the standard library
// only.
package respond

import (
	"encoding/json"
	"net/http"
)

// ProblemDetails is a problem document (RFC 9457).
type ProblemDetails struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// Problem answers with a problem document (RFC 9457).
func Problem(w http.ResponseWriter, status int, detail string) {
	write(w, status, "application/problem+json", ProblemDetails{http.StatusText(status), status, detail})
}

// JSON answers with a value of ours, which can always be encoded. The status is 200.
func JSON(w http.ResponseWriter, value any) {
	write(w, http.StatusOK, "application/json", value)
}

func write(w http.ResponseWriter, status int, contentType string, value any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // an error means that the client has gone
}
