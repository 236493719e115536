// Package calendar tells which minute, hour, day, week, month or year of a time
// zone an instant is in, and when it ends.
//
// Windows follow one another without gap or overlap, whatever the zone's clock
// does:
//
//   - A Day, Week (from Monday), Month or Year begins the first time that the
//     zone's clock reads its start or later. So a day on which the clock is set
//     has 23 or 25 hours (or 23½, 24½), a day whose midnight is left out begins
//     when the clock goes on, a day that a zone left out is no window, and a
//     clock set back over midnight does not begin the day twice.
//   - A Minute or Hour begins each time that the zone's clock reads a full one,
//     so it has 60 or 3600 seconds, and the hour that is repeated in autumn is
//     two windows. Only where a clock is set by a part of it (half an hour in
//     Australia/Lord_Howe) is that one window shorter or longer.
//
// A leap second is no time of its own, as in Unix time.
//
// The time zone database is linked in, though that is commonly left to programs:
// a limit must mean the same in every process that enforces it, also in an image
// that holds nothing but the program, and in applications that import the
// library. It costs 420 kB. Where the machine has a database, the machine's is
// used, as always in Go.
package calendar
