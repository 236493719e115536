// Package view turns what sidecars, the manager and the API server say into what the
// kubectl plugin shows: tables for people, and values for programs. It is pure.
//
// Keys of requests are what clients have sent. In texts they are cleaned of all that
// a terminal would obey.
package view
