// Package docs holds the documentation to what is so: links lead somewhere, samples are
// accepted by the API server, and commands run.
//
// A block of sh is a script, as is an indented block that begins with a program, and so
// are the lines of a console block that begin with a dollar sign. Each is run in what
// looks like a clone of the repository, with a kubectl that has a real API server, a
// redis-cli that has a real Redis, and this repository's own programs; make only says
// whether it knows the targets. What cannot be run so is listed in elsewhere_test.go,
// with the test that runs it or the reason why none does.
package docs
