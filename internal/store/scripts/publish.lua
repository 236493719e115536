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

-- The rules are ParseRevision's, but the largest number has no next one.
local function revision()
  if redis.call('TYPE', KEYS[2]).ok ~= 'string' then return nil end
  local epoch, number = string.match(redis.call('GET', KEYS[2]), '^(%d+)-(%d+)$')
  if not epoch or #epoch > 16 or #number > 16 then return nil end
  epoch, number = tonumber(epoch), tonumber(number)
  local largest = 9007199254740991
  if epoch < 1 or epoch > largest or number < 1 or number >= largest then return nil end
  return epoch, number
end

-- '..' would write all but the first 14 digits as zeros.
local function format(epoch, number) return string.format('%.0f-%.0f', epoch, number) end

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
if epoch and current() then return {format(epoch, number), 0} end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if epoch then
  -- Not only the next one: a replica that became the master may lack the last
  -- revisions, and must not give them to other definitions.
  number = math.max(number + 1, math.floor((now - epoch) / 1000))
else
  epoch, number = now, 1
end
local published = format(epoch, number)

redis.call('DEL', KEYS[1])
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
if #ARGV == 2 then
  redis.call('SET', KEYS[2], published, 'PX', ARGV[2])
else
  redis.call('SET', KEYS[2], published)
end
redis.call('PUBLISH', ARGV[1], 'revision ' .. published)
return {published, 1}
