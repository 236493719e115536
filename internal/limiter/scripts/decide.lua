-- decide.lua decides a batch of calls, one after the other, in one step: for each
-- call it reads and checks every counter, and only then writes. No time passes
-- and nobody else writes in between, so 20 requests for the last 5 units get 5.
--
-- KEYS     the counters of all calls, and their tokens; no other key is touched
-- ARGV[1]  the time in µs from a test or a simulator; "" means this server's
-- ARGV[2]  the rules of the batch, packed: for each its algorithm and window, and
--   f a w l n  limit
--   c          limit, five borders of calendar windows
--   t          burst in µs, its numerator, denominator, requests
-- ARGV[3]  the calls, packed: for each its verb, the number of its hits, how many
--   like requests it stands for, how long its token counts in ms, whether it has
--   one, and the name of its slots; then for each hit its rule, group and cost
--   (for t in µs, and a numerator)
-- Group 1 is enforced. Group 2 shadows: it never stands in the way of group 1.
--
-- The reply is packed as well: the time, then for each call how many requests
-- each group is granted, and for each hit whether its counter held garbage and
-- three numbers of the counter's state: before the call when it decides or
-- charges, after it for the others. What is left, and when to try again, is computed from
-- them in Go. A reply of 7 bytes is the time alone: the borders do not reach it,
-- and nothing was done.
--
-- Numbers are doubles, exact for integers up to 2^53; Go does the very same
-- operations, so that both agree on every bit.

local MAX = 9007199254740991 -- 2^53 - 1
local MINUTE = 60000000
local ABSENT, SOUND, LONE, GARBAGE = 0, 1, 2, 3
local TAKE, PEEK, REFUND, CHARGE, RESERVE, SETTLE, RENEW = 1, 2, 3, 4, 5, 6, 7

local call, try, pack, unpack = redis.call, redis.pcall, struct.pack, struct.unpack
local floor, ceil, fmod, min, max = math.floor, math.ceil, math.fmod, math.min, math.max

local given = ARGV[1] ~= ''
local now = tonumber(ARGV[1])
if not given then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Helpers ------------------------------------------------------------------

-- ahead tells a time that no step of the clock explains: the counter would
-- refuse for too long. Smaller steps back are waited for, so that they give
-- nobody a second helping.
local function ahead(time, window)
  return time > now + max(window, MINUTE)
end

-- expiry is the millisecond at which a counter says nothing any more. Simulated
-- time runs by itself: there a counter stays for an hour of real time or more.
local function expiry(ends)
  if not given then return ceil(ends / 1000) end
  return max(ceil((ends - now) / 1000), 3600000)
end

local function expire(key, ends)
  call(given and 'PEXPIRE' or 'PEXPIREAT', key, expiry(ends))
end

-- save writes a counter. Where the expiry is far enough already it stays, since
-- it costs more than all the rest.
local function save(key, s, text)
  if s.keep then
    call('SET', key, text, 'KEEPTTL')
  else
    call('SET', key, text, given and 'PX' or 'PXAT', expiry(s.ends))
  end
end

-- fetch reads a counter. A value of another type is garbage; any other error,
-- such as a missing permission, is raised by the second call.
local function fetch(key, s, command)
  local reply = try(command, key)
  if type(reply) ~= 'table' then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then return call(command, key) end
  s.flag = GARBAGE
end

-- parse reads a counter that is a packed string, or a lone number.
local function parse(key, s, format, size)
  s.flag = ABSENT
  local text = fetch(key, s, 'GET')
  if not text then return end
  if #text == size then
    s.flag = SOUND
    return unpack(format, text)
  end
  s.flag = GARBAGE
  if #text < 17 and string.find(text, '^%d+$') and tonumber(text) <= MAX then
    s.flag = LONE
    return tonumber(text)
  end
end

-- add sums two numbers, each of a whole part and a numerator below the
-- denominator, without ever exceeding 2^53.
local function add(a, a_part, b, b_part, denominator)
  if a_part >= denominator - b_part then
    return a + b + 1, a_part - (denominator - b_part)
  end
  return a + b, a_part + b_part
end

-- times multiplies such a number. Go sees to it that m denominators fit.
local function times(b, b_part, m, denominator)
  local part = b_part * m
  return b * m + floor(part / denominator), fmod(part, denominator)
end

-- Each algorithm reads (sets s.at, s.used, s.rest and s.ends, the end of the
-- counter's time), knows how often a cost fits, takes and gives back.
local read, room, take, give = {}, {}, {}, {}

-- FixedWindow: start, count. A lone number is the count of the present window.
-- The window begins at multiples of its length (f), at the borders of a calendar
-- (c), or with the first request after the last one (a).
local function present(r, start)
  if r.code == 'f' then return now - fmod(now, r.window), r.window end
  if r.code == 'c' then return r.start, r.length end
  if start and start + r.window > now then return start, r.window end
  return now, r.window
end

function read.f(key, r, s)
  local start, count = parse(key, s, '<I7I7', 14)
  if s.flag == LONE then start, count = nil, start end
  local begins, length = present(r, start)
  start, count = start or begins, count or 0
  if ahead(start, length) or count > MAX or (r.code == 'f' and fmod(start, length) ~= 0) then
    s.flag, count, start = GARBAGE, 0, begins
  elseif start < begins then
    s.keep, count, start = false, 0, begins
  elseif s.flag == SOUND then
    s.keep = true
  end
  s.at, s.used, s.rest, s.ends = start, count, 0, start + length
end

function room.f(r, s, cost, _, n)
  if cost == 0 then return n end
  return max(0, min(n, floor((r.limit - s.used) / cost)))
end

function take.f(key, _, s, cost, _, m)
  s.used = s.used + cost * m
  save(key, s, pack('<I7I7', s.at, s.used))
end

-- Units of a window that has passed meanwhile are not given back.
function give.f(key, r, s, cost, part, m)
  local units = min(cost * m, s.used)
  if units > 0 then take[r.method](key, r, s, -units, part, 1) end
  return units / cost
end

-- SlidingWindow: start, count, previous. What the previous window counted weighs
-- less the further the present one has come.
function read.w(key, r, s)
  local window = r.window
  local begins = now - fmod(now, window)
  local start, count, previous = parse(key, s, '<I7I7I7', 21)
  if s.flag == LONE then start, count, previous = begins, start, 0 end
  start, count, previous = start or begins, count or 0, previous or 0
  if ahead(start, window) or count > MAX or previous > MAX or fmod(start, window) ~= 0 then
    s.flag, count, previous, start = GARBAGE, 0, 0, begins
  elseif start == begins - window then
    count, previous, start = 0, count, begins
  elseif start < begins then
    count, previous, start = 0, 0, begins
  elseif s.flag == SOUND then
    s.keep = true
  end
  s.at, s.used, s.rest, s.ends = start, count, previous, start + 2 * window
end

function room.w(r, s, cost, _, n)
  if cost == 0 then return n end
  local elapsed = max(now - s.at, 0)
  local weight = min(ceil(s.rest * (r.window - elapsed) / r.window), s.rest)
  return max(0, min(n, floor((r.limit - weight - s.used) / cost)))
end

function take.w(key, _, s, cost, _, m)
  s.used = s.used + cost * m
  save(key, s, pack('<I7I7I7', s.at, s.used, s.rest))
end

give.w = give.f

-- TokenBucket: lead, numerator, time, requests. The lead is the time in µs that
-- an empty bucket's debt takes to be paid at a rate of so many requests per
-- window; it shrinks as time passes. The expiry is moved when the debt's end has
-- passed a multiple of the slack, and then to a slack beyond it.
local function slack(r) return r.window / 4 end

function read.t(key, r, s)
  local lead, part, at, requests = parse(key, s, '<I7I7I7I7', 28)
  if s.flag == LONE then s.flag = GARBAGE end
  s.cell = s.flag == SOUND and requests == r.requests and floor((at + lead) / slack(r))
  if s.flag ~= SOUND then lead, part, at, requests = 0, 0, now, r.requests end
  if ahead(at, r.window) or lead > MAX or requests > MAX or (requests == r.requests and part >= r.denominator) then
    s.flag, lead, part, at = GARBAGE, 0, 0, now
  end
  -- Changed numbers hold since the last take, whose units are kept.
  if requests ~= r.requests then
    lead, part = floor(lead * requests / r.requests), 0
  end
  if lead > r.burst or (lead == r.burst and part > r.burst_part) then
    lead, part = r.burst, r.burst_part
  end
  lead = lead - max(now - at, 0)
  if lead < 0 then lead, part = 0, 0 end
  s.at, s.used, s.rest, s.ends = max(now, at), lead, part, max(now, at) + lead + 1
end

-- fits is how many of n costs fit into a gap. The quotient is off by one at most.
local function fits(gap, gap_part, cost, part, n, d)
  local function within(m)
    local whole, rest = times(cost, part, m, d)
    return whole < gap or (whole == gap and rest <= gap_part)
  end
  if gap < 0 then return 0 end
  if n == 1 then return within(1) and 1 or 0 end
  if cost == 0 and part == 0 then return n end
  local m = min(n, floor((gap + gap_part / d) / (cost + part / d)))
  if m > 0 and not within(m) then return m - 1 end
  if m < n and within(m + 1) then return m + 1 end
  return m
end

local function subtract(a, a_part, b, b_part, d)
  if a_part < b_part then return a - b - 1, a_part + (d - b_part) end
  return a - b, a_part - b_part
end

function room.t(r, s, cost, part, n)
  local gap, gap_part = subtract(r.burst, r.burst_part, s.used, s.rest, r.denominator)
  return fits(gap, gap_part, cost, part, n, r.denominator)
end

local function owe(key, r, s, lead, part)
  s.used, s.rest = lead, part
  s.keep = s.cell == floor((s.at + lead) / slack(r))
  s.ends = s.at + lead + 1 + slack(r)
  save(key, s, pack('<I7I7I7I7', lead, part, s.at, r.requests))
end

function take.t(key, r, s, cost, part, m)
  local whole, rest = times(cost, part, m, r.denominator)
  owe(key, r, s, add(s.used, s.rest, whole, rest, r.denominator))
end

function give.t(key, r, s, cost, part, m)
  local d = r.denominator
  local back = fits(s.used, s.rest, cost, part, m, d)
  if back < m then
    owe(key, r, s, 0, 0)
  else
    local whole, rest = times(cost, part, m, d)
    owe(key, r, s, subtract(s.used, s.rest, whole, rest, d))
  end
  return back
end

-- SlidingLog: a sorted set with one member for each take, "total:cost", at the
-- take's time. The total counts every unit up to and with this take (modulo
-- 2^53), in 16 digits, so that takes of the same µs stay in order, and the units
-- between two members are a subtraction.
local function entry(key, s, rank)
  local reply = call('ZRANGE', key, rank, rank, 'WITHSCORES')
  local total, cost = string.match(reply[1] or '', '^(%d+):(%d+)$')
  local at = tonumber(reply[2])
  total, cost = tonumber(total), tonumber(cost)
  if cost and total <= MAX and cost <= MAX and at == floor(at) then
    return {total = total, cost = cost, at = at}
  end
  s.flag = GARBAGE
end

local function append(key, at, total, cost)
  call('ZADD', key, at, string.format('%016.0f:%.0f', total, cost))
end

local function modulo(total)
  return total < 0 and total + MAX + 1 or total
end

-- freed is the units that end when everything from first to last has ended.
local function freed(first, last)
  return first.cost + modulo(last.total - first.total)
end

function read.l(key, r, s)
  s.flag, s.at, s.used, s.rest, s.total, s.ends = ABSENT, 0, 0, 0, 0, now
  local size = fetch(key, s, 'ZCARD') or 0
  if size == 0 then return end
  s.flag = SOUND
  local last = entry(key, s, -1)
  if not last or ahead(last.at, r.window) then
    s.flag = GARBAGE
    return
  end
  s.ends = last.at + r.window
  local gone = call('ZCOUNT', key, '-inf', now - r.window)
  local first = gone < size and entry(key, s, gone)
  if first then
    s.at, s.used, s.rest, s.total = last.at, freed(first, last), last.at, last.total
  end
end

room.l = room.f

function take.l(key, r, s, cost, _, m)
  if s.flag == GARBAGE then call('DEL', key) end
  -- A total that starts again at 0 sorts after the last one by its time.
  local again, total = add(0, s.total, 0, cost * m, MAX + 1)
  local at = max(now, s.at + again)
  call('ZREMRANGEBYSCORE', key, '-inf', at - r.window)
  append(key, at, total, cost * m)
  s.at, s.used, s.total = at, s.used + cost * m, total
  expire(key, at + r.window)
end

-- The newest units go first. Others may have been taken after ours; units are
-- alike, and the two calls of one request are a moment apart.
function give.l(key, r, s, cost, _, m)
  local units = min(cost * m, s.used)
  local rest = units
  while rest > 0 do
    local last = entry(key, s, -1)
    if not last then break end
    call('ZPOPMAX', key)
    if last.cost > rest then
      append(key, last.at, modulo(last.total - rest), last.cost - rest)
    end
    rest = rest - last.cost
  end
  read.l(key, r, s)
  return units / cost
end

-- await finds the take at whose end a refused hit fits, by bisection.
local function await(key, r, s, used, cost)
  local need = used - (r.limit - cost)
  if cost > r.limit or need <= 0 then return end
  local low, high = call('ZCOUNT', key, '-inf', now - r.window), call('ZCARD', key) - 1
  local first = entry(key, s, low)
  while first and low < high do
    local middle = floor((low + high) / 2)
    local candidate = entry(key, s, middle)
    if not candidate then return end
    if freed(first, candidate) >= need then high = middle else low = middle + 1 end
  end
  local found = entry(key, s, low)
  if found then s.rest = found.at end
end

-- Concurrency: a sorted set with the slots in use, each at the time at which it
-- ends by itself unless it is renewed.
function read.n(key, _, s)
  s.flag, s.at, s.rest, s.ends = ABSENT, now, 0, now
  local size = fetch(key, s, 'ZCARD') or 0
  if size > 0 then s.flag = SOUND end
  s.used = size > 0 and call('ZCOUNT', key, '(' .. string.format('%.0f', now), '+inf') or 0
end

room.n = room.f

local function slots(token, cost, each)
  for i = 1, cost do each(token .. ':' .. i) end
end

function take.n(key, r, s, cost, _, _, token)
  if s.flag == GARBAGE then call('DEL', key) end
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  slots(token, cost, function(slot) call('ZADD', key, now + r.window, slot) end)
  s.used = s.used + cost
  expire(key, now + r.window)
end

function give.n(key, _, s, cost, _, _, token)
  local given_back = 0
  slots(token, cost, function(slot) given_back = given_back + call('ZREM', key, slot) end)
  s.used = max(0, s.used - given_back)
  return given_back / cost
end

-- Counters of the same method differ in where their windows begin only.
local methods = {f = 'f', a = 'f', c = 'f', w = 'w', t = 't', l = 'l', n = 'n'}

-- tidy leaves a counter alone, unless it is garbage, does not say which window
-- it counts, or would stay for ever.
local function tidy(key, r, s)
  if s.flag == GARBAGE then
    call('DEL', key)
  elseif s.flag == LONE then
    take[r.method](key, r, s, 0, 0, 1)
  elseif s.flag == SOUND and call('PTTL', key) == -1 then
    expire(key, s.ends)
  end
end

-- The rules -------------------------------------------------------------------

local rules = {}
do
  local text, at = ARGV[2], 1
  while at <= #text do
    local r = {}
    r.code, r.window, at = unpack('<c1I7', text, at)
    r.method = methods[r.code]
    if r.code == 't' then
      r.burst, r.burst_part, r.denominator, r.requests, at = unpack('<I7I7I7I7', text, at)
    else
      r.limit, at = unpack('<I7', text, at)
    end
    if r.code == 'c' then
      local borders = {unpack('<I7I7I7I7I7', text, at)}
      at = borders[6]
      for i = 1, 4 do
        if borders[i] <= now and now < borders[i + 1] then
          r.start, r.length = borders[i], borders[i + 1] - borders[i]
        end
      end
      if not r.start then return pack('<I7', now) end
    end
    rules[#rules + 1] = r
  end
end

-- The calls -------------------------------------------------------------------

-- states are the counters of the call at hand; the tables serve every call.
local states, reply = {}, {pack('<I7', now)}

local function answer(s, at, used, rest)
  reply[#reply + 1] = pack('<BI7I7I7', s.flag == GARBAGE and 1 or 0, at, used, rest)
end

local function granted(hits, group, n)
  for i = 1, hits do
    local s = states[i]
    if s.group == group and n > 0 then n = room[s.rule.method](s.rule, s, s.cost, s.part, n) end
  end
  return n
end

-- decide grants as many of n requests as fit; m of them are told, and the state
-- before them.
local function decide(hits, taking, n, token)
  local first = granted(hits, 1, n)
  local m = {first, granted(hits, 2, first)}
  reply[#reply + 1] = pack('<I7I7', m[1], m[2])
  for i = 1, hits do
    local s = states[i]
    local r, at, used, rest = s.rule, s.at, s.used, s.rest
    local garbage = s.flag
    if taking and m[s.group] > 0 and (s.cost > 0 or s.part > 0) then
      take[r.method](s.key, r, s, s.cost, s.part, m[s.group], token)
    else
      tidy(s.key, r, s)
    end
    if r.code == 'l' then
      await(s.key, r, s, s.used, s.cost)
      rest = s.rest
    end
    s.flag = garbage
    answer(s, at, used, rest)
  end
  return first
end

-- charge takes what a request has had already, as far as there is room.
local function charge(key, r, s, cost, part)
  if r.code == 't' then
    if room.t(r, s, cost, part, 1) == 1 then return take.t(key, r, s, cost, part, 1) end
    return owe(key, r, s, r.burst, r.burst_part)
  end
  local m = room[r.method](r, s, 1, 0, cost)
  if m > 0 then take[r.method](key, r, s, 1, 0, m) end
end

local function refund(s, cost, part, m, token)
  if (cost <= 0 and part <= 0) or s.flag == ABSENT or s.flag == GARBAGE then return 0 end
  return give[s.rule.method](s.key, s.rule, s, cost, part, m, token)
end

-- settle makes of an estimate what it really was.
local function settle(s, id, cost, part)
  local d = s.rule.denominator or 1
  local more, more_part = subtract(s.cost, s.part, cost, part, d)
  if more >= 0 then
    if more > 0 or more_part > 0 then charge(s.key, s.rule, s, more, more_part) end
  else
    more, more_part = subtract(cost, part, s.cost, s.part, d)
    refund(s, more, more_part, 1, id)
  end
end

local function renew(s, token)
  local all = 1
  slots(token, s.cost, function(slot)
    if call('ZSCORE', s.key, slot) then
      call('ZADD', s.key, now + s.rule.window, slot)
    else
      all = 0
    end
  end)
  if s.used > 0 then expire(s.key, now + s.rule.window) end
  return all
end

-- once says whether a token is new, and remembers it.
local function once(token, value, ttl)
  return token == '' or call('SET', token, value, 'NX', 'PX', ttl)
end

local function estimates(hits)
  local text = {}
  for i = 1, hits do text[i] = pack('<I7I7', states[i].cost, states[i].part) end
  return table.concat(text)
end

-- Verbs other than those that decide tell the state after them.
local verbs = {}

verbs[TAKE] = function(hits, n, _, _, id) decide(hits, true, n, id) end
verbs[PEEK] = function(hits, n) decide(hits, false, n) end

verbs[RESERVE] = function(hits, n, token, ttl, id)
  local again = call('EXISTS', token) == 1
  local first = decide(hits, not again, n, id)
  if first > 0 and not again then once(token, estimates(hits), ttl) end
end

verbs[CHARGE] = function(hits, _, token, ttl)
  local new = once(token, '', ttl)
  reply[#reply + 1] = pack('<I7I7', new and 1 or 0, 0)
  for i = 1, hits do
    local s = states[i]
    local at, used, rest = s.at, s.used, s.rest
    if new then charge(s.key, s.rule, s, s.cost, s.part) end
    answer(s, at, used, rest)
  end
end

local function after(hits, done)
  reply[#reply + 1] = pack('<I7I7', done, 0)
  for i = 1, hits do
    local s = states[i]
    answer(s, s.at, s.used, s.rest)
  end
end

verbs[REFUND] = function(hits, n, token, ttl, id)
  local done = 0
  if once(token, '', ttl) then
    done = n
    for i = 1, hits do
      local s = states[i]
      if s.cost > 0 or s.part > 0 then done = min(done, floor(refund(s, s.cost, s.part, n, id))) end
    end
  end
  after(hits, done)
end

verbs[SETTLE] = function(hits, _, token, _, id)
  local text = call('GET', token)
  if text and #text == 14 * hits then
    call('DEL', token)
    for i = 1, hits do settle(states[i], id, unpack('<I7I7', text, 14 * i - 13)) end
  else
    text = nil
  end
  after(hits, text and 1 or 0)
end

verbs[RENEW] = function(hits, _, _, _, id)
  local done = 1
  for i = 1, hits do
    if states[i].rule.code == 'n' then done = min(done, renew(states[i], id)) end
  end
  after(hits, done)
end

local text, at, key = ARGV[3], 1, 0
while at <= #text do
  local verb, hits, n, ttl, with_token, id
  verb, hits, n, ttl, with_token, id, at = unpack('<BBI7I7BBc0', text, at)
  for i = 1, hits do
    local s = states[i] or {}
    states[i], key = s, key + 1
    local rule
    rule, s.group, s.cost, s.part, at = unpack('<I2BI7I7', text, at)
    s.key, s.rule, s.keep = KEYS[key], rules[rule], false
    read[s.rule.method](s.key, s.rule, s)
  end
  local token = ''
  if with_token == 1 then
    key = key + 1
    token = KEYS[key]
  end
  verbs[verb](hits, n, token, ttl, id)
end
return table.concat(reply)
