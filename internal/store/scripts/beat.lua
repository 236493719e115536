-- beat.lua records that an enforcer lives, on this server's clock, forgets those
-- that have not been heard of for long, and tells who else lives.
--
-- KEYS[1]  hash of enforcers: pod → "seen in µs" .. " " .. report
-- KEYS[2]  sorted set of places: policy .. "/" .. pod, by name
-- KEYS[3]  sorted set with the same members, each at the µs when it was seen
-- ARGV     pod, report, ms after which a silent enforcer's report is forgotten,
--          ms after which it counts as gone, policies that it enforces …
--
-- Without a report the enforcer leaves. Replies, for each policy, how many live
-- that enforce it, and how many of them come before this one.

local enforcers, places, seen = unpack(KEYS)
local pod, report, forget, timeout = unpack(ARGV, 1, 4)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function keep(key, kind)
  if redis.call('TYPE', key).ok ~= kind then redis.call('DEL', key) end
end

-- many passes so many arguments that one call could not have them all.
local function many(command, key, arguments)
  for i = 1, #arguments, 1000 do
    redis.call(command, key, unpack(arguments, i, math.min(i + 999, #arguments)))
  end
end

local function forgetPlaces(members)
  many('ZREM', places, members)
  many('ZREM', seen, members)
end

keep(enforcers, 'hash')
keep(places, 'zset')
keep(seen, 'zset')
if redis.call('ZCARD', places) ~= redis.call('ZCARD', seen) then redis.call('DEL', places, seen) end

-- What this enforcer said last and says no more is withdrawn at once.
local before = redis.call('HGET', enforcers, pod) or ''
before = string.match(before, '^%d+ (.*)$') or ''
if before ~= report then
  local names, withdrawn = {}, {}
  for i = 5, #ARGV do names[ARGV[i]] = true end
  local readable, said = pcall(cjson.decode, before)
  if readable and type(said) == 'table' and type(said.policies) == 'table' then
    for name in pairs(said.policies) do
      if not names[name] then withdrawn[#withdrawn + 1] = name .. '/' .. pod end
    end
  end
  forgetPlaces(withdrawn)
end
if report == '' then
  redis.call('HDEL', enforcers, pod)
  return {}
end

redis.call('HSET', enforcers, pod, string.format('%.0f %s', now, report))
redis.call('PEXPIRE', enforcers, forget)
-- A few at random: each of n enforcers looks at them, so that all are looked at
-- ten times per interval, and no beat costs more because there are many.
local some = redis.call('HRANDFIELD', enforcers, 10, 'WITHVALUES')
for i = 1, #some, 2 do
  local last = tonumber(string.match(some[i + 1], '^(%d+) '))
  if not last or now - last > forget * 1000 then redis.call('HDEL', enforcers, some[i]) end
end

local mine, times = {}, {}
for i = 5, #ARGV do
  local member = ARGV[i] .. '/' .. pod
  mine[#mine + 1] = 0
  mine[#mine + 1] = member
  times[#times + 1] = string.format('%.0f', now)
  times[#times + 1] = member
end
many('ZADD', places, mine)
many('ZADD', seen, times)
local silent = string.format('(%.0f', now - timeout * 1000)
forgetPlaces(redis.call('ZRANGEBYSCORE', seen, '-inf', silent, 'LIMIT', 0, 1000))
redis.call('PEXPIRE', places, forget)
redis.call('PEXPIRE', seen, forget)

local reply = {}
for i = 5, #ARGV do
  local first = '[' .. ARGV[i] .. '/'
  reply[#reply + 1] = redis.call('ZLEXCOUNT', places, first, '(' .. ARGV[i] .. '0') -- "0" follows "/"
  reply[#reply + 1] = redis.call('ZLEXCOUNT', places, first, '(' .. ARGV[i] .. '/' .. pod)
end
return reply
