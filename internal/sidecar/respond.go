package sidecar

import (
	"encoding/json"
	"net/http"
)

// writeProblem answers with a problem document (RFC 9457).
func writeProblem(w http.ResponseWriter, status int, detail string) {
	writeJSON(w, status, "application/problem+json", struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{http.StatusText(status), status, detail})
}

// writeJSON answers with a value of ours, which can always be encoded.
func writeJSON(w http.ResponseWriter, status int, contentType string, value any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // an error means that the client has gone
}
