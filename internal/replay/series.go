package replay

import "slices"

// maxBuckets bounds a series: it is a day and a half in seconds, or 91 days in
// minutes.
const maxBuckets = 1 << 17

// widths are those that buckets can have, in seconds. Each is a multiple of that
// before it.
var widths = []int64{1, 60, 5 * 60, 15 * 60, 3600, 6 * 3600, 86400, 7 * 86400}

// series counts over time, in buckets that become wider when there would be too
// many. The zero value is empty.
type series struct {
	level   int   // of the buckets' width in widths
	first   int64 // number of the first bucket since 1970
	buckets []bucket
}

type bucket struct{ admitted, refused int64 }

// at is the bucket of a time in seconds since 1970.
func (s *series) at(second int64) *bucket {
	for {
		n := second / widths[s.level]
		if len(s.buckets) == 0 {
			s.first = n
		}
		i := n - s.first
		switch {
		case i >= 0 && i < int64(len(s.buckets)):
			return &s.buckets[i]
		case i >= maxBuckets || int64(len(s.buckets))-i > maxBuckets:
			*s = s.widened(s.level + 1)
		case i < 0:
			s.buckets = slices.Insert(s.buckets, 0, make([]bucket, -i)...)
			s.first = n
		default:
			s.buckets = append(s.buckets, make([]bucket, i+1-int64(len(s.buckets)))...)
		}
	}
}

// widened is the series with wider buckets.
func (s *series) widened(level int) series {
	out := series{level: level}
	for i, b := range s.buckets {
		if b != (bucket{}) {
			to := out.at((s.first + int64(i)) * widths[s.level])
			to.admitted += b.admitted
			to.refused += b.refused
		}
	}
	return out
}

// worst is the bucket with the most refusals, in one minute or, of a series whose
// buckets are wider, in one of these.
func (s *series) worst() (second, width, refused int64) {
	const minute = 1
	if s.level < minute {
		wide := s.widened(minute)
		s = &wide
	}
	width = widths[s.level]
	for i, b := range s.buckets {
		if b.refused > refused {
			second, refused = (s.first+int64(i))*width, b.refused
		}
	}
	return second, width, refused
}

// frame is a time that is divided into columns.
type frame struct {
	start, width int64 // in seconds
	columns      int
}

// columnWidths are those that people like to read, in seconds.
var columnWidths = []int64{
	1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
	3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400,
}

// frame covers all of the series with at most so many columns.
func (s *series) frame(columns int) frame {
	own := widths[s.level]
	begin, end := s.first*own, (s.first+int64(len(s.buckets)))*own
	f := frame{}
	for i := 0; ; i++ {
		if i < len(columnWidths) {
			f.width = columnWidths[i]
		} else {
			f.width *= 2
		}
		if f.width%own != 0 {
			continue
		}
		f.start = begin / f.width * f.width
		if n := (end - f.start + f.width - 1) / f.width; n <= int64(columns) {
			f.columns = int(n)
			return f
		}
	}
}

// in is the series in the columns of a frame, which covers it.
func (s *series) in(f frame) []bucket {
	out := make([]bucket, f.columns)
	for i, b := range s.buckets {
		if b != (bucket{}) {
			to := &out[((s.first+int64(i))*widths[s.level]-f.start)/f.width]
			to.admitted += b.admitted
			to.refused += b.refused
		}
	}
	return out
}
