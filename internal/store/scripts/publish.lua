-- publish.lua makes the policies of a namespace what ARGV says, whole and in one
-- step: no reader sees half of it. When they are that already, nothing is
-- written.
--
-- KEYS[1]  hash of definitions
-- KEYS[2]  revision
-- ARGV[1]  channel
-- ARGV[2]  ms that the revision outlives an empty set of definitions
-- ARGV[3…] name, definition, name, definition, …
--
-- Replies with the revision and whether anything was written.

local function revision()
  if redis.call('TYPE', KEYS[2]).ok ~= 'string' then return nil end
  return string.match(redis.call('GET', KEYS[2]), '^(%d+)-(%d+)$')
end

local function current()
  if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then
    return redis.call('EXISTS', KEYS[1]) == 0 and #ARGV == 2
  end
  if redis.call('HLEN', KEYS[1]) * 2 ~= #ARGV - 2 then return false end
  for i = 3, #ARGV, 2 do
    if redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] then return false end
  end
  return true
end

local epoch, number = revision()
if epoch and current() then return {epoch .. '-' .. number, 0} end

if epoch then
  number = number + 1
else
  local now = redis.call('TIME')
  epoch, number = string.format('%.0f', now[1] * 1000000 + now[2]), 1
end
local published = string.format('%s-%.0f', epoch, number)

redis.call('DEL', KEYS[1])
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
if #ARGV == 2 then
  redis.call('SET', KEYS[2], published, 'PX', ARGV[2])
else
  redis.call('SET', KEYS[2], published)
end
redis.call('PUBLISH', ARGV[1], 'revision ' .. published)
return {published, 1}
