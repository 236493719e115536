-- beat.lua records that an enforcer lives, on this server's clock, forgets those
-- that have fallen silent, and tells who else lives.
--
-- An enforcer says at length only what is new. While its report and everybody's
-- places are those of its last beat, a beat is a few commands, whatever the number of
-- policies.
--
-- KEYS[1]  hash of enforcers: pod → "seen in µs" .. " " .. digest .. " " .. report
-- KEYS[2]  sorted set of places: policy .. "/" .. pod, by name
-- KEYS[3]  sorted set of pods, each at the µs when it was seen; its member "" is at
--          the version of the places, the µs when they changed
-- ARGV     pod, digest of its report, version of the places that it knows, one of its
--          policies or "", ms after which a silent enforcer is forgotten, and then,
--          to say it all, the report and all policies
--
-- Without a digest the enforcer leaves. Replies with the version of the places; to
-- who says it all with, for each policy, how many live that enforce it, and how many
-- of them come before this one, too; and with nothing to who must say it all.

local enforcers, places, seen = unpack(KEYS)
local pod, digest, known, one, timeout = unpack(ARGV, 1, 5)
local report, first = ARGV[6], 7 -- the first policy's
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local changed = false -- are the places

local function number(n) return string.format('%.0f', n) end

-- many passes so many arguments that one call could not have them all, and adds up
-- the replies.
local function many(command, key, arguments)
  local total = 0
  for i = 1, #arguments, 1000 do
    total = total + redis.call(command, key, unpack(arguments, i, math.min(i + 999, #arguments)))
  end
  return total
end

-- said is what a pod reported last: digest and report, '' without one.
local function said(who)
  local last = redis.call('HGET', enforcers, who) or ''
  local before, text = string.match(last, '^%d+ (%x+) (.*)$')
  return before or '', text or ''
end

-- withdraw gives up the places of a pod's last report, but those of the policies in keep.
local function withdraw(who, keep)
  local _, text = said(who)
  local readable, last = pcall(cjson.decode, text)
  if not readable or type(last) ~= 'table' or type(last.policies) ~= 'table' then return end
  local gone = {}
  for name in pairs(last.policies) do
    if not keep[name] then gone[#gone + 1] = name .. '/' .. who end
  end
  if many('ZREM', places, gone) > 0 then changed = true end
end

local function forget(who)
  withdraw(who, {})
  redis.call('HDEL', enforcers, who)
  redis.call('ZREM', seen, who)
end

-- version is that of the places, and a new one if they have changed since it was asked for.
local function version()
  local last = tonumber(redis.call('ZSCORE', seen, '') or nil)
  if last and not changed then return last end
  changed = false
  last = math.max((last or 0) + 1, now)
  redis.call('ZADD', seen, number(last), '')
  return last
end

local function live(text)
  redis.call('HSET', enforcers, pod, number(now) .. ' ' .. digest .. ' ' .. text)
  redis.call('ZADD', seen, number(now), pod)
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, timeout) end
end

-- What is not as heartbeats leave it is built anew, by the next ones.
local function is(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if not (is(enforcers, 'hash') and is(places, 'zset') and is(seen, 'zset'))
  or redis.call('HLEN', enforcers) ~= math.max(0, redis.call('ZCARD', seen) - 1) then
  redis.call('DEL', enforcers, places, seen)
end

local silent = '(' .. number(now - timeout * 1000)
for _, who in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', silent, 'LIMIT', 0, 100)) do
  if who ~= '' then forget(who) end
end

if digest == '' then forget(pod) end
if changed then version() end
if digest == '' then return {} end

if not report then
  local before, text = said(pod)
  if before ~= digest or number(version()) ~= known
    or one ~= '' and not redis.call('ZSCORE', places, one .. '/' .. pod) then
    return {}
  end
  live(text)
  return {version()}
end

local mine, policies = {}, {}
for i = first, #ARGV do
  policies[ARGV[i]] = true
  mine[#mine + 1] = 0
  mine[#mine + 1] = ARGV[i] .. '/' .. pod
end
withdraw(pod, policies)
if many('ZADD', places, mine) > 0 then changed = true end
live(report)

local reply = {version()}
for i = first, #ARGV do
  local from = '[' .. ARGV[i] .. '/'
  reply[#reply + 1] = redis.call('ZLEXCOUNT', places, from, '(' .. ARGV[i] .. '0') -- "0" follows "/"
  reply[#reply + 1] = redis.call('ZLEXCOUNT', places, from, '(' .. ARGV[i] .. '/' .. pod)
end
return reply
