-- decide.lua decides a batch of calls, one after the other, in one step: for each
-- call it reads and checks every counter, and only then writes. No time passes
-- and nobody else writes in between, so 20 requests for the last 5 units get 5.
--
-- KEYS     the counters of all calls, and their tokens; no other key is touched
-- ARGV[1]  the time in µs from a test or a simulator; "" means this server's
-- ARGV[2]  the rules of the batch, packed: for each its algorithm, window and
--   f a w l n  limit
--   c          limit, five borders of calendar windows
--   t          burst in µs and its numerator, the denominator, requests
-- ARGV[3]  the calls, packed. Verb 0 is a run of takes that are alike but for
--   their counters: how many there are, how many counters each has, how many
--   requests it stands for, and for each of the counters the rule, and the cost
--   (for t in µs, and a numerator). No counter is in a run twice. Any other call
--   has its verb, the number of its hits, how many requests it stands for, how
--   long its token counts in ms, whether it has one, and the name of its slots;
--   then for each hit its rule, cost and group.
-- Group 1 is enforced. Group 2 shadows: it never stands in the way of group 1.
--
-- The reply is packed as well: the time, then for each call how many requests
-- each group is granted, and for each hit whether its counter held garbage and
-- three numbers of the counter's state: before the call when it decides or
-- charges, after it for the others. A call of a run has a byte in front and tells of
-- the first group only; where the byte is 1, all was granted and nothing was
-- garbage, and two numbers are all that is told of a counter: its time is that at the
-- front of the reply.
-- What is left, and when to try again, is computed from them in Go. A reply of 7
-- bytes is the time alone: the borders do not reach it, and nothing was done.
--
-- Numbers are doubles, exact for integers up to 2^53; Go does the very same
-- operations, so that both agree on every bit.
--
-- Functions and tables are made anew in each call of the script. A function costs more
-- the more locals it captures, and a table more when it grows: so some are made with nil,
-- false or '' in the places that they will need. Functions that are not always needed are
-- made when they are. What most calls are, takes from TokenBuckets that are in order, is
-- done without any: that is a third of the time.

local call, pack, unpack, table_unpack = redis.call, struct.pack, struct.unpack, unpack

local given = ARGV[1] ~= ''
local now
if given then
  now = tonumber(ARGV[1])
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- steps makes what calls consist of, for all algorithms: write, take_all, which does
-- one call of a run, and other, which does the calls of other verbs than 0. It captures
-- nothing.
local function steps(rules, now, given)
  local call, pcall, pack, unpack, table_unpack = redis.call, redis.pcall, struct.pack, struct.unpack, _G.unpack
  local floor = math.floor
  local GARBAGE = 3 -- one of read's flags

  -- ends is when a counter is of no use any more.
  local function ends(r, at, used)
    if r.code == 't' then return at + used + 1 + r.window / 4 end
    return at + (r.code == 'w' and 2 * r.window or r.window)
  end

  -- write makes a counter that is a string say three numbers. The expiry stays
  -- where it is far enough, since it costs more than all the rest; a TokenBucket's
  -- is moved when the debt's end has passed a multiple of the slack, a quarter of the
  -- window, and then to a slack beyond it.
  local function write(key, r, at, used, rest, mark)
    local text, code = nil, r.code
    if code == 't' then
      mark = mark == floor((at + used) / (r.window / 4))
      text = pack('<I7I7I7I7', used, rest, at, r.requests)
    elseif code == 'w' then
      text = pack('<I7I7I7', at, used, rest)
    else
      text = pack('<I7I7', at, used)
    end
    if mark then
      call('SET', key, text, 'KEEPTTL')
    elseif given then
      call('SET', key, text, 'PX', math.max(math.ceil((ends(r, at, used) - now) / 1000), 3600000))
    else
      call('SET', key, text, 'PXAT', math.ceil(ends(r, at, used) / 1000))
    end
  end

  local MAX = 9007199254740991 -- 2^53 - 1
  local ABSENT, SOUND, LONE = 0, 1, 2

  local rare, read, room, take, finish

  -- make_rare makes what hardly any take needs.
  local function make_rare()
    local log, slots = {}, {}
    rare = {log = log, slots = slots}

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

    function log.read(key, r)
      local size = pcall('ZCARD', key)
      if size == 0 then return ABSENT, 0, 0, 0, 0 end
      local flag = type(size) == 'number' and SOUND or rare.what(key, 'ZCARD', size)
      local last, total
      if flag == SOUND then last, total = entry(key, -1) end
      if not last or rare.ahead(last, r.window) then return GARBAGE, 0, 0, 0, 0 end
      local gone = call('ZCOUNT', key, '-inf', now - r.window)
      if gone >= size then return SOUND, 0, 0, 0, 0 end
      local first, first_total, cost = entry(key, gone)
      if not first then return GARBAGE, 0, 0, 0, 0 end
      return SOUND, last, cost + modulo(total - first_total), last, total
    end

    function log.take(key, r, flag, at, used, rest, mark, units)
      if flag == GARBAGE then call('DEL', key) end
      local total, later = mark + units, 0
      if mark >= MAX + 1 - units then
        -- A total that starts again at 0 sorts after the last one by its time.
        total, later = mark - (MAX + 1 - units), 1
      end
      at = math.max(now, at + later)
      call('ZREMRANGEBYSCORE', key, '-inf', at - r.window)
      append(key, at, total, units)
      rare.expire(key, at + r.window)
      return at, used + units, rest
    end

    -- The newest units go first. Others may have been taken after ours; units are
    -- alike, and the two calls of one request are a moment apart.
    function log.give(key, r, units)
      while units > 0 do
        local at, total, cost = entry(key, -1)
        if not at then break end
        call('ZPOPMAX', key)
        if cost > units then
          append(key, at, modulo(total - units), cost - units)
          rare.expire(key, at + r.window) -- it went with the last entry
        end
        units = units - cost
      end
    end

    -- await finds the take at whose end a refused hit fits, by bisection.
    function log.await(key, r, used, rest, cost)
      local need = used - (r.limit - cost)
      if cost > r.limit or need <= 0 then return rest end
      local low, high = call('ZCOUNT', key, '-inf', now - r.window), call('ZCARD', key) - 1
      local first, first_total, first_cost = entry(key, low)
      while first and low < high do
        local middle = floor((low + high) / 2)
        local at, total = entry(key, middle)
        if not at then return rest end
        if first_cost + modulo(total - first_total) >= need then high = middle else low = middle + 1 end
      end
      return entry(key, low) or rest
    end

    -- Concurrency: a sorted set with the slots in use, each at the time at which it
    -- ends by itself unless it is renewed.
    function slots.read(key, r)
      local size = pcall('ZCARD', key)
      if size == 0 then return ABSENT, now, 0, 0 end
      local flag, used = type(size) == 'number' and SOUND or rare.what(key, 'ZCARD', size), 0
      if flag == SOUND then
        -- A slot that ends later was taken before the clock went back, and counts
        -- again when it has been renewed.
        local latest = now + r.window + math.max(r.window, 60000000)
        used = call('ZCOUNT', key, '(' .. string.format('%.0f', now), string.format('%.0f', latest))
      end
      return flag, now, used, 0
    end

    function slots.take(key, r, flag, used, units, name)
      if flag == GARBAGE then call('DEL', key) end
      call('ZREMRANGEBYSCORE', key, '-inf', now)
      for i = 1, units do call('ZADD', key, now + r.window, name .. ':' .. i) end
      rare.expire(key, now + r.window)
      return now, used + units, 0
    end

    function slots.give(key, units, name)
      local back = 0
      for i = 1, units do back = back + call('ZREM', key, name .. ':' .. i) end
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
    function rare.tidy(key, r, flag, at, used, rest)
      if flag == GARBAGE then
        call('DEL', key)
      elseif flag == LONE then
        write(key, r, at, used, rest, false)
      elseif flag == SOUND and call('PTTL', key) == -1 then
        rare.expire(key, ends(r, at, used))
      end
    end

    -- general is every call but those of verb 0.
    function rare.general()
      local TAKE, PEEK, REFUND, CHARGE, RESERVE, SETTLE, RENEW, RESET = 1, 2, 3, 4, 5, 6, 7, 8
      local hits, count, name = {}, 0, ''
      local numbers, told = {}, 0

      local function load(h) h.flag, h.at, h.used, h.rest, h.mark = read(h.key, h.rule) end

      local function add(h, cost, part, m)
        h.at, h.used, h.rest = take(h.key, h.rule, h.flag, h.at, h.used, h.rest, h.mark, cost, part, m, name)
      end

      local function tell(...)
        for i = 1, select('#', ...) do numbers[told + i] = select(i, ...) end
        told = told + select('#', ...)
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
              m[group] = room(h.rule, h.at, h.used, h.rest, h.cost, h.part, m[group])
            end
          end
        end
        if not shadows then m[2] = m[1] end
        tell(m[1], m[2])
        for i = 1, count do
          local h = hits[i]
          local taken = taking and m[h.group] or 0
          tell(h.flag == GARBAGE and 1 or 0, h.at, h.used,
            finish(h.key, h.rule, h.flag, h.at, h.used, h.rest, h.mark, h.cost, h.part, taken, name))
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
        if r.code == 't' and room(r, h.at, h.used, h.rest, cost, part, 1) == 0 then
          if h.used == r.burst and h.rest == r.burst_part then return end
          h.used, h.rest = r.burst, r.burst_part
          write(h.key, r, h.at, h.used, h.rest, h.mark)
        elseif r.code == 't' then
          add(h, cost, part, 1)
        else
          local m = room(r, h.at, h.used, h.rest, 1, 0, cost)
          if m > 0 then add(h, 1, 0, m) end
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
          write(key, r, h.at, h.used, h.rest, h.mark)
          return back
        end
        if r.code == 'n' then
          local back = rare.slots.give(key, cost, name)
          load(h)
          return back / cost
        end
        local units = math.min(cost * m, h.used)
        if r.code == 'l' then
          rare.log.give(key, r, units)
          load(h)
        elseif units > 0 then
          h.used = h.used - units
          write(key, r, h.at, h.used, h.rest, h.mark)
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

      verbs[RESET] = function()
        for i = 1, count do
          call('DEL', hits[i].key)
          load(hits[i])
        end
        after(1)
      end

      return function(text, at, key)
        local verb, n, ttl, with_token, shadows
        verb, count, n, ttl, with_token, name, at = unpack('<BBI7I7BBc0', text, at)
        for i = 1, count do
          local h, number = hits[i] or {}, nil
          key, hits[i] = key + 1, h
          number, h.cost, h.part, h.group, at = unpack('<I2I7I7B', text, at)
          h.key, h.rule, shadows = KEYS[key], rules[number], shadows or h.group == 2
          load(h)
          -- What decides tidies; the others start anew at once.
          if h.flag == GARBAGE and verb ~= TAKE and verb ~= PEEK and verb ~= RESERVE then call('DEL', h.key) end
        end
        local token = ''
        if with_token == 1 then
          key = key + 1
          token = KEYS[key]
        end
        told = 0
        verbs[verb](n, token, ttl, shadows)
        return at, key, pack('<' .. string.rep('I7', told), table_unpack(numbers, 1, told))
      end
    end

    -- ahead tells a time that no step of the clock explains: the counter would
    -- refuse for too long. Smaller steps back are waited for, so that they give
    -- nobody a second helping.
    function rare.ahead(at, window) return at > now + math.max(window, 60000000) end
  end

  -- read tells what a counter holds: its flag, three numbers (a time, what is used,
  -- and a rest: see state in Go), and a mark: what a write has to know of what was
  -- there. That is whether the expiry can stay, for a TokenBucket the slack in which
  -- the debt ends, for a SlidingLog the total of its last take.
  --
  -- f a c  FixedWindow: start, count. The window begins at multiples of its length
  --        (f), with the first request after the last one (a), or at the borders of
  --        a calendar (c).
  -- w      SlidingWindow: start, count, previous.
  -- t      TokenBucket: lead, numerator, time, requests. The lead is the time in µs
  --        that an empty bucket's debt takes to be paid at a rate of so many
  --        requests per window; it shrinks as time passes.
  function read(key, r)
    local code, size, window = r.code, r.size, r.window
    if not size then
      if not rare then make_rare() end
      return rare[code == 'l' and 'log' or 'slots'].read(key, r)
    end
    local value, flag = pcall('GET', key), SOUND
    local a, b, c, d
    if not value then
      flag = ABSENT
    elseif #value == size then
      a, b, c, d = unpack(r.format, value)
    else
      if not rare then make_rare() end
      flag, a = rare.what(key, 'GET', value)
    end

    if code == 't' then
      local requests = r.requests
      if flag ~= SOUND then return flag == ABSENT and ABSENT or GARBAGE, now, 0, 0, false end
      local mark = floor((c + a) / (r.window / 4))
      if c > now or a > MAX or b >= r.denominator or d ~= requests then
        if not rare then make_rare() end
        if rare.ahead(c, window) or a > MAX or d > MAX or (d == requests and b >= r.denominator) then
          return GARBAGE, now, 0, 0, false
        end
        -- Changed numbers hold since the last take, whose units are kept.
        if d ~= requests then a, b, mark = floor(a * d / requests), 0, false end
      end
      if a > r.burst or (a == r.burst and b > r.burst_part) then a, b = r.burst, r.burst_part end
      if c < now then
        a = a - (now - c)
        if a < 0 then a, b = 0, 0 end
        c = now
      end
      return SOUND, c, a, b, mark
    end

    local begins, keep, previous = r.begins, flag == SOUND, 0
    if code == 'w' then previous = keep and c or 0 end
    if not keep then a, b = nil, flag == LONE and a or 0 end
    if code == 'a' then begins = a and a + window > now and a <= now and a or now end
    a = a or begins
    if a ~= begins or b > MAX or previous > MAX then
      if not rare then make_rare() end
      if rare.ahead(a, window) or b > MAX or previous > MAX or (r.aligned and math.fmod(a, window) ~= 0) then
        return GARBAGE, begins, 0, 0, false
      elseif a < begins then
        previous = code == 'w' and a == begins - window and b or 0
        keep, a, b = false, begins, 0
      end
    end
    return flag, a, b, previous, keep
  end

  -- room is how many of n like requests fit. What a SlidingWindow's previous window
  -- counted weighs less the further the present one has come.
  function room(r, at, used, rest, cost, part, n)
    if cost == 0 and part == 0 then return n end
    local left
    if r.code == 't' then
      local left_part = r.burst_part - rest
      left = r.burst - used
      if left_part < 0 then left, left_part = left - 1, left_part + r.denominator end
      if n == 1 then return (cost < left or (cost == left and part <= left_part)) and 1 or 0 end
      if not rare then make_rare() end
      return rare.fits(left, left_part, cost, part, n, r.denominator)
    end
    left = r.limit - used
    if r.code == 'w' and rest > 0 then
      local elapsed = now > at and now - at or 0
      left = left - math.min(math.ceil(rest * (r.window - elapsed) / r.window), rest)
    end
    local m = floor(left / cost)
    return m < 0 and 0 or m < n and m or n
  end

  -- take adds a cost m times, and returns the counter's three numbers after it.
  function take(key, r, flag, at, used, rest, mark, cost, part, m, name)
    if not r.size then
      if r.code == 'l' then return rare.log.take(key, r, flag, at, used, rest, mark, cost * m) end
      return rare.slots.take(key, r, flag, used, cost * m, name)
    end
    used = used + cost * m
    if part > 0 then
      part = part * m
      local d = r.denominator
      local more = floor(part / d)
      part = part - more * d
      if rest >= d - part then
        used, rest = used + more + 1, rest - (d - part)
      else
        used, rest = used + more, rest + part
      end
    end
    write(key, r, at, used, rest, mark)
    return at, used, rest
  end

  -- finish takes a cost m times if there is anything to take, and otherwise leaves
  -- the counter tidy. It returns the rest that the reply tells.
  function finish(key, r, flag, at, used, rest, mark, cost, part, m, name)
    if m > 0 and (cost > 0 or part > 0) then
      local _
      _, used = take(key, r, flag, at, used, rest, mark, cost, part, m, name)
    else
      if not rare then make_rare() end
      rare.tidy(key, r, flag, at, used, rest)
    end
    if r.code == 'l' then return rare.log.await(key, r, used, rest, cost) end
    return rest
  end

  -- take_all grants as many of n requests as all hits of a call of a run have room
  -- for, and puts the reply's parts from so far on. The hits' keys come after key.
  local function take_all(hits, width, n, key, replies, from)
    local m = n
    for j = 1, width do
      local h = hits[j]
      local r = h.rule
      h.flag, h.time, h.used, h.rest, h.mark = read(KEYS[key + j], r)
      if m > 0 then m = room(r, h.time, h.used, h.rest, h.cost, h.part, m) end
    end
    replies[from] = pack('<BI7', 0, m)
    for j = 1, width do
      local h = hits[j]
      local rest = finish(KEYS[key + j], h.rule, h.flag, h.time, h.used, h.rest, h.mark, h.cost, h.part, m)
      replies[from + j] = pack('<I7I7I7I7', h.flag == GARBAGE and 1 or 0, h.time, h.used, rest)
    end
  end

  return write, take_all, function(text, at, key)
    if not rare then make_rare() end
    rare.other = rare.other or rare.general()
    return rare.other(text, at, key)
  end
end

-- The rules -------------------------------------------------------------------

local rules, known = {false}, 0
do
  local text, at, size = ARGV[2], 1, #ARGV[2]
  while at <= size do
    known = known + 1
    local code, window, limit
    if string.byte(text, at) == 116 then -- t
      local burst, burst_part, denominator, requests
      code, window, burst, burst_part, denominator, requests, at = unpack('<c1I7I7I7I7I7', text, at)
      rules[known] = {
        code = code, window = window, format = '<I7I7I7I7', size = 28,
        burst = burst, burst_part = burst_part, denominator = denominator, requests = requests,
      }
    else
      code, window, limit, at = unpack('<c1I7I7', text, at)
      local r = {code = code, window = window, limit = limit, begins = nil, aligned = nil, size = nil, format = nil}
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
      rules[known] = r
    end
  end
end

-- The calls -------------------------------------------------------------------

-- The parts of the reply, and how many there are.
local replies, filled = {pack('<I7', now), '', ''}, 1

local text, at, size, keys, key = ARGV[3], 1, #ARGV[3], KEYS, 0
local hits = {false}
local write, take_all, other
while at <= size do
  if string.byte(text, at) == 0 then
    local calls, width, n, number
    calls, width, n, at = unpack('<I2BI7', text, at + 1)
    local buckets = true -- that something is taken from
    for j = 1, width do
      local h = hits[j] or {rule = false, cost = 0, part = 0, all = 0, all_part = 0, used = 0, rest = 0, moves = 0}
      hits[j] = h
      local cost, part
      number, cost, part, at = unpack('<I2I7I7', text, at)
      local r = rules[number]
      h.rule, h.cost, h.part = r, cost, part
      cost, part = cost * n, part * n
      buckets = buckets and r.code == 't' and cost + part > 0
      if buckets and part >= r.denominator then
        cost, part = cost + math.floor(part / r.denominator), math.fmod(part, r.denominator)
      end
      h.all, h.all_part = cost, part
    end
    local values = buckets and call('MGET', table_unpack(keys, key + 1, key + calls * width))
    for i = 0, (calls - 1) * width, width do
      -- What read, room and finish do for buckets in order that have room for all.
      local fits = buckets
      for j = 1, buckets and width or 0 do
        local h, value = hits[j], values[i + j]
        fits = false
        if not value or #value ~= 28 then break end
        local r, all, all_part = h.rule, h.all, h.all_part
        local denominator, slack = r.denominator, r.window / 4
        local used, rest, time, rate = unpack('<I7I7I7I7', value)
        if used >= r.burst or rest >= denominator or time > now or rate ~= r.requests then break end
        local debt = time + used
        h.moves = debt - debt % slack + slack -- debts that end later move the expiry
        used = used - (now - time)
        if used < 0 then used, rest = 0, 0 end
        local left, left_part = r.burst - used, r.burst_part - rest
        if left_part < 0 then left, left_part = left - 1, left_part + denominator end
        if all > left or all == left and all_part > left_part then break end
        fits, h.used, h.rest = true, used, rest
      end
      if fits then
        for j = 1, width do
          local h, name = hits[j], keys[key + j]
          local used, rest, all_part = h.used, h.rest, h.all_part
          local r = h.rule
          local denominator = r.denominator
          filled = filled + 1
          replies[filled] = j == 1 and pack('<BI7I7', 1, used, rest) or pack('<I7I7', used, rest)
          used = used + h.all
          if rest >= denominator - all_part then
            used, rest = used + 1, rest - (denominator - all_part)
          else
            rest = rest + all_part
          end
          if now + used < h.moves then
            call('SET', name, pack('<I7I7I7I7', used, rest, now, r.requests), 'KEEPTTL')
          else
            if not write then write, take_all, other = steps(rules, now, given) end
            write(name, r, now, used, rest, false)
          end
        end
      else
        if not write then write, take_all, other = steps(rules, now, given) end
        take_all(hits, width, n, key, replies, filled + 1)
        filled = filled + 1 + width
      end
      key = key + width
    end
  else
    if not write then write, take_all, other = steps(rules, now, given) end
    filled = filled + 1
    at, key, replies[filled] = other(text, at, key)
  end
end

return table.concat(replies, '', 1, filled)
