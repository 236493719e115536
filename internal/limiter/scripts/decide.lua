-- decide.lua decides a batch of calls, one after the other, in one step: for each
-- call it reads and checks every counter, and only then writes. No time passes
-- and nobody else writes in between, so 20 requests for the last 5 units get 5.
--
-- KEYS     the counters of all calls, and their tokens; no other key is touched
-- ARGV[1]  the time in µs from a test or a simulator; "" means this server's
-- ARGV[2]  the rules of the batch, packed: for each its algorithm, window and
--   f a w l n  limit
--   c          limit, five borders of calendar windows
--   t          burst in µs and its numerator, a unit and its numerator, the
--              denominator, requests
-- ARGV[3]  the calls, packed. A call of verb 0 takes from one counter: how many
--   like requests it stands for, the rule, and the cost (for t in µs, and a
--   numerator). One of verb 8 takes one unit for one request, by the rule of the
--   last call of verb 0. One of verb 9 takes from several: their number, how many
--   requests, and for each rule and cost. Any other has its verb, the number of
--   its hits, how many requests it stands for, how long its token counts in ms,
--   whether it has one, and the name of its slots; then for each hit its rule,
--   cost and group.
-- Group 1 is enforced. Group 2 shadows: it never stands in the way of group 1.
--
-- The reply is packed as well: the time, then for each call how many requests
-- each group is granted (verbs 0, 8 and 9 tell of the first group only), and for
-- each hit whether its counter held garbage and three numbers of the counter's
-- state: before the call when it decides or charges, after it for the others.
-- What is left, and when to try again, is computed from them in Go. A reply of 7
-- bytes is the time alone: the borders do not reach it, and nothing was done.
--
-- Numbers are doubles, exact for integers up to 2^53; Go does the very same
-- operations, so that both agree on every bit.
--
-- A function costs something each time that the script is called, since it is
-- made anew. So the few that every take needs do it for all algorithms, and the
-- others are made when they are needed.

local MAX = 9007199254740991 -- 2^53 - 1
local ABSENT, SOUND, LONE, GARBAGE = 0, 1, 2, 3

local call, pack, unpack, table_unpack, floor = redis.call, struct.pack, struct.unpack, unpack, math.floor

local given = ARGV[1] ~= ''
local now
if given then
  now = tonumber(ARGV[1])
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- rare is what hardly any take needs.
local rare, rules, replies, filled, read, room, write, take
local function make_rare()
  local log, slots = {}, {}
  rare = {log = log, slots = slots, write = write}

  -- expiry is the millisecond at which a counter says nothing any more. Simulated
  -- time runs by itself: there a counter stays for an hour of real time or more.
  function rare.expire(key, ends)
    if given then
      call('PEXPIRE', key, math.max(math.ceil((ends - now) / 1000), 3600000))
    else
      call('PEXPIREAT', key, math.ceil(ends / 1000))
    end
  end

  -- what reads a value that is no packed state: a value of another type is
  -- garbage; any other error, such as a missing permission, is raised by the
  -- second call. A lone number counts in the present window.
  function rare.what(key, command, value)
    if type(value) == 'table' then
      if not string.find(value.err, 'WRONGTYPE', 1, true) then call(command, key) end
      return GARBAGE
    end
    if #value < 17 and string.find(value, '^%d+$') and tonumber(value) <= MAX then
      return LONE, tonumber(value)
    end
    return GARBAGE
  end

  -- SlidingLog: a sorted set with one member for each take, "total:cost", at the
  -- take's time. The total counts every unit up to and with this take (modulo
  -- 2^53), in 16 digits, so that takes of the same µs stay in order, and the
  -- units between two members are a subtraction.
  local function entry(key, rank)
    local reply = call('ZRANGE', key, rank, rank, 'WITHSCORES')
    local total, cost = string.match(reply[1] or '', '^(%d+):(%d+)$')
    local at = tonumber(reply[2])
    total, cost = tonumber(total), tonumber(cost)
    if cost and total <= MAX and cost <= MAX and at == floor(at) then return at, total, cost end
  end

  local function modulo(total) return total < 0 and total + MAX + 1 or total end

  local function append(key, at, total, cost)
    call('ZADD', key, at, string.format('%016.0f:%.0f', total, cost))
  end

  function log.read(h, key, r)
    h.flag, h.at, h.used, h.rest, h.ends, h.more = ABSENT, 0, 0, 0, now, 0
    local size = redis.pcall('ZCARD', key)
    if size == 0 then return end
    h.flag = type(size) == 'number' and SOUND or rare.what(key, 'ZCARD', size)
    local last, total
    if h.flag == SOUND then last, total = entry(key, -1) end
    if not last or rare.ahead(last, r.window) then
      h.flag = GARBAGE
      return
    end
    h.ends = last + r.window
    local gone = call('ZCOUNT', key, '-inf', now - r.window)
    if gone >= size then return end
    local first, first_total, cost = entry(key, gone)
    if first then
      h.at, h.used, h.rest, h.more = last, cost + modulo(total - first_total), last, total
    else
      h.flag = GARBAGE
    end
  end

  function log.take(h, key, r, units)
    if h.flag == GARBAGE then call('DEL', key) end
    local total, later = h.more + units, 0
    if h.more >= MAX + 1 - units then
      -- A total that starts again at 0 sorts after the last one by its time.
      total, later = h.more - (MAX + 1 - units), 1
    end
    h.at, h.used, h.more = math.max(now, h.at + later), h.used + units, total
    call('ZREMRANGEBYSCORE', key, '-inf', h.at - r.window)
    append(key, h.at, total, units)
    rare.expire(key, h.at + r.window)
  end

  -- The newest units go first. Others may have been taken after ours; units are
  -- alike, and the two calls of one request are a moment apart.
  function log.give(h, key, r, units)
    while units > 0 do
      local at, total, cost = entry(key, -1)
      if not at then break end
      call('ZPOPMAX', key)
      if cost > units then append(key, at, modulo(total - units), cost - units) end
      units = units - cost
    end
    log.read(h, key, r)
  end

  -- await finds the take at whose end a refused hit fits, by bisection.
  function log.await(h, key, r, cost)
    local need = h.used - (r.limit - cost)
    if cost > r.limit or need <= 0 then return h.rest end
    local low, high = call('ZCOUNT', key, '-inf', now - r.window), call('ZCARD', key) - 1
    local first, first_total, first_cost = entry(key, low)
    while first and low < high do
      local middle = floor((low + high) / 2)
      local at, total = entry(key, middle)
      if not at then return h.rest end
      if first_cost + modulo(total - first_total) >= need then high = middle else low = middle + 1 end
    end
    return entry(key, low) or h.rest
  end

  -- Concurrency: a sorted set with the slots in use, each at the time at which it
  -- ends by itself unless it is renewed.
  function slots.read(h, key, r)
    h.flag, h.at, h.used, h.rest, h.ends = ABSENT, now, 0, 0, now + r.window
    local size = redis.pcall('ZCARD', key)
    if size == 0 then return end
    h.flag = type(size) == 'number' and SOUND or rare.what(key, 'ZCARD', size)
    if h.flag == SOUND then
      -- A slot that ends later was taken before the clock went back, and counts
      -- again when it has been renewed.
      local latest = now + r.window + math.max(r.window, 60000000)
      h.used = call('ZCOUNT', key, '(' .. string.format('%.0f', now), string.format('%.0f', latest))
    end
  end

  function slots.take(h, key, r, units, name)
    if h.flag == GARBAGE then call('DEL', key) end
    call('ZREMRANGEBYSCORE', key, '-inf', now)
    for i = 1, units do call('ZADD', key, now + r.window, name .. ':' .. i) end
    h.used = h.used + units
    rare.expire(key, now + r.window)
  end

  function slots.give(h, key, r, units, name)
    local back = 0
    for i = 1, units do back = back + call('ZREM', key, name .. ':' .. i) end
    slots.read(h, key, r)
    return back
  end

  function slots.renew(key, r, units, name)
    local all = 1
    for i = 1, units do
      local slot = name .. ':' .. i
      local ends = call('ZSCORE', key, slot)
      if ends and tonumber(ends) > now then
        call('ZADD', key, now + r.window, slot)
        rare.expire(key, now + r.window)
      else
        all = 0
      end
    end
    return all
  end

  -- Spans are µs and the numerator of a fraction, below the denominator d.

  -- times multiplies a span. Go sees to it that m denominators are below 2^53.
  function rare.times(cost, part, m, d)
    part = part * m
    return cost * m + floor(part / d), math.fmod(part, d)
  end

  function rare.subtract(a, a_part, b, b_part, d)
    if a_part < b_part then return a - b - 1, a_part + (d - b_part) end
    return a - b, a_part - b_part
  end

  -- fits is how many of n costs fit into a gap. The quotient is off by one at most.
  function rare.fits(gap, gap_part, cost, part, n, d)
    if gap < 0 then return 0 end
    local function within(m)
      local whole, rest = rare.times(cost, part, m, d)
      return whole < gap or (whole == gap and rest <= gap_part)
    end
    local m = math.min(n, floor((gap + gap_part / d) / (cost + part / d)))
    if m > 0 and not within(m) then return m - 1 end
    if m < n and within(m + 1) then return m + 1 end
    return m
  end

  -- tidy leaves a counter alone, unless it is garbage, does not say which window
  -- it counts, or would stay for ever.
  function rare.tidy(h, key, r)
    if h.flag == GARBAGE then
      call('DEL', key)
    elseif h.flag == LONE then
      rare.write(h, key, r)
    elseif h.flag == SOUND and call('PTTL', key) == -1 then
      rare.expire(key, h.ends)
    end
  end

  -- general is every call but those of verbs 0, 8 and 9.
  function rare.general()
    local TAKE, PEEK, REFUND, CHARGE, RESERVE, SETTLE, RENEW = 1, 2, 3, 4, 5, 6, 7
    local hits, count, name = {}, 0, ''

    local function tell(...)
      for i = 1, select('#', ...) do replies[filled + i] = select(i, ...) end
      filled = filled + select('#', ...)
    end

    -- decide grants as many of n requests as fit all hits, and takes their units. It
    -- tells the states before.
    local function decide(n, shadows, taking)
      local m = {n, n}
      for group = 1, shadows and 2 or 1 do
        if group == 2 then m[2] = m[1] end
        for i = 1, count do
          local h = hits[i]
          if h.group == group and m[group] > 0 then
            m[group] = room(h, h.rule, h.cost, h.part, m[group])
          end
        end
      end
      if not shadows then m[2] = m[1] end
      tell(m[1], m[2])
      for i = 1, count do
        local h = hits[i]
        local key, r, garbage, at, used, rest = h.key, h.rule, h.flag == GARBAGE and 1 or 0, h.at, h.used, h.rest
        local granted = m[h.group]
        if taking and granted > 0 and (h.cost > 0 or h.part > 0) then
          take(h, key, r, h.cost, h.part, granted, name)
        else
          rare.tidy(h, key, r)
        end
        if r.code == 'l' then rest = rare.log.await(h, key, r, h.cost) end
        tell(garbage, at, used, rest)
      end
      return m
    end

    local function after(done)
      tell(done, 0)
      for i = 1, count do
        local h = hits[i]
        tell(h.flag == GARBAGE and 1 or 0, h.at, h.used, h.rest)
      end
    end

    -- charge takes what a request has had already, as far as there is room.
    local function charge(h, cost, part)
      local r = h.rule
      if cost <= 0 and part <= 0 then return end
      if r.code == 't' and room(h, r, cost, part, 1) == 0 then
        if h.used == r.burst and h.rest == r.burst_part then return end
        h.used, h.rest = r.burst, r.burst_part
        write(h, h.key, r)
      elseif r.code == 't' then
        take(h, h.key, r, cost, part, 1)
      else
        local m = room(h, r, 1, 0, cost)
        if m > 0 then take(h, h.key, r, 1, 0, m, name) end
      end
    end

    -- refund gives a cost back m times, as far as it is there, and tells how often
    -- it was. Units of a window that has passed are not given back.
    local function refund(h, cost, part, m)
      local key, r = h.key, h.rule
      if (cost <= 0 and part <= 0) or h.flag == ABSENT or h.flag == GARBAGE then return 0 end
      if r.code == 't' then
        local d = r.denominator
        local back = rare.fits(h.used, h.rest, cost, part, m, d)
        if back == m then
          local whole, more = rare.times(cost, part, m, d)
          h.used, h.rest = rare.subtract(h.used, h.rest, whole, more, d)
        else
          h.used, h.rest = 0, 0
        end
        write(h, key, r)
        return back
      end
      if r.code == 'n' then return rare.slots.give(h, key, r, cost, name) / cost end
      local units = math.min(cost * m, h.used)
      if r.code == 'l' then
        rare.log.give(h, key, r, units)
      elseif units > 0 then
        h.used = h.used - units
        write(h, key, r)
      end
      return floor(units / cost)
    end

    -- revalue is the span of an estimate with the present numbers, as read does it.
    local function revalue(r, cost, part, rate)
      if rate ~= r.requests then cost, part = floor(cost * rate / r.requests), 0 end
      if cost > r.burst or (cost == r.burst and part > r.burst_part) then return r.burst, r.burst_part end
      return cost, part
    end

    -- settle makes of an estimate what it really was. Slots are no estimate: they
    -- stay until the request ends. What was not taken has no price, and is left.
    local function settle(h, cost, part, rate)
      local r = h.rule
      if r.code == 'n' or cost > MAX then return end
      local d = r.denominator or 1
      if r.code == 't' then
        cost, part = revalue(r, cost, part, rate)
      else
        cost, part = math.min(cost, r.limit), 0
      end
      local above, above_part = rare.subtract(h.cost, h.part, cost, part, d)
      if above < 0 then
        local below, below_part = rare.subtract(cost, part, h.cost, h.part, d)
        refund(h, below, below_part, 1)
      else
        charge(h, above, above_part)
      end
    end

    -- once says whether a token is new, and remembers it.
    local function once(token, value, ttl)
      return token == '' or call('SET', token, value, 'NX', 'PX', ttl)
    end

    local verbs = {}

    verbs[TAKE] = function(n, _, _, shadows) decide(n, shadows, true) end
    verbs[PEEK] = function(n, _, _, shadows) decide(n, shadows, false) end

    verbs[RESERVE] = function(n, token, ttl, shadows)
      local again = call('EXISTS', token) == 1
      local granted = decide(n, shadows, not again)
      if granted[1] == 0 or again then return end
      local estimates = {}
      for i = 1, count do
        local h = hits[i]
        estimates[i] = pack('<I7I7I7', granted[h.group] > 0 and h.cost or MAX + 1, h.part, h.rule.requests or 0)
      end
      once(token, table.concat(estimates), ttl)
    end

    verbs[CHARGE] = function(_, token, ttl)
      local new = once(token, '', ttl)
      after(new and 1 or 0)
      if not new then return end
      for i = 1, count do charge(hits[i], hits[i].cost, hits[i].part) end
    end

    verbs[REFUND] = function(n, token, ttl)
      local done = 0
      if once(token, '', ttl) then
        done = n
        for i = 1, count do
          local h = hits[i]
          if h.cost > 0 or h.part > 0 then done = math.min(done, refund(h, h.cost, h.part, n)) end
        end
      end
      after(done)
    end

    verbs[SETTLE] = function(_, token)
      local estimates = call('GET', token)
      local known = estimates and #estimates == 21 * count
      if known then
        call('DEL', token)
        for i = 1, count do
          local cost, part, rate = unpack('<I7I7I7', estimates, 21 * i - 20)
          settle(hits[i], cost, part, rate)
        end
      end
      after(known and 1 or 0)
    end

    verbs[RENEW] = function()
      local done = 1
      for i = 1, count do
        local h = hits[i]
        if h.rule.code == 'n' then done = math.min(done, rare.slots.renew(h.key, h.rule, h.cost, name)) end
      end
      after(done)
    end

    return function(text, at, key)
      local verb, n, ttl, with_token, shadows
      verb, count, n, ttl, with_token, name, at = unpack('<BBI7I7BBc0', text, at)
      for i = 1, count do
        local h, number = hits[i] or {}, nil
        key, hits[i] = key + 1, h
        number, h.cost, h.part, h.group, at = unpack('<I2I7I7B', text, at)
        h.key, h.rule, shadows = KEYS[key], rules[number], shadows or h.group == 2
        read(h, h.key, h.rule)
        -- What decides tidies; the others start anew at once.
        if h.flag == GARBAGE and verb ~= TAKE and verb ~= PEEK and verb ~= RESERVE then call('DEL', h.key) end
      end
      local token = ''
      if with_token == 1 then
        key = key + 1
        token = KEYS[key]
      end
      verbs[verb](n, token, ttl, shadows)
      return at, key
    end
  end

  -- ahead tells a time that no step of the clock explains: the counter would
  -- refuse for too long. Smaller steps back are waited for, so that they give
  -- nobody a second helping.
  function rare.ahead(at, window) return at > now + math.max(window, 60000000) end
end

-- read tells what a counter holds: h.flag, three numbers (a time, what is used,
-- and a rest: see state in Go), h.ends, when the counter is of no use any more,
-- and h.keep, whether its expiry can stay.
--
-- f a c  FixedWindow: start, count. The window begins at multiples of its length
--        (f), with the first request after the last one (a), or at the borders of
--        a calendar (c).
-- w      SlidingWindow: start, count, previous.
-- t      TokenBucket: lead, numerator, time, requests. The lead is the time in µs
--        that an empty bucket's debt takes to be paid at a rate of so many
--        requests per window; it shrinks as time passes.
function read(h, key, r)
  local code, size = r.code, r.size
  if not size then
    if not rare then make_rare() end
    return rare[code == 'l' and 'log' or 'slots'].read(h, key, r)
  end
  local value, flag = redis.pcall('GET', key), SOUND
  local a, b, c, d
  if not value then
    flag = ABSENT
  elseif #value == size then
    a, b, c, d = unpack(r.format, value)
  else
    if not rare then make_rare() end
    flag, a = rare.what(key, 'GET', value)
  end
  local window = r.window

  if code == 't' then
    if flag ~= SOUND then
      if flag == LONE then flag = GARBAGE end
      a, b, c, d = 0, 0, now, r.requests
    elseif c > now or a > MAX or b >= r.denominator or d ~= r.requests then
      if not rare then make_rare() end
      if rare.ahead(c, window) or a > MAX or d > MAX or (d == r.requests and b >= r.denominator) then
        flag, a, b, c, d = GARBAGE, 0, 0, now, r.requests
      end
    end
    h.cell = flag == SOUND and d == r.requests and floor((c + a) / r.slack)
    -- Changed numbers hold since the last take, whose units are kept.
    if d ~= r.requests then a, b = floor(a * d / r.requests), 0 end
    if a > r.burst or (a == r.burst and b > r.burst_part) then a, b = r.burst, r.burst_part end
    if c < now then
      a = a - (now - c)
      if a < 0 then a, b = 0, 0 end
      c = now
    end
    h.flag, h.at, h.used, h.rest, h.ends = flag, c, a, b, c + a + 1 + r.slack
    return
  end

  local begins, keep, previous = r.begins, flag == SOUND, 0
  if code == 'w' then previous = keep and c or 0 end
  if not keep then a, b = nil, flag == LONE and a or 0 end
  if code == 'a' then begins = a and a + window > now and a <= now and a or now end
  a = a or begins
  if a ~= begins or b > MAX or previous > MAX then
    if not rare then make_rare() end
    if rare.ahead(a, window) or b > MAX or previous > MAX or (r.aligned and math.fmod(a, window) ~= 0) then
      flag, keep, a, b, previous = GARBAGE, false, begins, 0, 0
    elseif a < begins then
      previous = code == 'w' and a == begins - window and b or 0
      keep, a, b = false, begins, 0
    end
  end
  h.flag, h.at, h.used, h.rest, h.keep = flag, a, b, previous, keep
  h.ends = a + (code == 'w' and 2 * window or window)
end

-- room is how many of n like requests fit. What a SlidingWindow's previous window
-- counted weighs less the further the present one has come.
function room(h, r, cost, part, n)
  if cost == 0 and part == 0 then return n end
  local left
  if r.code == 't' then
    local d, left_part = r.denominator, r.burst_part - h.rest
    left = r.burst - h.used
    if left_part < 0 then left, left_part = left - 1, left_part + d end
    if n == 1 then return (cost < left or (cost == left and part <= left_part)) and 1 or 0 end
    if not rare then make_rare() end
    return rare.fits(left, left_part, cost, part, n, d)
  end
  left = r.limit - h.used
  if r.code == 'w' and h.rest > 0 then
    local elapsed = now > h.at and now - h.at or 0
    left = left - math.min(math.ceil(h.rest * (r.window - elapsed) / r.window), h.rest)
  end
  local m = floor(left / cost)
  return m < 0 and 0 or m < n and m or n
end

-- write makes a counter that is a string say what h says now. The expiry stays
-- where it is far enough, since it costs more than all the rest; a TokenBucket's
-- is moved when the debt's end has passed a multiple of the slack, and then to a
-- slack beyond it.
function write(h, key, r)
  local text, keep, code = nil, h.keep, r.code
  if code == 't' then
    local ends = h.at + h.used
    keep, h.ends = h.cell == floor(ends / r.slack), ends + 1 + r.slack
    text = pack('<I7I7I7I7', h.used, h.rest, h.at, r.requests)
  elseif code == 'w' then
    text = pack('<I7I7I7', h.at, h.used, h.rest)
  else
    text = pack('<I7I7', h.at, h.used)
  end
  if keep then
    call('SET', key, text, 'KEEPTTL')
  elseif given then
    call('SET', key, text, 'PX', math.max(math.ceil((h.ends - now) / 1000), 3600000))
  else
    call('SET', key, text, 'PXAT', math.ceil(h.ends / 1000))
  end
end

-- take adds a cost m times.
function take(h, key, r, cost, part, m, name)
  if not r.size then
    return rare[r.code == 'l' and 'log' or 'slots'].take(h, key, r, cost * m, name)
  end
  h.used = h.used + cost * m
  if part > 0 then
    part = part * m
    local d = r.denominator
    local more = floor(part / d)
    part = part - more * d
    if h.rest >= d - part then
      h.used, h.rest = h.used + more + 1, h.rest - (d - part)
    else
      h.used, h.rest = h.used + more, h.rest + part
    end
  end
  write(h, key, r)
end

-- The rules -------------------------------------------------------------------

rules = {}
do
  local text, at, size = ARGV[2], 1, #ARGV[2]
  while at <= size do
    local code, window = nil, nil
    code, window, at = unpack('<c1I7', text, at)
    if code == 't' then
      local burst, burst_part, unit, unit_part, denominator, requests
      burst, burst_part, unit, unit_part, denominator, requests, at = unpack('<I7I7I7I7I7I7', text, at)
      rules[#rules + 1] = {
        code = code, window = window, slack = window / 4, format = '<I7I7I7I7', size = 28,
        burst = burst, burst_part = burst_part, denominator = denominator, requests = requests,
        unit = unit, unit_part = unit_part,
      }
    else
      local r = {code = code, window = window, unit = 1, unit_part = 0}
      r.limit, at = unpack('<I7', text, at)
      if code == 'c' then
        local borders = {unpack('<I7I7I7I7I7', text, at)}
        at = borders[6]
        for i = 1, 4 do
          if borders[i] <= now and now < borders[i + 1] then
            r.begins, r.window = borders[i], borders[i + 1] - borders[i]
          end
        end
        if not r.begins then return pack('<I7', now) end
      elseif code == 'f' or code == 'w' then
        r.begins, r.aligned = now - math.fmod(now, window), true
      end
      if code == 'w' then
        r.format, r.size = '<I7I7I7', 21
      elseif code ~= 'l' and code ~= 'n' then
        r.format, r.size = '<I7I7', 14
      end
      rules[#rules + 1] = r
    end
  end
end

-- The calls -------------------------------------------------------------------

-- Numbers of the reply, which is packed at the end.
replies, filled = {now, 0, 0, 0, 0, 0}, 1

-- The calls of verbs 0, 8 and 9 do what decide does, for one hit, or for several
-- that are all enforced.
local text, at, size, key = ARGV[3], 1, #ARGV[3], 0
local h = {flag = 0, at = 0, used = 0, rest = 0, ends = 0, keep = false, cell = false}
local several, other, r = {}, nil, nil
while at <= size do
  local verb = string.byte(text, at)
  if verb == 0 or verb == 8 then
    local n, cost, part = 1, nil, nil
    if verb == 0 then
      local number
      verb, n, number, cost, part, at = unpack('<BI7I2I7I7', text, at)
      r = rules[number]
    else
      cost, part, at = r.unit, r.unit_part, at + 1
    end
    key = key + 1
    local name = KEYS[key]
    read(h, name, r)
    local m = room(h, r, cost, part, n)
    local time, used, rest = h.at, h.used, h.rest
    if m > 0 and (cost > 0 or part > 0) then
      take(h, name, r, cost, part, m)
    else
      if not rare then make_rare() end
      rare.tidy(h, name, r)
    end
    if r.code == 'l' then rest = rare.log.await(h, name, r, cost) end
    replies[filled + 1], replies[filled + 2] = m, h.flag == GARBAGE and 1 or 0
    replies[filled + 3], replies[filled + 4], replies[filled + 5] = time, used, rest
    filled = filled + 5
  elseif verb == 9 then
    local count, n, m
    verb, count, n, at = unpack('<BBI7', text, at)
    m = n
    local first = filled + 1
    filled = first
    for i = 1, count do
      local x, number = several[i], nil
      if not x then
        x = {flag = 0, at = 0, used = 0, rest = 0, ends = 0, keep = false, cell = false, cost = 0, part = 0, key = '', rule = r}
        several[i] = x
      end
      number, x.cost, x.part, at = unpack('<I2I7I7', text, at)
      local its, name = rules[number], KEYS[key + i]
      x.key, x.rule = name, its
      read(x, name, its)
      if m > 0 then m = room(x, its, x.cost, x.part, m) end
      replies[filled + 1], replies[filled + 2] = x.flag == GARBAGE and 1 or 0, x.at
      replies[filled + 3], replies[filled + 4] = x.used, x.rest
      filled = filled + 4
    end
    replies[first], key = m, key + count
    for i = 1, count do
      local x = several[i]
      if m > 0 and (x.cost > 0 or x.part > 0) then
        take(x, x.key, x.rule, x.cost, x.part, m)
      else
        if not rare then make_rare() end
        rare.tidy(x, x.key, x.rule)
      end
      if x.rule.code == 'l' then replies[first + 4 * i] = rare.log.await(x, x.key, x.rule, x.cost) end
    end
  else
    if not rare then make_rare() end
    other = other or rare.general()
    at, key = other(text, at, key)
  end
end

if filled == 6 then return pack('<I7I7I7I7I7I7', table_unpack(replies, 1, 6)) end
local parts = {}
for i = 1, filled, 100 do
  local last = math.min(i + 99, filled)
  parts[#parts + 1] = pack('<' .. string.rep('I7', last - i + 1), table_unpack(replies, i, last))
end
return table.concat(parts)
