-- beat.lua records that an enforcer lives, on this server's clock, and removes
-- some that have not been heard of for long.
--
-- KEYS[1]  hash of enforcers: pod → "seen in µs" .. " " .. report
-- ARGV     pod, report, ms after which a silent enforcer is forgotten

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s', now, ARGV[2]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])

-- A few at random: each of n enforcers looks at them, so that all are looked at
-- ten times per interval, and no beat costs more because there are many.
local some = redis.call('HRANDFIELD', KEYS[1], 10, 'WITHVALUES')
for i = 1, #some, 2 do
  local seen = tonumber(string.match(some[i + 1], '^(%d+) '))
  if not seen or now - seen > ARGV[3] * 1000 then redis.call('HDEL', KEYS[1], some[i]) end
end
return redis.status_reply('OK')
