-- take.lua decides the hits of one request in one step: it reads and checks
-- every counter, and only then writes. No time passes and nobody else writes in
-- between, so 20 requests for the last 5 units get 5 of them.
--
-- KEYS     the counters; no other key is touched
-- ARGV[1]  the time in µs from a test or a simulator; "" means this server's
-- ARGV[2]  "take", "peek" (decide as take does, and take nothing)
--          or "return" (give back what a take took)
-- then for each key: algorithm, group, window in µs, and
--   f, w, l  cost, limit
--   t        cost in µs, its numerator, burst in µs, its numerator, denominator, requests
-- Group 1 is enforced. Group 2 shadows: it never stands in the way of group 1.
--
-- The reply holds integers: the time, then for each key whether its hit fits,
-- whether the counter held garbage, and three numbers of its state before the
-- call. What is left, and when to try again, is computed from them in Go.
--
-- Numbers are doubles, exact for integers up to 2^53; Go does the very same
-- operations, so that both agree on every bit.

local MAX = 9007199254740991 -- 2^53 - 1
local MINUTE = 60000000

local given = ARGV[1] ~= ''
local now = tonumber(ARGV[1])
if not given then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Helpers ------------------------------------------------------------------

-- ahead tells a time that no step of the clock explains: the counter would
-- refuse for too long. Smaller steps back are waited for, so that they give
-- nobody a second helping.
local function ahead(time, window)
  return time > now + math.max(window, MINUTE)
end

-- expiry is the millisecond at which a counter says nothing any more. Simulated
-- time runs by itself: there a counter stays for an hour of real time or more.
local function expiry(ends)
  if not given then return math.ceil(ends / 1000) end
  return math.max(math.ceil((ends - now) / 1000), 3600000)
end

-- numbers reads the integers that a pattern captures; none if one is too large.
local function numbers(text, pattern)
  local found = {string.match(text, pattern)}
  for i = 1, #found do
    found[i] = tonumber(found[i])
    if found[i] > MAX then return {} end
  end
  return found
end

-- fetch reads a counter. A value of another type is garbage; any other error,
-- such as a missing permission, is raised by the second call.
local function fetch(hit, command)
  local reply = redis.pcall(command, hit.key)
  if type(reply) ~= 'table' then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then
    return redis.call(command, hit.key)
  end
  hit.garbage = true
end

-- parse reads a counter that is a string; none if there is no counter.
local function parse(hit, pattern, alternative)
  local text = fetch(hit, 'GET')
  if not text then return {} end
  local found = numbers(text, pattern)
  if not found[1] and alternative then
    found = numbers(text, alternative)
    hit.lone = found[1] ~= nil
  end
  hit.garbage = not found[1]
  return found
end

-- add sums two numbers, each of a whole part and a numerator below the
-- denominator, without ever exceeding 2^53.
local function add(a, a_part, b, b_part, denominator)
  if a_part >= denominator - b_part then
    return a + b + 1, a_part - (denominator - b_part)
  end
  return a + b, a_part + b_part
end

local function save(hit, format, ...)
  redis.call('SET', hit.key, string.format(format, ...), given and 'PX' or 'PXAT', expiry(hit.ends))
end

local function expire(hit)
  redis.call(given and 'PEXPIRE' or 'PEXPIREAT', hit.key, expiry(hit.ends))
end

-- Each algorithm reads (sets hit.state, the first three of which are the reply,
-- hit.ends and hit.fits), takes, and gives back.
local read, take, give_back = {}, {}, {}

-- FixedWindow: "count:start". A lone number is the count of the present window.
function read.f(hit)
  local present = now - math.fmod(now, hit.window)
  local n = parse(hit, '^(%d+):(%d+)$', '^(%d+)$')
  local count, start = n[1] or 0, n[2] or present
  if math.fmod(start, hit.window) ~= 0 or ahead(start, hit.window) then
    hit.garbage, count, start = true, 0, present
  elseif start < present then
    count, start = 0, present
  end
  hit.state = {start, count, 0}
  hit.ends = start + hit.window
  hit.fits = hit.cost == 0 or count <= hit.limit - hit.cost
end

function take.f(hit)
  save(hit, '%.0f:%.0f', hit.state[2] + hit.cost, hit.state[1])
end

-- SlidingWindow: "count:previous:start". What the previous window counted
-- weighs less the further the present one has come.
function read.w(hit)
  local window = hit.window
  local present = now - math.fmod(now, window)
  local n = parse(hit, '^(%d+):(%d+):(%d+)$', '^(%d+)$')
  local count, previous, start = n[1] or 0, n[2] or 0, n[3] or present
  if math.fmod(start, window) ~= 0 or ahead(start, window) then
    hit.garbage, count, previous, start = true, 0, 0, present
  elseif start == present - window then
    count, previous, start = 0, count, present
  elseif start < present then
    count, previous, start = 0, 0, present
  end
  local elapsed = math.max(now - start, 0)
  local weight = math.min(math.ceil(previous * (window - elapsed) / window), previous)
  hit.state = {start, count, previous}
  hit.ends = start + 2 * window
  hit.fits = hit.cost == 0 or weight + count <= hit.limit - hit.cost
end

function take.w(hit)
  save(hit, '%.0f:%.0f:%.0f', hit.state[2] + hit.cost, hit.state[3], hit.state[1])
end

-- Units of a window that has passed meanwhile are not given back.
for _, window in ipairs({'f', 'w'}) do
  give_back[window] = function(hit)
    hit.cost = -math.min(hit.cost, hit.state[2])
    take[window](hit)
  end
end

-- TokenBucket: "lead:numerator:time:requests". The lead is the time in µs that
-- an empty bucket's debt takes to be paid at a rate of so many requests per
-- window; it shrinks as time passes.
function read.t(hit)
  local n = parse(hit, '^(%d+):(%d+):(%d+):(%d+)$')
  local lead, part, at, requests = n[1] or 0, n[2] or 0, n[3] or now, n[4] or hit.requests
  if ahead(at, hit.window) or (requests == hit.requests and part >= hit.denominator) then
    hit.garbage, lead, part, at = true, 0, 0, now
  end
  -- Changed numbers hold since the last take, whose units are kept.
  if requests ~= hit.requests then
    lead, part = math.floor(lead * requests / hit.requests), 0
  end
  if lead > hit.burst or (lead == hit.burst and part > hit.burst_part) then
    lead, part = hit.burst, hit.burst_part
  end
  lead = lead - math.max(now - at, 0)
  if lead < 0 then lead, part = 0, 0 end
  local after, after_part = add(lead, part, hit.cost, hit.cost_part, hit.denominator)
  hit.state = {math.max(now, at), lead, part, after, after_part}
  hit.ends = hit.state[1] + lead + 1
  hit.fits = after < hit.burst or (after == hit.burst and after_part <= hit.burst_part)
end

function take.t(hit, lead, part)
  lead, part = lead or hit.state[4], part or hit.state[5]
  hit.ends = hit.state[1] + lead + 1 -- one more for the numerator
  save(hit, '%.0f:%.0f:%.0f:%.0f', lead, part, hit.state[1], hit.requests)
end

function give_back.t(hit)
  local lead, part = hit.state[2] - hit.cost, hit.state[3] - hit.cost_part
  if part < 0 then lead, part = lead - 1, part + hit.denominator end
  if lead < 0 then lead, part = 0, 0 end
  take.t(hit, lead, part)
end

-- SlidingLog: a sorted set with one member for each hit, "total:cost", at the
-- hit's time. The total counts every unit up to and with this hit (modulo 2^53),
-- in 16 digits, so that hits of the same µs stay in order, and the units between
-- two members are a subtraction.
local function entry(hit, rank)
  local reply = redis.call('ZRANGE', hit.key, rank, rank, 'WITHSCORES')
  local n, at = numbers(reply[1] or '', '^(%d+):(%d+)$'), tonumber(reply[2])
  if n[2] and at == math.floor(at) then return {total = n[1], cost = n[2], at = at} end
  hit.garbage = true
end

local function append(hit, at, total, cost)
  redis.call('ZADD', hit.key, at, string.format('%016.0f:%.0f', total, cost))
end

local function modulo(total)
  return total < 0 and total + MAX + 1 or total
end

-- freed is the units that end when everything from first to last has ended.
local function freed(first, last)
  return first.cost + modulo(last.total - first.total)
end

-- awaited finds the first member of low..high at whose end `need` units have
-- ended, by bisection.
local function awaited(hit, first, low, high, need)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local candidate = entry(hit, middle)
    if not candidate then return nil end
    if freed(first, candidate) >= need then high = middle else low = middle + 1 end
  end
  return entry(hit, low)
end

local function read_log(hit, size)
  local last = entry(hit, -1)
  if not last or ahead(last.at, hit.window) then
    hit.garbage = true
    return
  end
  hit.ends = last.at + hit.window
  local gone = redis.call('ZCOUNT', hit.key, '-inf', now - hit.window)
  local first = gone < size and entry(hit, gone)
  if not first then return end
  local used = freed(first, last)
  local need = used - (hit.limit - hit.cost)
  local blocking = last
  if hit.cost <= hit.limit and need > 0 then
    blocking = awaited(hit, first, gone, size - 1, need)
  end
  if hit.garbage then return end
  hit.state = {last.at, used, blocking.at}
  hit.total = last.total
end

function read.l(hit)
  hit.state, hit.total, hit.ends = {0, 0, 0}, 0, now
  local size = fetch(hit, 'ZCARD') or 0
  if size > 0 then read_log(hit, size) end
  hit.fits = hit.cost == 0 or hit.state[2] <= hit.limit - hit.cost
end

function take.l(hit)
  if hit.garbage then redis.call('DEL', hit.key) end
  -- A total that starts again at 0 sorts after the last one by its time.
  local again, total = add(0, hit.total, 0, hit.cost, MAX + 1)
  local at = math.max(now, hit.state[1] + again)
  redis.call('ZREMRANGEBYSCORE', hit.key, '-inf', at - hit.window)
  append(hit, at, total, hit.cost)
  hit.ends = at + hit.window
  expire(hit)
end

-- The newest units go first. Others may have been taken after ours; units are
-- alike, and the two calls of one request are a moment apart.
function give_back.l(hit)
  local rest = math.min(hit.cost, hit.state[2])
  while rest > 0 do
    local last = entry(hit, -1)
    if not last then return end
    redis.call('ZPOPMAX', hit.key)
    if last.cost > rest then
      append(hit, last.at, modulo(last.total - rest), last.cost - rest)
    end
    rest = rest - last.cost
  end
end

-- tidy leaves a counter alone, unless it is garbage, does not say which window
-- it counts, or would stay for ever.
local function tidy(hit)
  if hit.garbage then
    redis.call('DEL', hit.key)
  elseif hit.lone then
    hit.cost = 0
    take[hit.algorithm](hit)
  elseif redis.call('PTTL', hit.key) == -1 then
    expire(hit)
  end
end

-- The decision --------------------------------------------------------------

local position = 2
local function argument()
  position = position + 1
  return tonumber(ARGV[position]) or ARGV[position]
end

local hits, fit = {}, {true, true}
for i, key in ipairs(KEYS) do
  local hit = {key = key, garbage = false, algorithm = argument(), group = argument()}
  hit.window, hit.cost, hit.cost_part = argument(), argument(), 0
  if hit.algorithm == 't' then
    hit.cost_part, hit.burst, hit.burst_part = argument(), argument(), argument()
    hit.denominator, hit.requests = argument(), argument()
  else
    hit.limit = argument()
  end
  read[hit.algorithm](hit)
  fit[hit.group] = fit[hit.group] and hit.fits
  hits[i] = hit
end
fit[2] = fit[1] and fit[2]

local reply = {now}
for _, hit in ipairs(hits) do
  local moves = hit.cost > 0 or hit.cost_part > 0
  if moves and ARGV[2] == 'take' and fit[hit.group] then
    take[hit.algorithm](hit)
  elseif moves and ARGV[2] == 'return' and hit.state[2] + hit.state[3] > 0 then
    give_back[hit.algorithm](hit)
  else
    tidy(hit)
  end
  reply[#reply + 1] = hit.fits and 1 or 0
  reply[#reply + 1] = hit.garbage and 1 or 0
  for i = 1, 3 do reply[#reply + 1] = hit.state[i] end
end
return reply
