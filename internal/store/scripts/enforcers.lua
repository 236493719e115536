-- enforcers.lua reads the reports of a namespace's enforcers together with the
-- clock that they were received by: on a Redis Cluster each node has its own.
--
-- KEYS[1]  hash of enforcers

local time = redis.call('TIME')
local reply = {time[1] * 1000000 + time[2]}
if redis.call('TYPE', KEYS[1]).ok == 'hash' then
  for _, value in ipairs(redis.call('HGETALL', KEYS[1])) do reply[#reply + 1] = value end
end
return reply
