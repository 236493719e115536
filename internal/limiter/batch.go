package limiter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// evaluation is one call of the script for a batch of jobs, in their order. Jobs
// that ask the same of the same counters, with no other in between that touches
// these, are one call to it: many like requests, granted in part.
//
// It is used again and again; by one goroutine at a time.
type evaluation struct {
	calls []scriptCall
	// last is the call that touched a key last.
	last  map[string]int
	rules map[*Rule]uint16
	run   run

	args     []any
	keys     int
	ruleText []byte
	callText []byte
}

// scriptCall is what one or more like jobs are to the script.
type scriptCall struct {
	jobs  []*flight
	count int64
	// again says that an earlier call touches one of its counters.
	again bool
}

// run is the calls, one after the other, that the script is told of together.
type run struct {
	// at is where its length stands in the text of the calls.
	at, length int
	// model is what all of them are like but for their counters; nil of no run.
	model *scriptCall
}

// maxRunKeys bounds the counters of a run, which Lua has on its stack.
const maxRunKeys = 1024

func (e *evaluation) reset() {
	clear(e.last)
	clear(e.rules)
	clear(e.args)
	for i := range e.calls {
		clear(e.calls[i].jobs)
	}
	e.calls, e.args, e.keys = e.calls[:0], e.args[:0], 0
	e.ruleText, e.callText, e.run = e.ruleText[:0], e.callText[:0], run{}
}

// build encodes the jobs. clock is about Redis's time in µs, given is the time
// to count with, or "" for Redis's.
func (e *evaluation) build(jobs []*flight, clock int64, given any) {
	e.reset()
	for _, f := range jobs {
		e.add(f, len(jobs) == 1)
	}
	e.args = append(e.args, nil, nil, nil)
	for i := range e.calls {
		e.encode(&e.calls[i], clock)
	}
	e.args = append(e.args, given, e.ruleText, e.callText)
}

// add puts a job to the calls.
func (e *evaluation) add(f *flight, alone bool) {
	again := false
	if !alone {
		if at, like := e.find(f); like {
			c := &e.calls[at]
			f.before = c.count
			c.jobs, c.count = append(c.jobs, f), c.count+f.count
			return
		}
		for i := range f.hits {
			if _, touched := e.last[f.hits[i].key]; touched {
				again = true
			}
			e.last[f.hits[i].key] = len(e.calls)
		}
	}
	n := len(e.calls)
	if n < cap(e.calls) {
		e.calls = e.calls[:n+1]
	} else {
		e.calls = append(e.calls, scriptCall{})
	}
	c := &e.calls[n]
	c.jobs, c.count, c.again = append(c.jobs[:0], f), f.count, again
}

// find returns the call that a job can be part of: one like it that touched all of
// its counters last. The last call of all did so, and is looked at first.
func (e *evaluation) find(f *flight) (int, bool) {
	if f.verb != verbTake || f.token != "" || len(f.hits) == 0 || len(e.calls) == 0 {
		return 0, false
	}
	if at := len(e.calls) - 1; e.calls[at].hasRoomFor(f) {
		return at, true
	}
	at, touched := e.last[f.hits[0].key]
	if !touched || !e.calls[at].hasRoomFor(f) {
		return 0, false
	}
	for i := 1; i < len(f.hits); i++ {
		if e.last[f.hits[i].key] != at {
			return 0, false
		}
	}
	return at, true
}

// hasRoomFor says whether a job asks the same of the same counters, and can be counted
// with the call's.
func (c *scriptCall) hasRoomFor(f *flight) bool {
	model := c.jobs[0]
	if model.verb != verbTake || model.token != "" || len(model.hits) != len(f.hits) {
		return false
	}
	for i := range f.hits {
		a, b := &model.hits[i], &f.hits[i]
		if a.rule != b.rule || a.key != b.key || a.cost != b.cost || a.group != b.group ||
			c.count > a.rule.together()-f.count {
			return false
		}
	}
	return true
}

func (e *evaluation) encode(c *scriptCall, clock int64) {
	if c.jobs[0].isPlain() {
		e.encodePlain(c, clock)
		return
	}
	e.run = run{}
	e.encodeAny(c.jobs[0], c.count, clock)
}

// isPlain says whether a job is of the most common ones, which the script does
// with the least effort: a take from enforced counters.
func (j *job) isPlain() bool {
	if j.verb != verbTake || len(j.hits) == 0 {
		return false
	}
	for i := range j.hits {
		if j.hits[i].group != enforced || j.hits[i].rule.holdsSlots() {
			return false
		}
	}
	return true
}

// encodePlain adds a call to the run, or starts one with it.
func (e *evaluation) encodePlain(c *scriptCall, clock int64) {
	r, hits := &e.run, c.jobs[0].hits
	if c.again || !r.hasRoomFor(c) {
		*r = run{at: len(e.callText) + 1, model: c}
		e.callText = append(e.callText, verbRun, 0, 0, byte(len(hits)))
		e.callText = appendInteger(e.callText, c.count)
		for i := range hits {
			e.appendCost(&hits[i], clock)
		}
	}
	r.length++
	binary.LittleEndian.PutUint16(e.callText[r.at:], uint16(r.length))
	for i := range hits {
		e.key(&hits[i].key)
	}
}

// hasRoomFor says whether a call is like the run's, and has a place there.
func (r *run) hasRoomFor(c *scriptCall) bool {
	if r.model == nil || c.count != r.model.count {
		return false
	}
	like, hits := r.model.jobs[0].hits, c.jobs[0].hits
	if len(hits) != len(like) || (r.length+1)*len(hits) > maxRunKeys {
		return false
	}
	for i := range hits {
		if hits[i].rule != like[i].rule || hits[i].price != like[i].price {
			return false
		}
	}
	return true
}

// encodeAny encodes what is not plain.
func (e *evaluation) encodeAny(f *flight, count, clock int64) {
	remembered := byte(0)
	if f.remembered() {
		remembered = 1
	}
	e.callText = append(e.callText, f.verb, byte(len(f.hits)))
	e.callText = appendInteger(e.callText, count)
	e.callText = appendInteger(e.callText, f.ttl.Milliseconds())
	e.callText = append(e.callText, remembered, byte(len(f.token)))
	e.callText = append(e.callText, f.token...)
	for i := range f.hits {
		e.appendCost(&f.hits[i], clock)
		e.callText = append(e.callText, f.hits[i].group)
		e.key(&f.hits[i].key)
	}
	if remembered == 1 {
		token := f.tokenKey()
		e.key(&token)
	}
}

// appendCost adds a hit's rule and price.
func (e *evaluation) appendCost(d *decision, clock int64) {
	e.callText = binary.LittleEndian.AppendUint16(e.callText, e.rule(d.rule, clock))
	e.callText = appendInteger(appendInteger(e.callText, d.price.whole), d.price.part)
}

// key adds a key. An interface holds a pointer without an allocation, and go-redis
// writes what it points to.
func (e *evaluation) key(key *string) {
	e.args = append(e.args, key)
	e.keys++
}

// rule returns a rule's number, from 1.
func (e *evaluation) rule(r *Rule, clock int64) uint16 {
	n, known := e.rules[r]
	if !known {
		n = uint16(len(e.rules) + 1)
		e.rules[r] = n
		e.ruleText = append(e.ruleText, r.code())
		e.ruleText = appendInteger(e.ruleText, r.limit.Window.Microseconds())
		e.ruleText = r.appendTo(e.ruleText, clock)
	}
	return n
}

func (e *evaluation) command(ctx context.Context, name, script string) once {
	e.args[0], e.args[1], e.args[2] = name, script, e.keys
	return once{redis.NewCmd(ctx, e.args...)}
}

// errReply means that the script's reply is not what it should be.
var errReply = errors.New("the reply of the script is malformed")

// The sizes of a reply's parts, in bytes.
const (
	integerSize  = 7
	callSize     = 2 * integerSize
	plainSize    = 1 + integerSize // a byte, and what is granted
	hitSize      = 4 * integerSize
	shortSize    = 1 // the byte alone
	shortHitSize = 2 * integerSize
)

// errClock carries Redis's time when the borders of a calendar did not reach it.
type errClock struct{ now int64 }

func (e errClock) Error() string {
	return fmt.Sprintf("the windows sent do not hold the server's time, %d µs", e.now)
}

// read gives each job its part of a reply, and returns Redis's time; 0 if it is
// not told. After an error the jobs' parts mean nothing, and corrupt may have been told
// of some keys.
func (e *evaluation) read(reply string, corrupt func(key string)) (now int64, err error) {
	if len(reply) < integerSize {
		return 0, fmt.Errorf("%w: %d bytes", errReply, len(reply))
	}
	now = readInteger(reply)
	if len(reply) == integerSize && len(e.calls) > 0 {
		return now, errClock{now}
	}
	rest := reply[integerSize:]
	for i := range e.calls {
		c := &e.calls[i]
		size := c.replySize(rest)
		if size > len(rest) {
			return 0, fmt.Errorf("%w: it ends at byte %d", errReply, len(reply))
		}
		if !c.read(now, rest[:size], corrupt) {
			return 0, fmt.Errorf("%w: a counter's numerator is not below its denominator", errReply)
		}
		rest = rest[size:]
	}
	if rest != "" {
		return 0, fmt.Errorf("%w: it has %d bytes too many", errReply, len(rest))
	}
	return now, nil
}

// replySize is that of the call's part, with which a reply begins.
func (c *scriptCall) replySize(reply string) int {
	f := c.jobs[0]
	switch {
	case !f.isPlain():
		return callSize + hitSize*len(f.hits)
	case isShort(reply):
		return shortSize + shortHitSize*len(f.hits)
	default:
		return plainSize + hitSize*len(f.hits)
	}
}

// isShort says whether a plain call's part is the short one: all was granted, and
// nothing was garbage.
func isShort(reply string) bool { return reply != "" && reply[0] == 1 }

// read gives the call's jobs their part of a reply. It says whether the states told
// are ones that can be.
func (c *scriptCall) read(now int64, reply string, corrupt func(key string)) bool {
	model := c.jobs[0]
	switch {
	case !model.isPlain():
		model.granted = [...]int64{enforced: readInteger(reply), shadow: readInteger(reply[integerSize:])}
		model.readHits(now, reply[callSize:], corrupt)
	case isShort(reply):
		model.granted = [...]int64{enforced: c.count, shadow: 0}
		model.readShort(now, reply[shortSize:])
	default:
		model.granted = [...]int64{enforced: readInteger(reply[1:]), shadow: 0}
		model.readHits(now, reply[plainSize:], corrupt)
	}
	for i := range model.hits {
		if !model.hits[i].sound() {
			return false
		}
	}
	for _, f := range c.jobs[1:] {
		f.granted = model.granted
		for i := range f.hits {
			f.hits[i].state = model.hits[i].state
		}
	}
	return true
}

// sound says whether the state can be one of the rule's: the arithmetic of buckets
// takes for granted that a numerator is below its denominator.
func (d *decision) sound() bool {
	b, bucket := d.rule.algorithm.(*tokenBucket)
	return !bucket || uint64(d.state.rest) < b.den
}

func (j *job) readHits(now int64, reply string, corrupt func(key string)) {
	for i := range j.hits {
		d := &j.hits[i]
		if readInteger(reply) == 1 && corrupt != nil {
			corrupt(d.key)
		}
		d.state = state{
			now:  now,
			at:   readInteger(reply[1*integerSize:]),
			used: readInteger(reply[2*integerSize:]),
			rest: readInteger(reply[3*integerSize:]),
		}
		reply = reply[hitSize:]
	}
}

func (j *job) readShort(now int64, reply string) {
	for i := range j.hits {
		j.hits[i].state = state{now: now, at: now, used: readInteger(reply), rest: readInteger(reply[integerSize:])}
		reply = reply[shortHitSize:]
	}
}

// readInteger reads the seven bytes that the script writes for a number.
func readInteger(s string) int64 {
	_ = s[6]
	return int64(s[0]) | int64(s[1])<<8 | int64(s[2])<<16 | int64(s[3])<<24 |
		int64(s[4])<<32 | int64(s[5])<<40 | int64(s[6])<<48
}
