package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
)

// blocks cuts a log into blocks of whole lines. It inflates what is gzip, which
// begins with two bytes of its own, and drops a byte order mark in front of the text.
type blocks struct {
	source io.Reader
	in     io.Reader // nil until the source is looked at
	buffer []byte
	kept   int   // bytes of a line that has no end yet, at the buffer's begin
	line   int64 // number of the next line, from 1
	// skips says that a line is under way which is too long.
	skips bool
	end   error
	// sampled are blocks that were read to be looked at.
	sampled []block
}

// block is a part of a log.
type block struct {
	lines string
	first int64 // number of the first line
	// tooLong says that it has no lines, for the first one is too long.
	tooLong bool
}

func newBlocks(in io.Reader) *blocks {
	return &blocks{source: in, buffer: make([]byte, blockSize), line: 1}
}

// open tells whether the source is compressed.
func (b *blocks) open() error {
	if b.in != nil {
		return nil
	}
	text := bufio.NewReaderSize(b.source, blockSize)
	compressed, err := begins(text, "\x1f\x8b")
	if err != nil {
		return err
	}
	if compressed {
		inflated, err := gzip.NewReader(text)
		if err != nil {
			return fmt.Errorf("inflate: %w", err)
		}
		text = bufio.NewReaderSize(inflated, blockSize)
	}
	const mark = "\uFEFF"
	marked, err := begins(text, mark)
	if marked {
		_, err = text.Discard(len(mark))
	}
	b.in = text
	return err
}

// begins says whether what is to be read begins so. An end before that is no error.
func begins(in *bufio.Reader, with string) (bool, error) {
	begin, err := in.Peek(len(with))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return string(begin) == with, err
}

// sample returns the first lines that are not empty, at most n; they are read
// again by next.
func (b *blocks) sample(n int) (lines []string, err error) {
	var sampled []block
	for len(lines) == 0 {
		next, err := b.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, errors.New("there is no line in it")
		case err != nil:
			return nil, err
		}
		for line := range strings.SplitSeq(next.lines, "\n") {
			if line = strings.TrimRight(line, "\r "); line != "" && len(lines) < n {
				lines = append(lines, line)
			}
		}
		if len(lines) > 0 || next.tooLong {
			sampled = append(sampled, next)
		}
	}
	b.sampled = sampled
	return lines, nil
}

// next is the next block. It returns io.EOF after the last, and an error of
// reading after what was read before it.
func (b *blocks) next() (block, error) {
	if len(b.sampled) > 0 {
		out := b.sampled[0]
		b.sampled = b.sampled[1:]
		return out, nil
	}
	if err := b.open(); err != nil {
		return block{}, err
	}
	for b.end == nil {
		var n int
		n, b.end = b.fill()
		if out, ok := b.cut(n); ok {
			return out, nil
		}
	}
	return block{}, b.end
}

// fill reads until the buffer is full or the log ends, and says how much is in it.
func (b *blocks) fill() (n int, err error) {
	n = b.kept
	for err == nil && n < len(b.buffer) {
		var read int
		read, err = b.in.Read(b.buffer[n:])
		n += read
	}
	return n, err
}

// cut makes a block of the n bytes in the buffer, if there is a line in them.
func (b *blocks) cut(n int) (out block, ok bool) {
	data := b.buffer[:n]
	b.kept = 0
	if b.skips {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			return block{}, false
		}
		data, b.skips = data[i+1:], false
	}
	last := bytes.LastIndexByte(data, '\n')
	if b.end != nil {
		last = len(data) - 1
	}
	out = block{first: b.line}
	switch {
	case last < 0 && n == len(b.buffer) && len(data) == n:
		b.skips, out.tooLong = true, true
		b.line++
		return out, true
	case last >= 0:
		out.lines = string(data[:last+1])
		b.line += int64(bytes.Count(data[:last+1], []byte("\n")))
	}
	b.kept = copy(b.buffer, data[last+1:])
	return out, last >= 0
}
