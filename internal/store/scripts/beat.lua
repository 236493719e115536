-- beat.lua records that an enforcer lives, on this server's clock, and removes
-- those that have not been heard of for long.
--
-- KEYS[1]  hash of enforcers: pod → "seen in µs" .. " " .. report
-- ARGV     pod, report, ms after which a silent enforcer is forgotten

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s', now, ARGV[2]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])

local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local seen = tonumber(string.match(all[i + 1], '^(%d+) '))
  if not seen or now - seen > ARGV[3] * 1000 then redis.call('HDEL', KEYS[1], all[i]) end
end
return redis.status_reply('OK')
