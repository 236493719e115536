package accesslog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
)

const (
	// blockSize is how much of a log is read at a time, in bytes.
	blockSize = 256 << 10
	// maxLine bounds a line, in bytes with its end. Servers take some kilobytes.
	maxLine = 64 << 10
	// ahead is how many batches are read, and parsed side by side, before they are
	// asked for.
	ahead = 3
	// maxFaults is how many lines that cannot be read are kept to be shown.
	maxFaults = 5
)

// Fault is a line that is no request.
type Fault struct {
	// Line is its number, from 1.
	Line int64
	Err  error
}

// Stats are about what was read so far.
type Stats struct {
	// Lines are all that are not empty, Requests those that are requests.
	Lines, Requests int64
	// Faults are the first few of the others.
	Faults []Fault
	// Named are the requests whose client is known by name only, and Clientless
	// those whose client is not known.
	Named, Clientless int64
}

// Reader reads a log once. It is for one goroutine.
type Reader struct {
	form
	blocks *blocks
	stats  Stats
}

// NewReader reads the first lines of a log to tell its format. A log without
// lines is an error; so is one of a format that is not known.
func NewReader(in io.Reader, o Options) (*Reader, error) {
	r := &Reader{blocks: newBlocks(in)}
	sample, err := r.blocks.sample(sampleSize)
	if err != nil {
		return nil, err
	}
	r.form, err = recognise(sample, o)
	return r, err
}

// Format is that of the log.
func (r *Reader) Format() Format { return r.format }

// Fields are what the log tells of requests.
func (r *Reader) Fields() Fields { return r.fields }

// Mapping is that of a log of JSON, given or found.
func (r *Reader) Mapping() Mapping { return r.mapping }

// Stats are about the batches that Batches has given out.
func (r *Reader) Stats() Stats { return r.stats }

// batch is what becomes of a block.
type batch struct {
	parser  parser
	entries []Entry
	stats   Stats
	err     error         // after the entries; io.EOF at the end
	parsed  chan struct{} // is closed when the rest is there
}

// Batches returns the requests in the order of the log, some thousands at a time.
// Blocks are read ahead and parsed side by side, in goroutines of their own. A batch
// may be changed when the next one is asked for; texts in it stay. An error is the last
// that there is: of reading, or of ctx.
func (r *Reader) Batches(ctx context.Context) iter.Seq2[[]Entry, error] {
	return func(yield func([]Entry, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		const batches = ahead + 1 // one is with the consumer
		full, free := make(chan *batch, batches), make(chan *batch, batches)
		for range batches {
			free <- &batch{parser: r.newParser()}
		}
		go r.fill(ctx, free, full)
		for {
			var b *batch
			select {
			case b = <-full:
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
			<-b.parsed
			r.stats.add(&b.stats)
			if len(b.entries) > 0 && !yield(b.entries, nil) {
				return
			}
			if b.err != nil {
				if !errors.Is(b.err, io.EOF) {
					yield(nil, b.err)
				}
				return
			}
			free <- b
		}
	}
}

// add adds what a batch has been about.
func (s *Stats) add(o *Stats) {
	s.Lines, s.Requests = s.Lines+o.Lines, s.Requests+o.Requests
	s.Named, s.Clientless = s.Named+o.Named, s.Clientless+o.Clientless
	s.Faults = append(s.Faults, o.Faults[:min(len(o.Faults), maxFaults-len(s.Faults))]...)
}

// fill reads block by block and has each parsed, until the log or ctx ends.
func (r *Reader) fill(ctx context.Context, free <-chan *batch, full chan<- *batch) {
	for {
		var b *batch
		select {
		case b = <-free:
		case <-ctx.Done():
			return
		}
		var text block
		b.entries, b.stats, b.parsed = b.entries[:0], Stats{}, make(chan struct{})
		text, b.err = r.blocks.next()
		full <- b // there is room for all batches that there are
		if b.err != nil {
			close(b.parsed)
			return
		}
		go func() {
			b.parse(text)
			close(b.parsed)
		}()
	}
}

// parse reads the lines of a block.
func (b *batch) parse(text block) {
	if text.tooLong {
		b.fault(text.first, errTooLong)
		return
	}
	number := text.first - 1
	for line := range strings.SplitSeq(strings.TrimSuffix(text.lines, "\n"), "\n") {
		number++
		line = strings.TrimRight(line, "\r ")
		if line != "" {
			b.add(line, number)
		}
	}
}

var errTooLong = fmt.Errorf("the line is longer than %d bytes", maxLine)

func (b *batch) add(line string, number int64) {
	if len(line) >= maxLine {
		b.fault(number, errTooLong)
		return
	}
	e := b.blank()
	e.Line = number
	if err := b.parser.parse(line, e); err != nil {
		b.entries = b.entries[:len(b.entries)-1]
		b.fault(number, err)
		return
	}
	b.stats.Lines++
	b.stats.Requests++
	if e.ClientName != "" {
		b.stats.Named++
	}
	if !e.Request.ClientIP.IsValid() {
		b.stats.Clientless++
	}
}

func (b *batch) fault(number int64, err error) {
	b.stats.Lines++
	if len(b.stats.Faults) < maxFaults {
		b.stats.Faults = append(b.stats.Faults, Fault{number, err})
	}
}

// blank adds an entry, which may have been used before.
func (b *batch) blank() *Entry {
	if n := len(b.entries); n < cap(b.entries) {
		b.entries = b.entries[:n+1]
	} else {
		b.entries = append(b.entries, Entry{})
	}
	e := &b.entries[len(b.entries)-1]
	e.reset()
	return e
}
