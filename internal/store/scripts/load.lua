-- load.lua reads the definitions of a namespace with their revision, in one
-- step. It is a script and no transaction, since a Redis whose memory is full
-- refuses to queue commands, even those that only read. It is called read-only,
-- since else an ACL would have to allow to write the keys.
--
-- KEYS[1]  hash of definitions
-- KEYS[2]  revision
-- ARGV[1]  the most definitions that are read
-- ARGV[2]  bytes of the longest definition that is read
-- ARGV[3]  bytes that are read in all
--
-- Replies with the revision, then name, definition, name, definition, …; without
-- a revision with '' alone. A definition beyond the bounds is replied as ''.

if redis.call('TYPE', KEYS[2]).ok ~= 'string' then return {''} end
local reply = {redis.call('GET', KEYS[2])}

local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then return reply end
if kind ~= 'hash' then return redis.error_reply('ERR the definitions are not a hash but a ' .. kind) end
local count = redis.call('HLEN', KEYS[1])
if count > tonumber(ARGV[1]) then
  return redis.error_reply('ERR ' .. count .. ' definitions are more than the ' .. ARGV[1] .. ' allowed')
end
local longest, budget = tonumber(ARGV[2]), tonumber(ARGV[3])
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local length, definition = redis.call('HSTRLEN', KEYS[1], name), ''
  if length <= longest and length <= budget then
    budget = budget - length
    definition = redis.call('HGET', KEYS[1], name)
  end
  reply[#reply + 1] = name
  reply[#reply + 1] = definition
end
return reply
