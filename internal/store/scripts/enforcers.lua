-- enforcers.lua reads the reports of a namespace's enforcers together with the
-- clock that they were received by: on a Redis Cluster each node has its own.
--
-- KEYS[1]  hash of enforcers
-- ARGV[1]  bytes of the longest report that is read
-- ARGV[2]  bytes that are read in all
--
-- Replies with the time in µs, then pod, report, pod, report, …

local time = redis.call('TIME')
local reply = {time[1] * 1000000 + time[2]}
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return reply end

local longest, budget = tonumber(ARGV[1]), tonumber(ARGV[2])
for _, pod in ipairs(redis.call('HKEYS', KEYS[1])) do
  local length = redis.call('HSTRLEN', KEYS[1], pod)
  local cost = #pod + length
  if length <= longest and cost <= budget then
    budget = budget - cost
    reply[#reply + 1] = pod
    reply[#reply + 1] = redis.call('HGET', KEYS[1], pod)
  end
end
return reply
